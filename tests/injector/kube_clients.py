"""What tests of the Kubernetes client connect it with, and how an API server hangs up on it."""

from __future__ import annotations

import asyncio
import json

# The transport tries an idempotent request once more when a connection ends without an answer.
HANG_UP = ("hang up", "hang up")


def write_kubeconfig(path, url, **user):
    """A kubeconfig with two contexts; the current one leads to `url`."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "here", "user": "me"}},
            {"name": "elsewhere", "context": {"cluster": "elsewhere", "user": "me"}},
        ],
        "clusters": [
            {"name": "here", "cluster": {"server": url}},
            {"name": "elsewhere", "cluster": {"server": "http://127.0.0.1:1"}},
        ],
        "users": [{"name": "me", "user": user}],
    }
    path.write_text(json.dumps(config))
    return str(path)


async def no_pause(seconds):
    await asyncio.sleep(0)
