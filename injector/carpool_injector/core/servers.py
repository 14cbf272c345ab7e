"""Model servers whose way of being told their port is known, so that they can be moved to another one.

One row per server. A wrong guess would keep the app from starting, so what counts is the program that is run, not a
word somewhere among its arguments; an image's name counts only where nothing else is run in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from carpool_injector.core import edits, pods


@dataclass(frozen=True, slots=True)
class Grpc:
    """Where a server listens for gRPC calls of the v2 protocol; `flags` to `switch` are what `Server` has for HTTP.

    `address` is a flag that names the address to listen on. With one of `tls` it speaks TLS: flags with a value that
    may say no, and `mutual_tls` whatever its value.
    """

    default_port: int
    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    adds: str = ""
    switch: str = ""
    address: str = ""
    tls: tuple[str, ...] = ()
    mutual_tls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """A kind of server.

    It is recognised by `programs` (with one of `subcommands`, if there are any, of one word or more), by `images` whose
    entrypoint it is, by `marks`: flags or variables that are its own. `flags` and `variables` set its HTTP port;
    `default_port` is taken without them. `adds` is the one that may be added where none is there; empty: none. `files`
    are flags that name a file in which a port may stand; with one of `elsewhere` it listens on no port at all, and
    `switch` is a flag that may turn HTTP off. `grpc` is there where it speaks the v2 protocol over gRPC as well.
    `serves_anything`: it runs any web app, a model's or not.
    """

    title: str
    default_port: int
    programs: tuple[str, ...] = ()
    subcommands: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    adds: str = ""
    files: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    switch: str = ""
    grpc: Grpc | None = None
    serves_anything: bool = False

    def recognises(self, container: pods.Container) -> bool:
        """Whether this server runs in the container, for certain."""
        run = invocation_of(container)
        if run.program in self.programs:
            return not self.subcommands or any(run.has_subcommand(each) for each in self.subcommands)
        if not run.program and not container.image_names.isdisjoint(self.images):
            return True
        return any(_is_there(mark, container) for mark in self.marks)


@dataclass(frozen=True, slots=True)
class PortSetting:
    """Where a server is told its port: a flag or a variable, there already or to be added."""

    name: str
    port: int
    present: bool

    @property
    def is_flag(self) -> bool:
        return self.name.startswith("-")

    def __str__(self) -> str:
        return f"argument {self.name}" if self.is_flag else f"environment variable {self.name}"


_NO = ("false", "off", "0")  # what Triton's flags take for no

_KSERVE = tuple(
    f"{prefix}{kind}server"
    for kind in ("sklearn", "xgb", "lgb", "pmml", "paddle", "huggingface", "autogluon", "predictive")
    for prefix in ("", "kserve-")
)

_TRITONS_GRPC = Grpc(
    8001, flags=("--grpc-port",), adds="--grpc-port", switch="--allow-grpc", address="--grpc-address",
    tls=("--grpc-use-ssl",), mutual_tls=("--grpc-use-ssl-mutual",),
)  # fmt: skip
_MLSERVERS_GRPC = Grpc(8081, variables=("MLSERVER_GRPC_PORT",))

SERVERS = (
    Server(
        "Triton", 8000, programs=("tritonserver",), flags=("--http-port",), adds="--http-port", switch="--allow-http",
        grpc=_TRITONS_GRPC,
    ),
    # The image's entrypoint says 8501; the program itself has no HTTP port unless it is told one.
    Server(
        "TensorFlow Serving", 8501, images=("tensorflow/serving", "tensorflow-serving"),
        flags=("--rest_api_port",), adds="--rest_api_port",
    ),
    Server("TensorFlow Serving", 8501, programs=("tensorflow_model_server",), flags=("--rest_api_port",)),
    # No variable is added: a settings.json would overrule it.
    Server(
        "MLServer", 8080, programs=("mlserver",), subcommands=("start",), images=("mlserver",),
        marks=("MLSERVER_HTTP_PORT",), variables=("MLSERVER_HTTP_PORT",), grpc=_MLSERVERS_GRPC,
    ),
    Server(
        "KServe's model server", 8080, programs=_KSERVE, images=_KSERVE, marks=("--http_port",),
        flags=("--http_port",), adds="--http_port",
    ),
    Server("TorchServe", 8080, programs=("torchserve",), images=("torchserve", "torchserve-kfs")),
    Server(
        "vLLM", 8000, programs=("vllm",), subcommands=("serve",), images=("vllm-openai",),
        flags=("--port",), adds="--port", files=("--config",), elsewhere=("--uds",),
    ),
    Server(
        "vLLM", 8000, programs=("vllm.entrypoints.openai.api_server",),
        flags=("--port",), adds="--port", files=("--config",), elsewhere=("--uds",),
    ),
    Server(
        "SGLang", 30000, programs=("sglang.launch_server",), flags=("--port",), adds="--port", files=("--config",),
    ),
    # The images of both set PORT to 80; the programs themselves have 3000.
    Server(
        "text-generation-inference", 80, programs=("text-generation-launcher",), images=("text-generation-inference",),
        flags=("--port", "-p"), variables=("PORT",), adds="--port",
    ),
    Server(
        "text-embeddings-inference", 80, programs=("text-embeddings-router",), images=("text-embeddings-inference",),
        flags=("--port", "-p"), variables=("PORT",), adds="--port",
    ),
    # The last one speaks HTTP in front of the others, which speak gRPC of their own.
    Server(
        "JetStream", 8000,
        images=("jetstream-pytorch-server", "jetstream-maxtext-server", "maxengine-server", "jetstream-http"),
    ),
    Server(
        "carpool-predictor", 8080, programs=("carpool-predictor",), images=("carpool-predictor",),
        flags=("--port",), variables=("CARPOOL_PREDICTOR_PORT",), adds="CARPOOL_PREDICTOR_PORT",
    ),
    Server(
        "BentoML", 3000, programs=("bentoml",), subcommands=("serve", "serve-http"), flags=("--port", "-p"),
        variables=("BENTOML_PORT",), adds="BENTOML_PORT",
    ),
    # Not `mlflow server`, which keeps the records of experiments.
    Server(
        "MLflow", 5000, programs=("mlflow",), subcommands=("models serve",), flags=("--port", "-p"),
        variables=("MLFLOW_PORT",), adds="--port",
    ),
    Server(
        "Gunicorn", 8000, programs=("gunicorn",), flags=("--bind", "-b"), variables=("PORT",), serves_anything=True,
    ),
    Server(
        "Uvicorn", 8000, programs=("uvicorn",), flags=("--port",), variables=("UVICORN_PORT",), adds="UVICORN_PORT",
        elsewhere=("--uds", "--fd"), serves_anything=True,
    ),
    Server(
        "FastAPI", 8000, programs=("fastapi",), subcommands=("run", "dev"), flags=("--port",), adds="--port",
        serves_anything=True,
    ),
)  # fmt: skip
"""The first that recognises a container names it."""


def recognise(container: pods.Container) -> Server | None:
    """The server a container runs, or None."""
    return next((server for server in SERVERS if server.recognises(container)), None)


def serves_a_model(container: pods.Container) -> bool:
    """Whether it runs a model server: one that serves nothing else, or a server of any web app with a sign of a model.

    Such a sign is a word for models, or of a framework for them, in the image's name, an argument, the name of a
    variable or the place of a volume; or a GPU.
    """
    server = recognise(container)
    return server is not None and (not server.serves_anything or _has_a_sign_of_a_model(container))


_SIGNS = {
    "model", "models", "predictor", "predict", "prediction", "predictions", "inference", "infer", "scorer", "scoring",
    "classifier", "classification", "embedder", "embedding", "embeddings", "reranker", "recommender", "llm", "ml",
    "mlops", "mlflow", "mlserver", "huggingface", "hf", "transformers", "torch", "pytorch", "tensorflow", "keras",
    "onnx", "onnxruntime", "sklearn", "xgboost", "lightgbm", "catboost", "whisper", "bert",
}  # fmt: skip
_DEVICES = re.compile(r"[a-z0-9.-]+/(gpu|mig-.*|tpu|neuron|neuroncore|xpu|npu|gpu\.shared)", re.ASCII)


def _has_a_sign_of_a_model(container: pods.Container) -> bool:
    name = (container.image or "").rpartition("/")[2].partition("@")[0].partition(":")[0]
    texts = [name, *container.words, *(item["name"] for item in container.env)]
    texts += [str(mount.get("mountPath")) for mount in container.volume_mounts]
    if any(not _SIGNS.isdisjoint(_words_of(text)) for text in texts):
        return True
    given = container.resources
    return given is not None and any(_DEVICES.fullmatch(key) for key in (*given.limits, *given.requests))


def _words_of(text: str) -> list[str]:
    return re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower())


def reads_port_variable(container: pods.Container) -> bool:
    """Whether the app is told one of its declared ports by PORT, as twelve-factor apps are.

    A shell that does not speak of PORT is not believed.
    """
    run, value = invocation_of(container), container.variable("PORT") or ""
    is_heard = not run.is_shell or any(re.search(r"\$\{?PORT\b", word) for word in container.words)
    return is_heard and any(value == str(port.container_port) for port in container.ports)


def custom(flag: str | None, variable: str | None) -> Server:
    """A server whose flag or variable the pod's owner named; neither is ever added."""
    return Server("the app", 0, flags=(flag,) if flag else (), variables=(variable,) if variable else ())


def custom_grpc(flag: str | None, variable: str | None) -> Grpc:
    """The same for gRPC."""
    return Grpc(0, flags=(flag,) if flag else (), variables=(variable,) if variable else ())


TWELVE_FACTOR = Server("an app that reads PORT", 8080, variables=("PORT",))


def port_setting(server: Server, container: pods.Container) -> PortSetting | None:
    """Where this container's server is told its HTTP port; None if it cannot be told, or has none."""
    if is_off(server, container) or any(_is_there(flag, container) for flag in server.elsewhere):
        return None
    return told(server, container)


def is_off(listener: Server | Grpc, container: pods.Container) -> bool:
    """Whether its switch says that it does not listen; the last one counts."""
    found = [value for _, _, value in edits.flag_values(container.words, listener.switch)] if listener.switch else []
    return bool(found) and found[-1].lower() in _NO


def told(listener: Server | Grpc, container: pods.Container) -> PortSetting | None:
    """Where a server is told this port; None if it cannot be told.

    The last flag counts, as in the parsers of these servers, and flags win over variables. A flag that refers to a
    variable (`--port=$(PORT)`) is told by that variable.
    """
    for flag in listener.flags:
        found = [value for _, _, value in edits.flag_values(container.words, flag)]
        if found:
            return _told(flag, found[-1], container)
    for name in listener.variables:
        if container.has_variable(name):
            value = edits.port_in(container.variable(name) or "")
            return PortSetting(name, value, True) if value is not None else None
    return PortSetting(listener.adds, listener.default_port, False) if listener.adds else None


def _told(flag: str, value: str, container: pods.Container) -> PortSetting | None:
    if invocation_of(container).is_shell:
        return None
    reference = re.fullmatch(r"(?:.*:)?\$\(([A-Za-z_][A-Za-z0-9_]*)\)", value)
    name, number = (reference[1], container.variable(reference[1]) or "") if reference else (flag, value)
    port = edits.port_in(number)
    return None if port is None else PortSetting(name, port, True)


def tls_flags(listener: Grpc, container: pods.Container) -> list[str]:
    """The flags by which this server speaks TLS there."""
    found = [flag for flag in listener.mutual_tls if _is_there(flag, container)]
    for flag in listener.tls:
        values = [value for _, _, value in edits.flag_values(container.words, flag)]
        found += [flag] if values and values[-1].lower() not in _NO else []
    return found


def may_be_in_a_file(server: Server | None, container: pods.Container) -> bool:
    """Whether a file that is not seen here may say another port than the default."""
    return server is not None and any(_is_there(flag, container) for flag in server.files)


def _is_there(name: str, container: pods.Container) -> bool:
    if not name.startswith("-"):
        return container.has_variable(name)
    return any(word == name or word.startswith(name + "=") for word in container.words)


_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "busybox"}
# Programs that run the words behind them, once their own flags are over.
_LAUNCHERS = {
    "tini", "dumb-init", "env", "exec", "nice", "nvidia_entrypoint.sh", "opentelemetry-instrument", "ddtrace-run",
    "newrelic-admin", "run-program",
}  # fmt: skip
_RUNNERS = {"uv", "poetry", "pipenv", "pdm", "hatch"}  # with the subcommand run
_PYTHON = re.compile(r"python[0-9.]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Invocation:
    """`program` without folders ("" where the image's entrypoint decides), and the words behind it."""

    program: str
    behind: tuple[str, ...]
    is_shell: bool

    def has_subcommand(self, words: str) -> bool:
        """Whether these words, with blanks between them, come first behind the program."""
        wanted = tuple(words.split())
        return self.behind[: len(wanted)] == wanted


def invocation_of(container: pods.Container) -> Invocation:
    """What the container runs."""
    words = _behind_launchers(list(container.words))
    if not container.command and (not words or words[0].startswith("-") or "=" in words[0]):
        return Invocation("", (), False)
    if words and _PYTHON.fullmatch(_file_name(words[0])):
        words = _behind_python(words[1:])
    program = _file_name(words[0]) if words else "?"
    is_shell = program in _SHELLS or program.endswith(".sh")
    return Invocation(program, tuple(words[1:]), is_shell)


def _behind_launchers(words: list[str]) -> list[str]:
    """The words without launchers, their flags and their variables."""
    while words and _file_name(words[0]) in _LAUNCHERS | _RUNNERS:
        is_runner = _file_name(words[0]) in _RUNNERS
        words = words[1:]
        if is_runner and words and words[0] == "run":
            words = words[1:]
        while words and (words[0].startswith("-") or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", words[0])):
            words = words[1:]
    return words


def _behind_python(words: list[str]) -> list[str]:
    """The module of `-m`, or the script, and what follows."""
    for at, word in enumerate(words):
        if word == "-m":
            return words[at + 1 :]
        if not word.startswith("-") or word == "-c":
            return words[at:]
    return []


def _file_name(word: str) -> str:
    return word.rpartition("/")[2]
