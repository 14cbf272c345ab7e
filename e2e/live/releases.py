"""The Helm release `carpool` in carpool-system that the live tests share, as its owner would install it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

from e2e.cluster import binaries
from e2e.cluster import kubectl as kubectls
from tests.charts import helm

NAME = "carpool"
NAMESPACE = "carpool-system"
DEPLOYMENT = "deployment/carpool-injector"
INJECTORS = "app.kubernetes.io/name=carpool"
# What is installed: of which chart, of which images. Pods with other images are replaced by it.
STATE = "e2e.carpool.dev/state"
READY_SECONDS = 120


class Release:
    """The release in one cluster. Several test runs may ensure it at the same time."""

    def __init__(self, kubeconfig: Path, images: str) -> None:
        """`images` is the digest of the sources of the cluster's images."""
        self.kubectl = kubectls.Kubectl(kubeconfig, NAMESPACE)
        self._state = hashlib.sha256((images + _chart_digest()).encode()).hexdigest()[:16]

    def ensure_installed(self) -> None:
        """Returns when the release is there, of this chart and these images, with the default values, and ready."""
        with binaries.one_at_a_time(binaries.cache_folder() / "release.lock"):
            if not self._is_as_wanted():
                self._put("--reset-values")
        self.kubectl.wait(DEPLOYMENT, "Available", READY_SECONDS)

    def upgrade(self, *values: str) -> str:
        """`helm upgrade` with values ("webhook.failurePolicy=Fail") over the defaults; returns when it is rolled out.

        A test that changes values calls `restore` after it.
        """
        return self._put("--reset-values", *(f"--set={each}" for each in values), state=f"changed: {' '.join(values)}")

    def restore(self) -> None:
        """Installs the default values again."""
        self.ensure_installed()

    def uninstall(self) -> str:
        """`helm uninstall`, and what it says; the namespace stays."""
        return self.helm("uninstall", NAME, "--ignore-not-found", "--wait")

    def helm(self, *words: str, timeout: float = READY_SECONDS + 30) -> str:
        """What a command of Helm's prints. Raises helm.Failed."""
        with tempfile.TemporaryDirectory() as home:
            environment = {"PATH": os.environ.get("PATH", ""), "HOME": home, "HELM_NO_PLUGINS": "1"}
            command = [str(helm.find()), *words, f"--kubeconfig={self.kubectl.kubeconfig}", f"--namespace={NAMESPACE}"]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout)
        if done.returncode:
            raise helm.Failed(f"helm {' '.join(words)}:\n{done.stderr}{done.stdout}")
        return done.stdout

    def _put(self, *more: str, state: str = "") -> str:
        annotation = json.dumps({STATE: state or self._state})
        words = ["upgrade", NAME, str(helm.CHART), "--install", "--create-namespace", "--wait", "--history-max=3"]
        return self.helm(*words, f"--timeout={READY_SECONDS}s", f"--set-json=podAnnotations={annotation}", *more)

    def _is_as_wanted(self) -> bool:
        found = self.kubectl.run("get", DEPLOYMENT, "--output=json", check=False)
        if found.status:
            return False
        annotations = json.loads(found.output)["spec"]["template"]["metadata"].get("annotations", {})
        return bool(annotations.get(STATE) == self._state)


def _chart_digest() -> str:
    files = sorted(path for path in helm.CHART.rglob("*") if path.is_file() and path.suffix != ".md")
    return binaries.key({str(path.relative_to(helm.CHART)): path.read_bytes() for path in files})
