"""Steps that the cases share: apply the manifests, wait for the pod, send calls at once, call around the sidecar.

A case is a manifest as somebody could have it already, under the name of the situation. It serves a model `echo` behind
a Service (or an InferenceService) `echo`, and asks the sidecar for a window of a second, in which callers who start
together meet for certain, on a busy machine as well.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from e2e.cluster import client, processes
from e2e.cluster import kubectl as kubectls
from e2e.live import objects, traffic

FOLDER = Path(__file__).parent
PROGRAMS = FOLDER / "programs"
PREDICT = "/v1/models/echo:predict"
SIDECAR = "carpool"
STATUS = "carpool.dev/status"
CALLERS = 4
READY_SECONDS = 120.0
# A probe each second, and a busy machine.
NOTICED_SECONDS = 60.0
# Endpoints and routes reach the proxies a moment after the pod is Ready.
ROUTED_SECONDS = 30.0

Object = client.Object


class Together(NamedTuple):
    """The result of calls made at once: their statuses, whether each got its own answer, the number of batches."""

    statuses: frozenset[int]
    own: bool
    batches: int


ONE_BATCH = Together(frozenset({200}), True, 1)


def apply(kubectl: kubectls.Kubectl, name: str) -> str:
    """Applies the manifests of that name and the programs that their pods may mount. Returns kubectl's warnings."""
    kubectl.apply([objects.config_map("programs", {each.name: each.read_text() for each in PROGRAMS.glob("*.py")})])
    return kubectl.apply(manifest(name)).errors


def manifest(name: str) -> Path:
    return FOLDER / f"{name}.yaml"


def label_namespace(kubectl: kubectls.Kubectl, label: str) -> None:
    """Labels the test's namespace ("key=value"), before anything is in it."""
    kubectl.run("label", "namespace", kubectl.namespace, label)


# --- pods ------------------------------------------------------------------------------------------------------------


def created_pod(kubectl: kubectls.Kubectl, selector: str = "app=echo") -> Object:
    """The one pod that the selector picks, once there is one."""
    processes.eventually(lambda: kubectl.pods(selector), READY_SECONDS, f"there is a pod with {selector}")
    (pod,) = kubectl.pods(selector)
    return pod


def ready_pod(kubectl: kubectls.Kubectl, selector: str = "app=echo") -> Object:
    """The one pod that the selector picks, once it is Ready. Raises as `Kubectl.wait` does."""
    name = created_pod(kubectl, selector)["metadata"]["name"]
    kubectl.wait(f"pod/{name}", "Ready", READY_SECONDS)
    return kubectl.get("pod", name)


def becomes_ready(kubectl: kubectls.Kubectl, pod: Object, ready: bool) -> bool:
    """True once a pod's readiness is as expected. Raises TimeoutError."""
    name = pod["metadata"]["name"]
    is_so: Callable[[], bool] = lambda: kubectls.is_ready(kubectl.get("pod", name)) == ready  # noqa: E731
    processes.eventually(is_so, NOTICED_SECONDS, f"{name} is {'ready' if ready else 'unready'}")
    return True


def change_server(kubectl: kubectls.Kubectl, pod: Object, container: str, words: str) -> None:
    """Runs a line of Python with `state`, the folder by whose files programs/model_server.py is broken and mended."""
    script = f"import pathlib; state = pathlib.Path('/state'); {words}"
    kubectl.run("exec", pod["metadata"]["name"], f"--container={container}", "--", "python", "-c", script)


def containers(pod: Object) -> dict[str, Object]:
    """All containers of a pod by name, init containers too."""
    spec = pod["spec"]
    return {each["name"]: each for each in [*spec.get("initContainers", ()), *spec["containers"]]}


def since(pod: Object, condition: str) -> str:
    """The moment from which a condition of a pod has been as it is."""
    (found,) = [each for each in pod["status"]["conditions"] if each["type"] == condition]
    return str(found["lastTransitionTime"])


def seconds_between(earlier: str, later: str) -> float:
    """Two moments as Kubernetes writes them, in whole seconds."""
    return (datetime.datetime.fromisoformat(later) - datetime.datetime.fromisoformat(earlier)).total_seconds()


def injection(pod: Object) -> Object:
    """What the injector wrote about a pod; {} where it did nothing."""
    found: Object = json.loads(pod["metadata"].get("annotations", {}).get(STATUS, "{}"))
    return found


def takeover(pod: Object) -> tuple[str, bool]:
    """How the sidecar took over the port, and whether it is a native one. Raises KeyError where there is none."""
    return injection(pod)["takeover"], injection(pod)["native"]


# --- calls -----------------------------------------------------------------------------------------------------------


def expose(kubectl: kubectls.Kubectl, ingress: str, service: str = "echo") -> traffic.Caller:
    """Makes an Ingress for a Service on port 80. Returns a caller once it gets answers through it."""
    kubectl.apply([objects.way_in(service, kubectl.namespace)])
    return settled(traffic.Caller(ingress, objects.host(service, kubectl.namespace)))


def inference_service(kubectl: kubectls.Kubectl, ingress: str, name: str = "echo") -> traffic.Caller:
    """A caller of an InferenceService that is Ready, by the Ingress that KServe made for it."""
    kubectl.wait(f"inferenceservice/{name}", "Ready", READY_SECONDS)
    url = kubectl.get("inferenceservice", name)["status"]["url"]
    return settled(traffic.Caller(ingress, url.partition("://")[2]))


def settled(caller: traffic.Caller) -> traffic.Caller:
    """Returns the caller once it gets answers."""
    body = {"instances": ["is anybody there?"]}
    is_answered: Callable[[], bool] = lambda: caller.post(PREDICT, body).status == 200  # noqa: E731
    processes.eventually(is_answered, ROUTED_SECONDS, f"{caller.host} answers through the ingress")
    return caller


def call_together(caller: traffic.Caller, callers: int = CALLERS) -> Together:
    """Sends calls at once, with two unique instances each."""
    asked = [[f"caller {at}", str(uuid.uuid4())] for at in range(callers)]
    answers = caller.gather(PREDICT, [{"instances": instances} for instances in asked])
    bodies = [answer.json if answer.status == 200 else {} for answer in answers]
    own = [body.get("predictions") for body in bodies] == asked
    batches = {body["batchId"] for body in bodies if "batchId" in body}
    return Together(frozenset(answer.status for answer in answers), own, len(batches))


def call_pod(kubectl: kubectls.Kubectl, pod: Object, port: int) -> Object:
    """The answer of a pod's port to one call, by the API server: past Services and the ingress."""
    body = json.dumps({"instances": ["alone"]})
    command = ("create", f"--raw={kubectl.path_to(pod['metadata']['name'], port, PREDICT)}", "--filename=-")
    answer: Object = json.loads(kubectl.run(*command, stdin=body).output)
    return answer


def ask_pod(kubectl: kubectls.Kubectl, pod: Object, port: int, path: str) -> Object:
    """The answer of a pod's port to a GET, likewise."""
    answer: Object = json.loads(kubectl.raw(kubectl.path_to(pod["metadata"]["name"], port, path)))
    return answer


# --- Objects that were there before ----------------------------------------------------------------------------------


def version(kubectl: kubectls.Kubectl, kind: str, name: str) -> str:
    """The object's resource version, which every write changes."""
    found: Any = kubectl.get(kind, name)["metadata"]["resourceVersion"]
    return str(found)


def writers(kubectl: kubectls.Kubectl, kind: str, name: str) -> set[str]:
    """The programs that have written an object."""
    found = json.loads(kubectl.run("get", kind, name, "--output=json", "--show-managed-fields").output)
    return {entry["manager"] for entry in found["metadata"]["managedFields"]}
