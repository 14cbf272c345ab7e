"""kubectl: runs the commands that people type, parses the output, and explains failures."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ruamel import yaml

from e2e.cluster import binaries

Object = dict[str, Any]
Objects = list[Object]  # a name, because the class below has a method of the name `list`

RUN_SECONDS = 60.0
# Added to the time that `wait` itself gets.
START_SECONDS = 15.0
LINES_OF_LOG = 40
EVENTS_SHOWN = 40
ROLLED_OUT_SECONDS = 180.0


class Done(NamedTuple):
    """A command that has ended: its exit status and what it wrote."""

    status: int
    output: str
    errors: str


class Failed(Exception):
    """kubectl said no. The message is the command and what it said."""

    def __init__(self, words: Sequence[str], done: Done) -> None:
        super().__init__(f"kubectl {' '.join(words)} ended with status {done.status}:\n{done.errors}{done.output}")
        self.done = done


class NotInTime(Exception):
    """An object did not reach the awaited condition. The message has its state, events and logs."""


class Kubectl:
    """kubectl in one namespace of one cluster; without one, objects are applied where they say themselves."""

    def __init__(self, kubeconfig: Path, namespace: str = "") -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self._program = str(binaries.tool("kubectl"))

    def command(self, *words: str) -> list[str]:
        """The command line, for a caller that starts the process itself."""
        place = [f"--namespace={self.namespace}"] if self.namespace else []
        return [self._program, f"--kubeconfig={self.kubeconfig}", *place, *words]

    def run(self, *words: str, stdin: str = "", check: bool = True, timeout: float = RUN_SECONDS) -> Done:
        """Runs one command. With `check` raises Failed where its status is not 0; TimeoutExpired after `timeout` s."""
        # Of the user's environment PATH alone.
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": "/nonexistent", "KUBECACHEDIR": self._cache()}
        ended = subprocess.run(
            self.command(*words), input=stdin, capture_output=True, text=True, timeout=timeout, env=environment
        )
        done = Done(ended.returncode, ended.stdout, ended.stderr)
        if check and done.status:
            raise Failed(words, done)
        return done

    def apply(self, manifest: str | Path | Sequence[Object], check: bool = True) -> Done:
        """`kubectl apply` of a file, of YAML text, or of objects."""
        if isinstance(manifest, Path):
            return self.run("apply", "-f", str(manifest), check=check)
        text = manifest if isinstance(manifest, str) else json.dumps(_listed(manifest))
        return self.run("apply", "-f", "-", stdin=text, check=check)

    def get(self, kind: str, name: str) -> Object:
        """One object. Raises Failed where there is none."""
        found: Object = json.loads(self.run("get", kind, name, "--output=json").output)
        return found

    def list(self, kind: str, selector: str = "") -> Objects:
        """The objects of a kind in the namespace, all or those that a label selector picks."""
        words = ["get", kind, "--output=json", *([f"--selector={selector}"] if selector else [])]
        items: Objects = json.loads(self.run(*words).output)["items"]
        return items

    def pods(self, selector: str = "") -> Objects:
        """Pods, also those that are terminating."""
        return self.list("pods", selector)

    def delete(self, kind: str, name: str, *, wait: bool = True) -> None:
        """Deletes an object, with its grace period. Does nothing where there is none."""
        self.run("delete", kind, name, "--ignore-not-found", f"--wait={str(wait).lower()}", timeout=RUN_SECONDS * 2)

    def wait(self, what: str, condition: str, seconds: float = 120) -> None:
        """Returns when an object ("isvc/echo") is in a condition ("Ready", "Available", "delete", "jsonpath=…").

        Raises NotInTime after `seconds`, with its description, the namespace's events, and the logs of its containers.
        """
        wanted = condition if condition in ("delete", "create") or "=" in condition else f"condition={condition}"
        words = ["wait", what, f"--for={wanted}", f"--timeout={seconds:g}s"]
        done = self.run(*words, check=False, timeout=seconds + START_SECONDS)
        if done.status:
            raise NotInTime(f"{what} is not {condition} within {seconds:g} s: {done.errors}\n{self.explain(what)}")

    def wait_for_rollout(self, workload: str, seconds: float = ROLLED_OUT_SECONDS) -> None:
        """Returns when all pods of a workload ("deployment/echo") are of the latest template and ready.

        Raises NotInTime as `wait` does.
        """
        words = ("rollout", "status", workload, f"--timeout={seconds:g}s")
        done = self.run(*words, check=False, timeout=seconds + START_SECONDS)
        if done.status:
            raise NotInTime(f"{workload} is not rolled out: {done.errors}\n{self.explain(workload)}")

    def logs(self, pod: str, container: str, *, previous: bool = False) -> str:
        """What a container has written; with `previous` the one before its last restart."""
        return self.run("logs", pod, f"--container={container}", f"--previous={str(previous).lower()}").output

    def raw(self, path: str) -> str:
        """The answer to a GET of a path at the API server, such as one of a pod's proxy."""
        return self.run("get", f"--raw={path}").output

    def path_to(self, pod: str, port: int, path: str) -> str:
        """Where the API server passes requests on to a port of a pod: past Services and the ingress."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{pod}:{port}/proxy{path}"

    def explain(self, what: str) -> str:
        """The state, events and logs of an object that is not ready, for a message."""
        questions = (
            ("describe", what),
            ("get", "pods", "--output=wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
        )
        parts = []
        for words in questions:
            said = self.run(*words, check=False)
            lines = (said.output + said.errors).splitlines()
            shown = lines[-EVENTS_SHOWN:] if "events" in words else lines
            parts.append(f"--- kubectl {' '.join(words)}\n" + "\n".join(shown))
        return "\n".join([*parts, *self._logs_of_unready()])

    def _logs_of_unready(self) -> Iterator[str]:
        """The ends of the logs of all containers of the pods that are not ready."""
        for pod in self.pods():
            if not is_ready(pod):
                said = self._tail_of(pod["metadata"]["name"])
                yield f"--- logs of {pod['metadata']['name']}\n{said.output}{said.errors}"

    def _tail_of(self, pod: str) -> Done:
        return self.run("logs", pod, "--all-containers", "--prefix", f"--tail={LINES_OF_LOG}", check=False)

    def _cache(self) -> str:
        return str(self.kubeconfig.parent / "kubectl-cache")


def is_ready(pod: Object) -> bool:
    """Whether a pod is Ready and not being deleted."""
    conditions = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def container_statuses(pod: Object) -> dict[str, Object]:
    """The statuses of all containers of a pod by name, init containers too; of those that the kubelet tells of."""
    status = pod["status"]
    found = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return {each["name"]: each for each in found}


def load(manifest: str | Path) -> Objects:
    """The objects in a YAML text or file, without the empty ones."""
    text = manifest.read_text() if isinstance(manifest, Path) else manifest
    return [each for each in yaml.YAML(typ="safe").load_all(io.StringIO(text)) if each]


def _listed(objects: Sequence[Object]) -> Object:
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}
