"""The steps of every installation into a cluster: load images on all nodes, apply objects, wait for rollouts.

Objects are applied as an admin would: with kubectl, on the server's side, so that a second time changes nothing.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ruamel import yaml

from e2e.cluster import archives, binaries, client, clusters
from tests.charts import helm

MANIFESTS = Path(__file__).parent / "manifests"
FIELD_MANAGER = "carpool-e2e"
# Fully qualified, as nodes tell what they have.
LOCAL_REGISTRY = "docker.io/library"
LINES_SHOWN = 30
# Of one command: 2 MB of definitions take 20 s on a machine that builds something else meanwhile.
SECONDS = 120.0

Object = dict[str, Any]


def load(cluster: clusters.Cluster, admin: client.Client, image: archives.Image) -> None:
    """Loads an image into every node, unless all of them report that they have it. Raises clusters.Problem."""
    if is_loaded(admin.list("Node"), image.tag):
        return
    binaries.say(f"loading {image.tag}")
    cluster.load(archives.provide(image))


def is_loaded(nodes: Iterable[Object], tag: str) -> bool:
    """Whether every node lists the image. The list is some seconds late: then the image is loaded once more."""
    wanted = {tag, f"{LOCAL_REGISTRY}/{tag}"}
    return all(wanted & names_on(node) for node in nodes)


def names_on(node: Object) -> set[str]:
    return {name for image in node.get("status", {}).get("images", []) for name in image.get("names") or []}


def read(file: Path) -> list[Object]:
    return documents(file.read_text())


def documents(text: str) -> list[Object]:
    """The objects in a YAML stream, without the empty ones."""
    return [document for document in yaml.YAML(typ="safe").load_all(text) if document]


def kubectl(*words: str, stdin: str = "", kubeconfig: Path | None = None, timeout: float = SECONDS) -> str:
    """Runs kubectl and returns its output. Raises clusters.Problem with its errors, and where time is up."""
    to = ["--kubeconfig", str(kubeconfig)] if kubeconfig else []
    try:
        command = [str(helm.find("kubectl")), *to, *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout)
    except helm.Unavailable as missing:
        raise binaries.Unavailable(str(missing)) from None
    except subprocess.TimeoutExpired:
        raise clusters.Problem(f"`kubectl {' '.join(words)}` did not end within {timeout:g} s") from None
    if done.returncode:
        raise clusters.Problem(f"`kubectl {' '.join(words)}` ended with status {done.returncode}:\n{done.stderr}")
    return done.stdout


def apply(cluster: clusters.Cluster, objects: list[Object] | str) -> list[str]:
    """Applies objects (a string: as YAML) in this order; what others have changed in our fields is changed back.

    Returns them as kubectl names them: "namespace/ingress".
    """
    text = objects if isinstance(objects, str) else json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    words = ("apply", "--server-side", "--force-conflicts", f"--field-manager={FIELD_MANAGER}", "--filename=-")
    return kubectl(*words, "--output=name", stdin=text, kubeconfig=cluster.kubeconfig).splitlines()


def wait_for_rollout(cluster: clusters.Cluster, namespace: str, workload: str, seconds: float) -> None:
    """Returns when every pod of a workload ("daemonset/traefik") is new and ready.

    Raises clusters.Problem with the state and the last log lines of its pods.
    """
    words = ("rollout", "status", workload, f"--namespace={namespace}", f"--timeout={seconds:g}s")
    try:
        kubectl(*words, kubeconfig=cluster.kubeconfig, timeout=seconds + 10)
    except clusters.Problem as late:
        raise clusters.Problem(f"{late}\n{what_is_known_of(cluster, namespace, workload)}") from None


def what_is_known_of(cluster: clusters.Cluster, namespace: str, workload: str) -> str:
    """The pods and events of a workload's namespace and its logs, as far as they can be had."""
    questions = [
        ("get", "pods", "--output=wide"),
        ("get", "events", "--sort-by=.lastTimestamp"),
        ("logs", workload, "--all-pods", f"--tail={LINES_SHOWN}"),
    ]
    answers = []
    for words in questions:
        try:
            answers.append(kubectl(*words, f"--namespace={namespace}", kubeconfig=cluster.kubeconfig))
        except clusters.Problem as failed:
            answers.append(str(failed))
    return "\n".join(answers)
