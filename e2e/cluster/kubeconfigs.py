"""The files that tell clients where an API server is, how to know it, and who they are."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster import authority


def render(server: str, bundle: Path, identity: authority.Issued) -> str:
    """A kubeconfig (JSON, which is YAML) for whoever `identity` is. Names files, so it lives as long as they do."""
    user = {"client-certificate": str(identity.certificate), "client-key": str(identity.key)}
    context = {"cluster": "e2e", "user": "e2e", "namespace": "default"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority": str(bundle)}}],
        "users": [{"name": "e2e", "user": user}],
        "contexts": [{"name": "e2e", "context": context}],
        "current-context": "e2e",
    }
    return json.dumps(document, indent=2) + "\n"
