"""Pods that mode policy takes, and pods that it leaves alone, by what is special about each.

They are tried in CEL's own runtime (`test_policy_mode`) and on a real API server (`e2e/charts/test_policy.py`).
"""

from __future__ import annotations

from typing import Any

from tests.injector import pods

Object = dict[str, Any]

ASKS = {"carpool.dev/takeover": "named-port", "carpool.dev/port": "http"}


def probe(action: Object, **members: Any) -> Object:
    """A probe with some more in it than it needs."""
    return {**action, "periodSeconds": 7, **members}


PATH = {"path": "/healthz?full=1&x=a%20b"}
NAMED, NUMBERED = ({"httpGet": {**PATH, "port": port}} for port in ("http", 8000))
HTTP = {"name": "http", "containerPort": 8000}


def app(**members: Any) -> Object:
    """A model server of somebody's own: its port has a name, and the kubelet asks it there whether it is ready."""
    usual: Object = {"name": "app", "image": "ghcr.io/acme/scorer:2.3", "ports": [HTTP], "readinessProbe": NAMED}
    return {key: value for key, value in {**usual, **members}.items() if value is not None}


def settings(**given: str) -> dict[str, str]:
    """Annotations that say what is needed, and these settings."""
    return ASKS | {f"carpool.dev/{key.replace('_', '-')}": value for key, value in given.items()}


def asking(*containers: Object, annotations: dict[str, str] = ASKS, **members: Any) -> Object:
    """A pod that asks for the sidecar, and says how."""
    return pods.plain(*(containers or (app(),)), annotations=annotations, **members)


def variable(name: str, value: str) -> Object:
    """A pod whose app has this variable."""
    return asking(app(env=[{"name": name, "value": value}]))


def words(*given: str) -> Object:
    """A pod whose app is started with these words."""
    return asking(app(command=list(given)))


_GUARANTEED = {"limits": {"cpu": "2", "memory": "4Gi"}}
_HELPER = {"name": "cache", "image": "redis:7", "ports": [{"name": "redis", "containerPort": 6379}]}
_LOGIN = {
    "name": "login",
    "image": "quay.io/oauth2-proxy/oauth2-proxy:v7.9",
    "args": ["--upstream=http://127.0.0.1:8000"],
}
_SETTINGS = {
    "max-batch-size": "64", "max-latency": "2.5", "timeout": "30", "policy": "window", "slo": "100",
    "max-in-flight": "3", "max-batch-bytes": "0", "small-batch-threshold": "4", "priority-ageing": "100",
    "max-queue-instances": "512", "kserve-errors": "true", "server-timing": "false", "keep-alive": "75",
    "head-timeout": "10", "max-connections": "99", "connect-timeout": "3", "unknown-models": "pass",
    "predictor-health-path": "/v2/health/ready", "log-level": "info", "log-format": "json",
}  # fmt: skip
_OTHER = {"name": "metrics", "containerPort": 8001}

DONE: dict[str, Object] = {
    "plain": asking(),
    "by the port's number": asking(annotations=settings(port="8000")),
    "with another port": asking(app(ports=[_OTHER, HTTP])),
    "with a port of another protocol": asking(app(ports=[{**_OTHER, "protocol": "UDP"}, HTTP])),
    "with all probes": asking(app(livenessProbe=probe(NAMED), startupProbe=probe(NAMED, timeoutSeconds=9))),
    "with probes by number": asking(app(readinessProbe=probe(NUMBERED, timeoutSeconds=9), livenessProbe=NUMBERED)),
    "with a probe of no path": asking(app(readinessProbe={"httpGet": {"port": "http"}})),
    "with a command as probe": asking(app(livenessProbe=probe({"exec": {"command": ["true"]}}))),
    "with hooks": asking(app(lifecycle={"postStart": NAMED, "preStop": {"exec": {"command": ["sleep", "5"]}}})),
    "with a hook": asking(app(lifecycle={"postStart": NUMBERED})),
    "with other init containers": asking(initContainers=[{"name": "fetch", "image": "busybox", "command": ["cp"]}]),
    "with volumes": asking(volumes=[{"name": "models", "emptyDir": {}}]),
    "with pull secrets": asking(imagePullSecrets=[{"name": "own"}]),
    "with the admin's pull secret": asking(imagePullSecrets=[{"name": "registry"}]),
    "with more time": asking(terminationGracePeriodSeconds=300),
    "with little time": asking(terminationGracePeriodSeconds=20),
    "guaranteed": asking(app(resources=_GUARANTEED)),
    "guaranteed in other words": asking(
        app(resources={**_GUARANTEED, "requests": {"cpu": "2000m", "memory": "4096Mi"}})
    ),
    "burstable": asking(app(resources={**_GUARANTEED, "requests": {"cpu": "1500m", "memory": "4Gi"}})),
    "a job's": asking(restartPolicy="Never"),
    "with all settings": asking(annotations=settings(**{key.replace("-", "_"): _SETTINGS[key] for key in _SETTINGS})),
    "with annotations of others": asking(annotations={**ASKS, "prometheus.io/port": "8000"}),
    # What expressions may cost is limited.
    "with a long annotation": asking(annotations={**ASKS, "example.com/note": "x" * 200_000}),
    "with many variables": asking(app(env=[{"name": f"FEATURE_{n}", "value": "x" * 100} for n in range(1000)])),
    "with many words": asking(app(args=[f"--feature-{number}=on" for number in range(1000)])),
    "a server with words": asking(app(command=["uvicorn"], args=["main:app", "--host=0.0.0.0", "--port=8000"])),
    "a server with words apart": words("python", "-m", "uvicorn", "main:app", "--host", "0.0.0.0", "--port", "8000"),
    # It listens on loopback if not told otherwise, and the kubelet finds it on the pod's address: it is told.
    "a server that is told where by its image": words("gunicorn", "main:app", "-w", "4"),
    "with variables": variable("DATABASE_HOST", "db.example"),
    # Names that mean KServe's agent and Knative's proxy in pods of theirs mean nothing here.
    "with the name of KServe's agent": asking(app(name="agent")),
    "with the name of KServe's agent, and words": asking(app(name="agent", command=["uvicorn", "main:app"])),
    "with a host's port": asking(app(ports=[{**HTTP, "hostPort": 8000}])),
    "for Linux": asking(os={"name": "linux"}, nodeSelector={"kubernetes.io/os": "linux"}),
}  # fmt: skip
# What the webhook decides by more than a policy can know, or refuses: such a pod is left as it is.
LEFT: dict[str, Object] = {
    "does not ask": asking(labels={"carpool.dev/inject": "false"}),
    "asks by annotation": asking(labels={}, annotations={**ASKS, **pods.OPT_IN}),
    "does not say how": asking(annotations={"carpool.dev/port": "http"}),
    "does not say which port": asking(annotations={"carpool.dev/takeover": "named-port"}),
    "is KServe's": pods.kserve(pods.custom(), annotations=ASKS),
    "has KServe's batcher": asking(annotations={**ASKS, **pods.batched()}),
    "has a status": asking(annotations=settings(status="{}")),
    "has another's setting": asking(annotations=settings(grpc_port="off")),
    "has a setting that is none": asking(annotations=settings(max_batch_size="many")),
    "has a setting that is too long": asking(annotations=settings(max_batch_size="1\n")),
    "has a setting in other words": asking(annotations=settings(max_batch_size="016")),
    "has a window as long as a timeout": asking(annotations=settings(max_latency="1000", timeout="1")),
    "wants an ordinary container": asking(annotations=settings(sidecar_mode="classic")),
    # The port.
    "has no port": asking(app(ports=[])),
    "has a port without a name": asking(app(ports=[{"containerPort": 8000}]), annotations=settings(port="8000")),
    "has another port": asking(annotations=settings(port="8001")),
    "has the port twice": asking(app(ports=[HTTP, {"name": "other", "containerPort": 8000}])),
    "speaks gRPC": asking(app(ports=[{"name": "grpc-web", "containerPort": 8000}]), annotations=settings(port="8000")),
    "speaks TLS": asking(app(ports=[{"name": "web-https", "containerPort": 8000}]), annotations=settings(port="8000")),
    # Whether callers reach it.
    "is not asked whether it is ready": asking(app(readinessProbe=probe({"exec": {"command": ["true"]}}))),
    "has no probe": asking(app(readinessProbe=None)),
    "is asked on another port": asking(
        app(ports=[HTTP, _OTHER], readinessProbe=probe({"httpGet": {"port": "metrics"}}))
    ),
    "is asked by TCP": asking(app(readinessProbe=probe({"tcpSocket": {"port": 8000}}))),
    "is asked on loopback": asking(app(readinessProbe={"httpGet": {"port": "http", "host": "127.0.0.1"}})),
    "is asked by TLS": asking(app(readinessProbe=probe({"httpGet": {"port": 8000, "scheme": "HTTPS"}}))),
    "is asked with headers": asking(
        app(readinessProbe=probe({"httpGet": {"port": 8000, "httpHeaders": [{"name": "a", "value": "b"}]}}))
    ),
    "is asked by gRPC": asking(app(livenessProbe=probe({"grpc": {"port": 8000}}))),
    "is asked by a command for gRPC": asking(
        app(livenessProbe=probe({"exec": {"command": ["/bin/grpc_health_probe", "-addr=:8000"]}}))
    ),
    "has a command with the sidecar's port": asking(
        app(livenessProbe=probe({"exec": {"command": ["curl", "localhost:9081"]}}))
    ),
    "with the name of KServe's agent, has a port of the sidecar's": asking(
        app(name="agent", ports=[HTTP, {"name": "metrics", "containerPort": 9082}])
    ),
    "is behind a login": asking(_LOGIN, app(), annotations=settings(container="app")),
    "has another container": asking(app(), _HELPER, annotations=settings(container="app")),
    "has another container beside it from the start": asking(initContainers=[{**_HELPER, "restartPolicy": "Always"}]),
    "listens for itself": asking(app(args=["--host=127.0.0.1"])),
    "listens for itself in the end": words("uvicorn", "main:app", "--host=0.0.0.0", "--host", "127.0.0.1"),
    "listens for itself by a variable": variable("UVICORN_HOST", "127.0.0.1"),
    "listens for itself by a URL": variable("ASPNETCORE_URLS", "http://localhost:8080"),
    "listens for itself by an endpoint": variable("Kestrel__Endpoints__Web__Url", "http://localhost:8080"),
    "listens on one address": words("uvicorn", "main:app", "--host=$(POD_IP)"),
    "listens on a file": words("gunicorn", "-b", "unix:/run/app.sock", "main:app"),
    "has a certificate": asking(app(args=["--ssl-keyfile=/k"])),
    "has a certificate by a variable": variable("SSL_KEYFILE", "/k"),
    "has a shell's script": words("sh", "-c", "exec uvicorn main:app --host 0.0.0.0"),
    "is Triton": asking(app(command=["tritonserver"])),
    "is MLServer by its image": asking(app(image="docker.io/seldonio/mlserver:1.5.0")),
    # The pod.
    "is on the node's network": asking(app(ports=[{**HTTP, "hostPort": 8000}]), hostNetwork=True),
    "is for Windows": asking(nodeSelector={"kubernetes.io/os": "windows"}),
    "is root's": asking(securityContext={"runAsUser": 0}),
    "has kernel parameters": asking(
        securityContext={"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "20000"}]}
    ),
    "uses the sidecar's port": variable("METRICS_PORT", "9081"),
    "declares the sidecar's port": asking(app(ports=[HTTP, {"name": "metrics", "containerPort": 9082}])),
    "has a port of the sidecar's name": asking(app(ports=[HTTP, {"name": "carpool-app", "containerPort": 8001}])),
    "has no time": asking(terminationGracePeriodSeconds=5),
    "has a container of the name": asking(initContainers=[{"name": "carpool", "image": "busybox"}]),
    "has a volume of the name": asking(volumes=[{"name": "carpool-no-token", "emptyDir": {}}]),
    "is a mesh's gateway": asking(app(name="istio-proxy")),
}  # fmt: skip
