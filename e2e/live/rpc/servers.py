"""A stand-in for Triton in pods, deployed by the manifests that users have, and the counters of it and the sidecar.

Its program has the name and the flags of Triton's. It comes from a ConfigMap, together with the fake v2 server that it
consists of, and runs in the sidecar's image.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from e2e.cluster import kubectl as kubectls
from e2e.live import objects

Object = dict[str, Any]

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "manifests" / "samples"
RUNTIME = Path(__file__).with_name("runtime.yaml")
PROGRAMS = Path(__file__).with_name("programs")
FAKES = ROOT / "tests" / "fakes"
IMAGE = "carpool-sidecar:0.1.0"
FOLDER = "/server"
PROGRAM = f"{FOLDER}/tritonserver"
CALLER = f"{FOLDER}/caller.py"
VOLUME = {"name": "programs", "mountPath": FOLDER, "readOnly": True}
ADMIN_PORT, METRICS_PORT = 9082, 8002
# Which file lies where under FOLDER: the fakes as the package that they are, and what else they import of the tests.
FILES = {
    "tritonserver": PROGRAMS / "tritonserver.py",
    "caller.py": PROGRAMS / "caller.py",
    **{f"tests/fakes/{path.name}": path for path in sorted(FAKES.glob("*.py")) if not path.name.startswith("test_")},
    "tests/protocols/pairs/stand_ins.py": ROOT / "tests" / "protocols" / "pairs" / "stand_ins.py",
}


def programs() -> Object:
    """The ConfigMap with all programs. Its keys may not have slashes."""
    return objects.config_map("programs", {name.replace("/", "-"): path.read_text() for name, path in FILES.items()})


def volume() -> Object:
    """A volume with the programs, executable, with the modules that they import beside them."""
    items = [{"key": name.replace("/", "-"), "path": name} for name in FILES]
    return {"name": "programs", "configMap": {"name": "programs", "defaultMode": 0o555, "items": items}}


def as_stand_in(container: Object) -> Object:
    """A container that would run Triton, with the stand-in instead; its arguments and ports stay as they are."""
    arguments = [word for word in [*container.get("command", ()), *container["args"]] if word != "tritonserver"]
    return {
        **container,
        "image": IMAGE,
        "command": [PROGRAM],
        "args": arguments,
        "volumeMounts": [VOLUME],
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    }


def sample(replicas: int = 1, **annotations: str) -> list[Object]:
    """The sample for Triton, its Deployment and Service, with the stand-in; `annotations` are Carpool's."""
    deployment, service, *_ = kubectls.load(SAMPLES / "triton.yaml")
    deployment["spec"] |= {"replicas": replicas, "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}
    template = deployment["spec"]["template"]
    added = {f"carpool.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    template["metadata"]["annotations"] |= added
    template["spec"] |= {
        "containers": [as_stand_in(each) for each in template["spec"]["containers"]],
        "volumes": [volume()],
    }
    return [programs(), deployment, service]


def inference_service() -> list[Object]:
    """The sample of an InferenceService for gRPC, with KServe's runtime for Triton, and without storage."""
    (runtime,) = kubectls.load(RUNTIME)
    (service,) = kubectls.load(SAMPLES / "inferenceservice-triton-grpc.yaml")
    predictor = service["spec"]["predictor"]
    del predictor["model"]["storageUri"], predictor["model"]["resources"]
    predictor["annotations"]["carpool.dev/max-latency"] = "50"
    (container,) = runtime["spec"]["containers"]
    runtime["spec"] |= {"containers": [as_stand_in(container)], "volumes": [volume()]}
    return [programs(), runtime, service]


def address(kubectl: kubectls.Kubectl, service: str, port: str) -> str:
    """The cluster IP and port of a Service, by the port's name: `host:port`."""
    spec = kubectl.get("service", service)["spec"]
    (number,) = [each["port"] for each in spec["ports"] if each["name"] == port]
    return f"{spec['clusterIP']}:{number}"
