"""Which servers are opened to callers, which stay within their pod, and which speak TLS: nothing private is opened."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from carpool_injector.core import injection, model, pods, servers, sites
from carpool_injector.core.config import Config
from carpool_injector.core.settings import Settings
from carpool_injector.objects import manifests

Object = dict[str, Any]
PROBE = {"httpGet": {"path": "/", "port": 8000}}


def variables(**values: str) -> list[Object]:
    return [{"name": name, "value": value} for name, value in values.items()]


def pod(app: Object, *others: Object, **settings: str) -> Object:
    annotations = {f"carpool.dev/{key.replace('_', '-')}": value for key, value in settings.items()}
    metadata = {"labels": {"app": "notes", "carpool.dev/inject": "true"}, "annotations": annotations}
    containers = [{"name": "app", "image": "acme/notes:1", **app}, *others]
    return {"metadata": metadata, "spec": {"containers": containers}}


def code(app: Object, *others: Object, **settings: str) -> str:
    given = pod(app, *others, **settings)
    outcome = injection.inject(given, Config(), model.Namespace("ml"), model.Capabilities())
    assert outcome.plan is None or outcome.pod != given
    return outcome.refusal.code if outcome.refusal else ""


LOGIN = {
    "name": "login",
    "image": "quay.io/oauth2-proxy/oauth2-proxy:v7.9",
    "args": ["--http-address=0.0.0.0:4180", "--upstream=http://127.0.0.1:8000"],
    "ports": [{"name": "http", "containerPort": 4180}],
}

WITHIN_THE_POD = {
    "uvicorn": {"command": ["uvicorn", "notes:app"]},
    "uvicorn, declared": {"command": ["uvicorn", "notes:app"], "ports": [{"name": "http", "containerPort": 8000}]},
    "as a module": {"command": ["python", "-m", "uvicorn", "notes:app"]},
    "under a launcher": {"command": ["tini", "--", "uv", "run", "uvicorn", "notes:app"]},
    "in a shell": {"command": ["sh", "-c", "exec uvicorn notes:app --port $PORT"], "env": variables(PORT="8000"),
                   "ports": [{"containerPort": 8000}]},
    "in a shell with its variable": {"command": ["sh", "-c", "cd /srv && UVICORN_HOST=localhost uvicorn notes:app"],
                                     "ports": [{"name": "http", "containerPort": 8000}]},
    "by a variable": {"command": ["uvicorn", "a:b"], "env": variables(UVICORN_HOST="127.0.0.1")},
    "by a variable in a flag": {"command": ["uvicorn", "a:b", "--host=$(HOST)"], "env": variables(HOST="localhost")},
    "the last flag counts": {"command": ["uvicorn", "a:b", "--host=0.0.0.0", "--host", "127.0.0.1"]},
    "the flag counts": {"command": ["uvicorn", "a:b", "--host=::1"], "env": variables(UVICORN_HOST="0.0.0.0")},
    "IPv6": {"command": ["gunicorn", "a:b", "-b", "[::1]:8000"], "ports": [{"containerPort": 8000}]},
    "joined": {"command": ["gunicorn", "a:b", "-b127.0.0.1:8000"], "ports": [{"containerPort": 8000}]},
    "a socket": {"command": ["uvicorn", "a:b", "--uds=/run/app"], "ports": [{"name": "http", "containerPort": 8000}]},
    "another socket": {"command": ["gunicorn", "--bind=unix:/run/app", "a:b"], "ports": [{"containerPort": 8000}]},
    "gunicorn": {"command": ["gunicorn", "a:b"], "ports": [{"name": "http", "containerPort": 8000}]},
    "gunicorn's variable": {"command": ["gunicorn", "a:b"], "env": variables(GUNICORN_CMD_ARGS="-b 127.0.0.1:8000"),
                            "ports": [{"name": "http", "containerPort": 8000}]},
    "hypercorn": {"command": ["hypercorn", "a:b"], "ports": [{"name": "http", "containerPort": 8000}]},
    "granian": {"command": ["granian", "a:b"]},
    "daphne": {"command": ["daphne", "-p", "8000", "a:b"]},
    "fastapi dev": {"command": ["fastapi", "dev", "main.py"]},
    "flask": {"command": ["flask", "--app", "notes", "run"]},
    "flask's variable": {"command": ["flask", "run"], "env": variables(FLASK_RUN_HOST="127.0.0.1")},
    "django": {"command": ["python", "manage.py", "runserver", "8000"],
               "ports": [{"name": "http", "containerPort": 8000}]},
    "sanic": {"command": ["sanic", "notes.app"]},
    "litestar": {"command": ["litestar", "--app", "notes:app", "run"]},
    "mlflow": {"command": ["mlflow", "models", "serve", "-m", "/m"]},
    "ollama": {"command": ["ollama", "serve"], "ports": [{"name": "http", "containerPort": 11434}]},
    "llama.cpp": {"command": ["/app/llama-server", "-m", "/m"]},
    "sglang": {"command": ["python3", "-m", "sglang.launch_server"]},
    "torchserve": {"command": ["torchserve", "--start"], "ports": [{"name": "http", "containerPort": 8080}]},
    "triton": {"command": ["tritonserver", "--http-address=127.0.0.1"]},
    "mlserver": {"command": ["mlserver", "start", "."],
                 "env": variables(MLSERVER_HTTP_PORT="8080", MLSERVER_HOST="::1")},
    "vllm": {"command": ["vllm", "serve", "m", "--host", "localhost"]},
    "tgi": {"command": ["text-generation-launcher"], "env": variables(HOSTNAME="127.0.0.1")},
    "bentoml": {"command": ["bentoml", "serve", "--host=127.0.0.1"]},
    "gradio": {"command": ["python", "app.py"], "env": variables(GRADIO_SERVER_PORT="7860"),
               "ports": [{"name": "http", "containerPort": 7860}]},
    "streamlit": {"command": ["streamlit", "run", "a.py"], "env": variables(STREAMLIT_SERVER_ADDRESS="127.0.0.1")},
    "vite": {"command": ["npx", "vite", "preview"]},
    "next": {"command": ["next", "start", "-H", "127.0.0.1"]},
    "spring": {"command": ["java", "-jar", "a.jar"], "env": variables(SERVER_PORT="8080", SERVER_ADDRESS="127.0.0.1"),
               "ports": [{"containerPort": 8080}]},
    "spring, by the JVM's options": {
        "command": ["java", "-jar", "a.jar"],
        "env": variables(SERVER_PORT="8080", JAVA_TOOL_OPTIONS="-Xmx1g -Dserver.address=127.0.0.1"),
        "ports": [{"containerPort": 8080}],
    },
    "a program nobody knows": {"command": ["/notes", "--listen-address=127.0.0.1:8000"],
                               "ports": [{"name": "http", "containerPort": 8000}]},
    "a flag of Go's": {"command": ["/notes", "-listen", "localhost:8000"],
                       "ports": [{"name": "http", "containerPort": 8000}]},
    "a flag of its own": {"command": ["/notes", "--serve-on=127.0.0.1:8000"],
                          "ports": [{"name": "http", "containerPort": 8000}]},
    "its variable": {"command": ["/notes"], "env": variables(LISTEN_ADDR="127.0.0.1:8000"),
                     "ports": [{"name": "http", "containerPort": 8000}]},
    "its host": {"command": ["/notes"], "env": variables(HOST="127.0.0.1", PORT="8000"),
                 "ports": [{"containerPort": 8000}]},
}  # fmt: skip


@pytest.mark.parametrize("name", WITHIN_THE_POD)
def test_a_server_that_listens_within_the_pod_only_is_not_opened(name: str) -> None:
    assert code(WITHIN_THE_POD[name]) == "loopback-only"
    assert code(WITHIN_THE_POD[name], LOGIN) == "loopback-only"


TOLD_TO_ALL = {
    "uvicorn": {"command": ["uvicorn", "a:b", "--host", "0.0.0.0"]},
    "uvicorn's variable": {"command": ["uvicorn", "a:b"], "env": variables(UVICORN_HOST="::")},
    "gunicorn": {"command": ["gunicorn", "a:b", "-b", ":8000"]},
    "gunicorn by PORT": {"command": ["gunicorn", "a:b"], "env": variables(PORT="8000"),
                         "ports": [{"containerPort": 8000}]},
    "hypercorn": {"command": ["hypercorn", "a:b", "-b0.0.0.0:8000"]},
    "fastapi run": {"command": ["fastapi", "run", "main.py"]},
    "waitress": {"command": ["waitress-serve", "a:b"]},
    "flask": {"command": ["flask", "run", "-h", "0.0.0.0"]},
    "mlflow": {"command": ["mlflow", "models", "serve", "-h", "0.0.0.0"]},
    "ollama": {"command": ["ollama", "serve"], "env": variables(OLLAMA_HOST="0.0.0.0:11434")},
    "triton": {"command": ["tritonserver"]},
    "vllm": {"command": ["vllm", "serve", "m"]},
    "tgi": {"command": ["text-generation-launcher", "--hostname", "the-pods-name"]},
    "bentoml": {"command": ["bentoml", "serve"]},
    "vite": {"command": ["vite", "preview", "--host", "--port", "4173"]},
    "spring": {"command": ["java", "-jar", "a.jar"], "env": variables(SERVER_PORT="8080"),
               "ports": [{"containerPort": 8080}]},
    "in a shell": {"command": ["sh", "-c", "uvicorn a:b --host 0.0.0.0 --port ${PORT}"],
                   "env": variables(PORT="8000"), "ports": [{"containerPort": 8000}]},
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD_TO_ALL)
def test_a_server_that_listens_to_everybody_gets_the_sidecar(name: str) -> None:
    assert code(TOLD_TO_ALL[name]) == ""


NAMED = {"ports": [{"name": "http", "containerPort": 8000}]}


def shell(text: str, *parameters: str) -> Object:
    return {"command": ["sh", "-c", text, *parameters], **NAMED}


LAUNCHED = {
    "timeout": ["timeout", "-k", "5", "1h"],
    "gosu": ["gosu", "app"],
    "su-exec": ["/sbin/su-exec", "app:app"],
    "nice": ["nice", "-n", "5"],
    "env without a variable": ["env", "-u", "X"],
    "stdbuf": ["stdbuf", "-oL"],
    "numactl": ["numactl", "--membind=0"],
    "taskset": ["taskset", "-c", "0-3"],
    "strace": ["strace", "-f", "-e", "trace=network"],
    "uv": ["uv", "run", "--with", "x", "--"],
    "uvx": ["uvx", "--from", "uvicorn[standard]"],
    "pipx": ["pipx", "run"],
    "conda": ["conda", "run", "--no-capture-output", "-n", "e"],
    "several": ["tini", "-g", "--", "gosu", "app", "env", "A=b"],
    "an option of Python's": ["python", "-X", "importtime", "-m"],
    "another option of Python's": ["python", "-W", "ignore", "-um"],
    "a script": ["/entrypoint.sh"],
    "a shell and a script": ["bash", "-eu", "/entry.sh"],
    "a shell within a script": ["/entrypoint.sh", "sh", "-c", 'exec "$@"', "--"],
    "a launcher nobody knows": ["/entrypoint"],
    "another one": ["start-with", "--retries", "3", "--"],
    "env with nothing else": ["env", "-i"],
    "words of a shell": ["sh", "-c", 'cd /srv; exec "$@"', "--"],
    "a program and its words": ["sh", "-c", 'exec "$0" "$@"'],
}


@pytest.mark.parametrize("name", LAUNCHED)
def test_who_starts_a_server_does_not_matter_for_where_it_listens(name: str) -> None:
    untold = [*LAUNCHED[name], "uvicorn", "a:b", "--port", "8000"]
    assert code({"command": untold, **NAMED}) == "loopback-only"
    assert code({"command": untold[:1], "args": untold[1:], **NAMED}) == "loopback-only"
    assert code({"command": untold, **NAMED, "readinessProbe": PROBE}) == ""
    assert code({"command": [*untold, "--host", "0.0.0.0"], **NAMED}) == ""
    assert code({"command": [*untold, "--host", "127.0.0.1"], **NAMED}) == "loopback-only"


@pytest.mark.parametrize(
    "words",
    [
        ["-muvicorn", "a:b"],
        ["-c", "import uvicorn; uvicorn.run('a:b')"],
        ["-m", "debugpy", "--listen", "0.0.0.0:5678", "-m", "uvicorn", "a:b"],
    ],
)
def test_a_server_that_python_starts_in_another_way_is_not_opened(words: list[str]) -> None:
    assert code({"command": ["python", *words], **NAMED}) == "loopback-only"


@pytest.mark.parametrize("text", ["flask run", "mlflow models serve", "python manage.py runserver"])
def test_a_server_of_several_words_is_seen_behind_a_script(text: str) -> None:
    server = text.split()
    assert code({"command": ["/docker-entrypoint.sh"], "args": server, **NAMED}) == "loopback-only"
    told = ["0.0.0.0:8000"] if "runserver" in server else ["--host", "0.0.0.0", "--port=8000"]
    assert code({"command": ["/docker-entrypoint.sh"], "args": [*server, *told], **NAMED}) == ""


@pytest.mark.parametrize(
    ("text", "is_opened"),
    [
        ("if true; then exec uvicorn a:b --port 8000; fi", False),
        ("if true; then exec uvicorn a:b --host 0.0.0.0; fi", True),
        ("while true; do uvicorn a:b; done", False),
        ("time uvicorn a:b", False),
        ("set -e\nexec uvicorn a:b 2>&1", False),
        ('case "$1" in web) exec uvicorn a:b;; esac', False),
        ("bash -lc 'exec uvicorn a:b'", False),
        ("bash -lc 'exec uvicorn a:b --host 0.0.0.0'", True),
        ("pip install uvicorn && python app.py", True),
        ("command -v uvicorn && exec /notes", True),
        ("bash -c 'pip install uvicorn && exec /notes'", True),
        ("export UVICORN_HOST=0.0.0.0; exec uvicorn a:b", True),
        ("UVICORN_HOST=0.0.0.0; exec uvicorn a:b", False),
        ("UVICORN_HOST=0.0.0.0; export UVICORN_HOST; exec uvicorn a:b", True),
        ("export UVICORN_HOST=127.0.0.1; exec uvicorn a:b", False),
        ("export UVICORN_HOST=${WHERE:-0.0.0.0} && exec uvicorn a:b", True),
        ("if [ -n $X ]; then export UVICORN_HOST=0.0.0.0; fi; exec uvicorn a:b", False),
        ("[ -n $X ] && export UVICORN_HOST=0.0.0.0; exec uvicorn a:b", False),
        ("[ -n $X ] && export A=b && export UVICORN_HOST=0.0.0.0; exec uvicorn a:b", False),
        ("HOST=0.0.0.0; uvicorn a:b --host $HOST", True),
        ("HOST=127.0.0.1\nuvicorn a:b --host ${HOST}", False),
        ("OPTS='--host 0.0.0.0 --port 8000'; uvicorn a:b $OPTS", True),
        ("CMD=uvicorn; $CMD a:b", False),
        ("exec /notes --listen 127.0.0.1:8000", False),
        ("export HOST=127.0.0.1; exec node server.js", False),
        ("HOST=127.0.0.1 node server.js", False),
        ("redis-server --bind 127.0.0.1 & exec /notes", True),
        ("exec /notes --address localhost:6379", True),
    ],
)
def test_a_shells_text_tells_what_its_programs_are_told(text: str, is_opened: bool) -> None:
    assert code(shell(text)) == ("" if is_opened else "loopback-only")


@pytest.mark.parametrize(
    "given",
    [
        shell("A=0123456789; " + "A=$A$A; " * 40 + "exec uvicorn a:b --host $A"),
        shell("exec uvicorn a:b --host " + "$@" * 20_000, *["x" * 100] * 2000),
    ],
)
def test_a_text_that_would_grow_without_bounds_is_not_written_out(given: Object) -> None:
    tracemalloc.start()
    assert code({**given, **NAMED}) == "loopback-only"
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 64 * 2**20


@pytest.mark.parametrize(
    "given",
    [
        {"command": ["/notes", "-addr", "localhost:6379"]},
        {"command": ["python", "app.py", "--address=localhost:50051"]},
        {"command": ["/notes", "--web.listen-address=127.0.0.1:9100"]},
        {"command": ["/notes", "--host", "localhost", "--port", "5432"]},
        {"env": variables(METRICS_BIND_ADDRESS="127.0.0.1:9100")},
        {"env": variables(PPROF_LISTEN_ADDR="localhost:6060")},
        {"env": variables(API_HOST="localhost", API_PORT="9000")},
        {"env": variables(HTTP_BIND_HOST="localhost", HTTP_BIND_PORT="9000")},
        {"command": ["/notes", "--listen=0.0.0.0:8000"], "env": variables(HOST="localhost", SELF="127.0.0.1:8000")},
        {"command": ["/notes", "--host", "localhost", "--serve-on", ":8000"]},
        {"command": ["/notes", "--host", "0.0.0.0"], "env": variables(API_HOST="localhost")},
        {"env": variables(HTTP_HOST="localhost", LISTEN_ADDR="[::]:8000")},
    ],
)
def test_an_address_of_another_port_says_nothing_nor_does_one_beside_a_plain_answer(given: Object) -> None:
    assert code({**NAMED, **given}) == ""


@pytest.mark.parametrize(
    "given",
    [
        {"env": variables(API_HOST="localhost")},
        {"env": variables(SERVICE_HOST="127.0.0.1")},
        {"env": variables(HTTP_HOST="localhost")},
        {"env": variables(SELF="127.0.0.1:8000")},
        {"command": ["/notes", "--address=127.0.0.1:8000"]},
        {"command": ["/notes", "--ip", "127.0.0.1"]},
        {"command": ["/notes", "--host", "0.0.0.0", "--serve-on", "127.0.0.1:8000"]},
        shell("/notes --host localhost"),
        {"command": ["/entrypoint", "gunicorn", "a:b"]},
    ],
)
def test_what_speaks_against_a_program_that_nobody_knows_is_outweighed_by_proof(given: Object) -> None:
    assert code({**NAMED, **given}) == "loopback-only"
    assert code({**NAMED, **given, "readinessProbe": PROBE}) == ""
    assert code({**given, "ports": [{"name": "http", "containerPort": 8000, "hostPort": 8000}]}) == ""
    _, report = manifests.inject(deployment({**NAMED, **given}), manifests.Injector(around=[service("http")]))
    assert report is not None
    assert report.result == "injected"


def test_what_env_sets_counts_more_than_the_containers_variables() -> None:
    private = ["env", "UVICORN_HOST=127.0.0.1", "uvicorn", "a:b", "--port", "8000"]
    assert code({"command": private, "env": variables(UVICORN_HOST="0.0.0.0")}) == "loopback-only"
    assert code({"command": ["env", "UVICORN_HOST=0.0.0.0", "uvicorn", "a:b"]}) == ""
    for options in (["-u", "UVICORN_HOST"], ["-uUVICORN_HOST"], ["--unset=UVICORN_HOST"], ["-i"], ["-"]):
        without = ["env", *options, "uvicorn", "a:b", "--port=8000"]
        assert code({"command": without, "env": variables(UVICORN_HOST="0.0.0.0"), **NAMED}) == "loopback-only"
    assert code({"command": ["env", "UVICORN_HOST=0.0.0.0", "sh", "-c", "exec uvicorn a:b"], **NAMED}) == ""
    assert code({"command": ["env", "UVICORN_SSL_KEYFILE=/k", "uvicorn", "a:b", "--host=::"]}) == "tls"
    assert code(shell("export UVICORN_SSL_KEYFILE=/k; uvicorn a:b --host ::")) == "tls"


@pytest.mark.parametrize("program", [["gunicorn", "a:b"], ["node", "s.js"]])
def test_a_port_that_the_command_line_sets_is_not_changed_by_the_containers_variable(program: list[str]) -> None:
    app = {"env": variables(PORT="8000"), "ports": [{"containerPort": 8000}], "readinessProbe": PROBE}
    assert code({"command": program, **app}) == ""
    assert code({"command": ["env", "PORT=8000", *program], **app}) == "no-takeover"


UNKNOWN = {
    "gunicorn's file": {"command": ["gunicorn", "-c", "gunicorn.conf.py", "a:b"], "env": variables(PORT="8000"),
                        "ports": [{"containerPort": 8000}]},
    "joined": {"command": ["gunicorn", "-cgunicorn.conf.py", "a:b"], "env": variables(PORT="8000"),
               "ports": [{"containerPort": 8000}]},
    "gunicorn's file in its variable": {
        "command": ["gunicorn", "a:b"], "env": variables(PORT="8000", GUNICORN_CMD_ARGS="-c gunicorn.conf.py"),
        "ports": [{"containerPort": 8000}],
    },
    "hypercorn's file": {"command": ["hypercorn", "--config=file:hypercorn.py", "a:b"],
                         "ports": [{"containerPort": 8000}]},
    "a variable from elsewhere": {
        "command": ["uvicorn", "a:b"],
        "env": [{"name": "UVICORN_HOST", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "host"}}}],
    },
    "a variable in a flag": {"command": ["uvicorn", "a:b", "--host=$(WHERE)"]},
    "gunicorn's flags from elsewhere": {
        "command": ["gunicorn", "a:b"],
        "env": [{"name": "GUNICORN_CMD_ARGS", "valueFrom": {"secretKeyRef": {"name": "c", "key": "args"}}}],
        "ports": [{"containerPort": 8000}],
    },
    "torchserve's file": {"command": ["torchserve", "--ts-config", "/c"], "ports": [{"containerPort": 8080}]},
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_where_nobody_can_know_who_reaches_a_server_it_is_not_opened(name: str) -> None:
    assert code(UNKNOWN[name]) == "loopback-only"


def test_a_probe_of_the_kubelet_shows_that_callers_reach_a_server() -> None:
    assert code({"command": ["uvicorn", "a:b"], "readinessProbe": PROBE}) == ""
    by_name = {"ports": [{"name": "api", "containerPort": 8000}], "livenessProbe": {"tcpSocket": {"port": "api"}}}
    assert code({"command": ["uvicorn", "a:b"], **by_name}) == ""


@pytest.mark.parametrize(
    "probe",
    [
        {"httpGet": {"path": "/", "port": 9000}},
        {"httpGet": {"path": "/", "port": 8000, "host": "elsewhere"}},
        {"httpGet": {"path": "/", "port": 8000, "host": "127.0.0.1"}},
        {"exec": {"command": ["curl", "http://localhost:8000/"]}},
    ],
)
def test_a_probe_of_something_else_or_from_within_shows_nothing(probe: Object) -> None:
    assert code({"command": ["uvicorn", "a:b"], "readinessProbe": probe}) == "loopback-only"


def test_no_probe_speaks_against_what_the_manifest_says() -> None:
    assert code({"command": ["/notes", "--host=127.0.0.1"], **NAMED, "readinessProbe": PROBE}) == "loopback-only"
    assert code({"command": ["uvicorn", "a:b", "--host=127.0.0.1"], "readinessProbe": PROBE}) == "loopback-only"


def test_a_port_of_the_node_shows_that_callers_reach_a_server() -> None:
    assert code({"command": ["uvicorn", "a:b"], "ports": [{"containerPort": 8000, "hostPort": 80}]}) == ""


def test_an_app_that_nobody_knows_is_not_taken_from_behind_a_login() -> None:
    app = {"command": ["/notes"], "ports": [{"name": "api", "containerPort": 8000}]}
    assert code(app) == ""
    assert code(app, LOGIN) == "loopback-only"
    assert code({**app, "readinessProbe": PROBE}, LOGIN) == ""
    assert (
        code(app, {"name": "front", "image": "acme/front", "args": ["--to", "http://localhost:8000"]})
        == "loopback-only"
    )
    assert code(app, {"name": "front", "env": variables(UPSTREAM="http://127.0.0.1:8000")}) == "loopback-only"
    assert code({"command": ["/notes"]}, LOGIN) == "no-port"
    assert code(app, {"name": "front", "image": "nginx:1.27", "ports": [{"containerPort": 80}]}) == "loopback-only"


def test_a_proxy_that_is_a_native_sidecar_stands_in_front_as_well() -> None:
    given = pod({"command": ["/notes"], "ports": [{"name": "api", "containerPort": 8000}]})
    given["spec"]["initContainers"] = [{**LOGIN, "restartPolicy": "Always"}]
    outcome = injection.inject(given, Config(), model.Namespace("ml"), model.Capabilities())
    assert outcome.refusal is not None
    assert outcome.refusal.code == "loopback-only"


def test_the_container_that_callers_reach_may_be_named() -> None:
    assert code({"command": ["uvicorn", "notes:app"]}, LOGIN, container="login", takeover="named-port") == ""


@pytest.mark.parametrize(
    "container",
    [
        {"command": ["uvicorn", "a:b", "--host=10.0.0.7"]},
        {
            "command": ["uvicorn", "a:b", "--host", "$(POD_IP)"],
            "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "readinessProbe": PROBE,
        },
    ],
)
def test_a_server_on_one_address_only_is_not_reached_by_a_sidecar(container: Object) -> None:
    assert code(container) == "one-address"


TLS = {
    "uvicorn's variable": {"command": ["uvicorn", "a:b", "--host=::"], "env": variables(UVICORN_SSL_KEYFILE="/k")},
    "gunicorn's flags": {"command": ["gunicorn", "-b", ":8000"], "env": variables(GUNICORN_CMD_ARGS="--certfile=/c")},
    "hypercorn": {"command": ["hypercorn", "-b", ":8000", "--certfile", "/c", "--keyfile=/k"]},
    "flask": {"command": ["flask", "run", "-h", "::", "--cert=adhoc"]},
    "flask's variable": {"command": ["flask", "run", "-h", "::"], "env": variables(FLASK_RUN_CERT="adhoc")},
    "bentoml": {"command": ["bentoml", "serve", "--ssl-certfile", "/c"]},
    "vllm": {"command": ["vllm", "serve", "m", "--ssl_keyfile=/k"]},
    "llama.cpp": {"command": ["llama-server", "--host", "::"], "env": variables(LLAMA_ARG_SSL_KEY_FILE="/k")},
    "http-server": {"command": ["http-server", "-S", "-p", "8080"]},
    "a program nobody knows": {"command": ["/own", "--tls-private-key-file=/k"],
                               "ports": [{"name": "http", "containerPort": 8000}]},
    "its variable": {"env": variables(SERVER_TLS_KEY_FILE="/k"), "ports": [{"name": "http", "containerPort": 8000}]},
    "its address": {"env": variables(ASPNETCORE_URLS="https://+:8000"),
                    "ports": [{"name": "http", "containerPort": 8000}]},
    "in a shell": {"command": ["sh", "-c", "uvicorn a:b --host :: --ssl-keyfile=/k"],
                   "ports": [{"name": "http", "containerPort": 8000}]},
    "spring": {"command": ["java", "-jar", "a"], "env": variables(SERVER_PORT="8443", SERVER_SSL_KEY_STORE="/k"),
               "ports": [{"containerPort": 8443}]},
}  # fmt: skip


@pytest.mark.parametrize("name", TLS)
def test_a_server_that_is_told_to_speak_tls_is_left_alone(name: str) -> None:
    assert code(TLS[name]) == "tls"


def test_tls_that_is_switched_off_is_none() -> None:
    assert code({"command": ["sanic", "a", "-H", "::", "--tls=false"]}) == ""
    assert code({"command": ["uvicorn", "a:b", "--host=::"], "env": variables(UVICORN_SSL_KEYFILE="")}) == ""


def deployment(container: Object) -> Object:
    given = pod(container)
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "notes"}, "spec": {"template": given}}


def service(port: int | str, **selector: str) -> Object:
    spec = {"selector": selector or {"app": "notes"}, "ports": [{"port": 80, "targetPort": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "notes"}, "spec": spec}


def test_a_service_of_the_same_files_shows_that_callers_reach_a_server() -> None:
    server = {"command": ["uvicorn", "a:b"], "ports": [{"name": "web", "containerPort": 8000}]}
    for target in (8000, "web"):
        after, report = manifests.inject(deployment(server), manifests.Injector(around=[service(target)]))
        assert report is not None
        assert report.result == "injected"
    given = after["spec"]["template"]
    again = injection.inject(given, Config(), model.Namespace("ml"), model.Capabilities())
    assert (again.result, again.patch) == ("injected", []), "the webhook, which sees no Services, believes the status"
    for other in (service(9000), service(8000, app="other")):
        _, report = manifests.inject(deployment(server), manifests.Injector(around=[other]))
        assert report is not None
        assert report.result == "refused"


def test_a_service_by_a_name_that_another_container_has_first_shows_nothing() -> None:
    server = {"command": ["uvicorn", "a:b"], "ports": [{"name": "http", "containerPort": 8000}]}
    thing = deployment(server)
    thing["spec"]["template"]["spec"]["containers"].insert(0, LOGIN)
    _, report = manifests.inject(thing, manifests.Injector(around=[service("http")]))
    assert report is not None
    assert report.result == "refused"


def test_what_a_status_says_of_another_port_shows_nothing() -> None:
    server = {"command": ["uvicorn", "a:b"], "ports": [{"name": "web", "containerPort": 8000}]}
    after, _ = manifests.inject(deployment(server), manifests.Injector(around=[service(8000)]))
    given = after["spec"]["template"]
    given["spec"]["containers"].append({"name": "other", "command": ["uvicorn", "c:d", "--port=7000"]})
    given["metadata"]["annotations"]["carpool.dev/container"] = "other"
    outcome = injection.inject(given, Config(), model.Namespace("ml"), model.Capabilities())
    assert outcome.refusal is not None
    assert outcome.refusal.code == "loopback-only"


@pytest.mark.parametrize("server", servers.SERVERS, ids=lambda server: server.title)
def test_a_row_of_the_table_names_settings_that_are_flags_variables_or_subcommands(server: servers.Server) -> None:
    for listener in (server.http, server.grpc):
        if listener is None:
            continue
        assert listener.adds in ("", *listener.names("port"))
        told = [setting for setting in listener.settings if setting.kind in ("flags", "positional")]
        assert not [name for setting in told for name in setting.names if name.startswith("-")]
    assert server.programs or server.images or server.marks


def test_kserves_own_senders_show_that_a_server_is_reached() -> None:
    given = pod({"name": "kserve-container", "command": ["torchserve", "--ts-config=/c"]}, takeover="named-port")
    given["metadata"]["labels"]["serving.kserve.io/inferenceservice"] = "notes"
    assert sites.find(pods.read(given), Settings()).port == 8080


GATES = {
    "oauth": {"name": "oauth-proxy", "image": "registry.redhat.io/openshift4/ose-oauth-proxy:v4",
              "args": ["--https-address=:8443", "--upstream=http://localhost:8080"]},
    "rbac": {"name": "kube-rbac-proxy", "image": "quay.io/brancz/kube-rbac-proxy:v0.18",
             "args": ["--secure-listen-address=0.0.0.0:8443", "--config-file=/etc/proxy.yaml"]},
    "one that nobody knows": {"name": "gate", "image": "acme/gate:1", "args": ["--upstream=http://127.0.0.1:8080/"]},
}  # fmt: skip
UVICORN = {"command": ["uvicorn", "notes:app", "--port=8080"]}
SCORER = {"env": variables(PORT="8080"), "ports": [{"containerPort": 8080}]}


def code_in_kserve(app: Object, *others: Object) -> str:
    given = pod({"name": "kserve-container", **app}, *others)
    given["metadata"]["labels"]["serving.kserve.io/inferenceservice"] = "notes"
    outcome = injection.inject(given, Config(), model.Namespace("ml"), model.Capabilities())
    return outcome.refusal.code if outcome.refusal else ""


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("app", [UVICORN, SCORER])
def test_a_server_of_kserves_behind_a_login_is_not_opened(app: Object, gate: str) -> None:
    assert code_in_kserve(app) == ""
    assert code_in_kserve(app, GATES[gate]) == "loopback-only"


@pytest.mark.parametrize("gate", GATES)
def test_a_server_of_kserves_that_callers_reach_beside_a_login_gets_the_sidecar(gate: str) -> None:
    everywhere = {"command": [*UVICORN["command"], "--host=0.0.0.0"]}
    assert code_in_kserve(everywhere, GATES[gate]) == ""
    assert code_in_kserve({**SCORER, "readinessProbe": {"tcpSocket": {"port": 8080}}}, GATES[gate]) == ""


@pytest.mark.parametrize(("asked", "found"), [("8080", ""), ("4180", "loopback-only")])
def test_knatives_queue_proxy_shows_that_its_port_is_reached_whatever_stands_beside(asked: str, found: str) -> None:
    queue = {"name": "queue-proxy", "env": variables(USER_PORT=asked), "ports": [{"containerPort": 8012}]}
    app = {**UVICORN, "ports": [{"containerPort": 8080}]}
    assert code_in_kserve(app, queue, GATES["oauth"]) == found


@pytest.mark.parametrize(
    "name", ["NOTES_HOST", "NOTES_SERVER_HOST", "NOTES_BIND", "NOTES_LISTEN", "NOTES_ADDR", "NOTES_ADDRESS"]
)
def test_a_variable_of_the_apps_own_name_may_say_where_it_listens(name: str) -> None:
    app = {**NAMED, "env": variables(**{name: "127.0.0.1"})}
    made = injection.inject(pod(app), Config(), model.Namespace("ml"), model.Capabilities())
    assert made.refusal is not None
    assert made.refusal.code == "loopback-only"
    assert f"({name}=0.0.0.0), or give it a readinessProbe" in made.refusal.fix
    assert code({**app, "readinessProbe": PROBE}) == ""
    assert code({**NAMED, "env": variables(**{name: "0.0.0.0"})}) == ""
    _, report = manifests.inject(deployment(app), manifests.Injector(around=[service("http")]))
    assert report is not None
    assert report.result == "injected"


@pytest.mark.parametrize(
    ("container", "is_opened"),
    [
        ({"image": "ghcr.io/acme/notes-api:2@sha256:0", "env": variables(NOTES_HOST="localhost")}, False),
        ({"image": "x", "name": "ledger", "env": variables(LEDGER_HOST="localhost")}, False),
        ({"image": "x", "command": ["/usr/bin/ledgerd"], "env": variables(LEDGERD_HOST="::1")}, False),
        ({"env": variables(NOTES_HOST="localhost", NOTES_PORT="9000")}, True),
        ({"env": variables(NOTES_DB_HOST="127.0.0.1")}, True),
        ({"env": variables(NOTES_REDIS_HOST="localhost")}, True),
        ({"image": "acme/redis-notes:1", "env": variables(REDIS_HOST="127.0.0.1")}, True),
        ({"env": variables(REDIS_HOST="127.0.0.1", POSTGRES_HOST="localhost", DB_HOST="127.0.0.1")}, True),
        ({"env": variables(STATSD_HOST="localhost", OTEL_HOST="127.0.0.1", MYSQL_HOST="localhost")}, True),
        ({"env": variables(NOTES_HOST="notes.example")}, True),
        ({"env": variables(NOTESHOST="127.0.0.1")}, True),
    ],
)
def test_a_variable_of_another_name_speaks_of_something_else(container: Object, is_opened: bool) -> None:
    assert code({**NAMED, **container}) == ("" if is_opened else "loopback-only")


COLLECTORS = {
    "OpenTelemetry's": {"image": "otel/opentelemetry-collector-contrib:0.104.0",
                        "args": ["--set=receivers.prometheus.targets=localhost:8000"]},
    "an operator's": {"name": "otc-container", "image": "mirror/collector:1", "env": variables(TO="localhost:8000")},
    "nginx's exporter": {"image": "nginx/nginx-prometheus-exporter:1.3",
                         "args": ["--nginx.scrape-uri=http://localhost:8000/stub_status"]},
    "an exporter": {"image": "acme/json_exporter:1", "env": variables(TARGET="http://127.0.0.1:8000/metrics")},
    "Prometheus": {"image": "prom/prometheus:v3", "args": ["--target=localhost:8000"]},
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTORS)
def test_who_collects_metrics_of_an_app_does_not_stand_in_front_of_it(name: str) -> None:
    app = {"command": ["/notes"], "ports": [{"name": "http", "containerPort": 8000}]}
    collector = {"name": "beside", **COLLECTORS[name]}
    assert code(app, collector, container="app") == ""
    assert code({**app, "env": variables(HOST="127.0.0.1")}, collector, container="app") == "loopback-only"
    assert code(app, collector, LOGIN, container="app") == "loopback-only"


def test_whoever_else_asks_an_app_over_localhost_may_stand_in_front_of_it_unless_a_service_names_its_port() -> None:
    app = {"command": ["/notes"], "ports": [{"name": "web", "containerPort": 8000}]}
    other = {"name": "beside", "image": "acme/gate:1", "args": ["--to=http://localhost:8000"]}
    assert code(app, other, container="app") == "loopback-only"
    thing = deployment(app)
    thing["spec"]["template"]["spec"]["containers"].append(other)
    thing["spec"]["template"]["metadata"]["annotations"]["carpool.dev/container"] = "app"
    for target in (8000, "web"):
        _, report = manifests.inject(thing, manifests.Injector(around=[service(target)]))
        assert report is not None
        assert report.result == "injected"


# --- Containers that have the names of KServe's and Knative's in pods of others

NAMES_OF_OTHERS = ("agent", "queue-proxy")
CUSTOM = {"command": ["python", "app.py", "--port", "8000"], "ports": [{"name": "http", "containerPort": 8000}]}
WAYS = [{"takeover": "named-port"}, {"takeover": "none"}, {"app_port_arg": "--port"}]


@pytest.mark.parametrize("name", NAMES_OF_OTHERS)
@pytest.mark.parametrize("way", WAYS)
def test_a_login_with_the_name_of_a_proxy_of_the_platforms_is_a_login(name: str, way: dict[str, str]) -> None:
    for told in ({"args": ["--upstream=http://127.0.0.1:8000"]}, {"env": variables(UPSTREAM="http://localhost:8000")}):
        gate = {"name": name, "image": "acme/gate:1", **told}
        assert code(CUSTOM, gate, container="app", **way) == "loopback-only"
        assert code({**CUSTOM, "readinessProbe": PROBE}, gate, container="app", **way) == ""


@pytest.mark.parametrize("name", NAMES_OF_OTHERS)
def test_an_app_with_the_name_of_a_proxy_of_the_platforms_shows_by_its_probe_who_reaches_it(name: str) -> None:
    app = {"name": name, "command": ["uvicorn", "notes:app"], "ports": [{"name": "http", "containerPort": 8000}]}
    assert code(app) == "loopback-only"
    assert code({**app, "readinessProbe": PROBE}) == ""


# --- The second port, for gRPC

H = {"name": "H", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
HTTP = {"ports": [{"name": "http", "containerPort": 8000}], "readinessProbe": PROBE}
OWN_FLAG = {"app_port_arg": "--port", "app_grpc_port_arg": "--grpc", "port": "8000"}
OWN_HOST = {**OWN_FLAG, "app_grpc_port_arg": "--grpc-port"}
OWN_VARIABLE = {"app_port_arg": "--port", "app_grpc_port_env": "GRPC_ADDR", "port": "8000"}
BESIDE = {"takeover": "none", "grpc_port": "9000"}
SERVE = ["python", "app.py", "--port=8000"]
ASKED_FOR: list[tuple[Object, dict[str, str]]] = [
    ({"command": [*SERVE, "--grpc=127.0.0.1:9000"]}, OWN_FLAG),
    ({"command": [*SERVE, "--grpc-host=127.0.0.1", "--grpc-port=9000"]}, OWN_HOST),
    ({"command": SERVE, "env": variables(GRPC_ADDR="127.0.0.1:9000")}, OWN_VARIABLE),
    ({"command": [*SERVE, "--grpc=localhost:9000"]}, BESIDE),
    ({"command": ["sh", "-c", "tritonserver --grpc-address=127.0.0.1"]}, {**BESIDE, "grpc_port": "8001"}),
    ({"command": ["tritonserver", "--grpc-address=$(H)"], "env": [H]}, {"grpc_port": "8001"}),
    ({"command": ["tritonserver", "--grpc-address=127.0.0.1"]}, {"grpc_port": "8001"}),
]


@pytest.mark.parametrize(("app", "settings"), ASKED_FOR)
def test_a_second_port_that_is_asked_for_and_may_be_the_pods_alone_is_refused(
    app: Object, settings: dict[str, str]
) -> None:
    assert code({**app, **HTTP}, **settings) == "loopback-only"


@pytest.mark.parametrize(
    ("flag", "refused"),
    [("--grpc-address=$(H)", "loopback-only"), ("--grpc-address=10.1.2.3", "one-address"),
     ("--grpc-address=127.0.0.1", "loopback-only")],
)  # fmt: skip
def test_a_second_port_that_nobody_asked_for_stays_with_the_app(flag: str, refused: str) -> None:
    app = {"command": ["tritonserver", flag], "env": [H], **HTTP}
    found = injection.inject(pod(app), Config(), model.Namespace("ml"), model.Capabilities())
    assert found.plan is not None
    assert (found.plan.listen_port, found.plan.grpc_listen_port) == (8000, None)
    assert code(app, grpc_port="8001") == refused


def test_a_second_port_behind_a_login_is_not_opened() -> None:
    gate = {**LOGIN, "args": ["--upstream=grpc://127.0.0.1:9000"]}
    app = {"command": SERVE, **HTTP}
    assert code(app, gate, container="app", **BESIDE) == "loopback-only"
    asked = {"livenessProbe": {"grpc": {"port": 9000}}}
    assert code({**app, **asked}, gate, container="app", **BESIDE) == ""


def test_a_second_port_that_callers_reach_is_opened() -> None:
    assert code({"command": [*SERVE, "--grpc=0.0.0.0:9000"], **HTTP}, **OWN_FLAG) == ""
    assert code({"command": [*SERVE, "--grpc=9000"], **HTTP}, **OWN_FLAG) == ""
