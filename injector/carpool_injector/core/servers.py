"""Servers of models and web apps: how each is recognised, where it listens if not told, and which setting wins.

One row per server, and rows are data: `listening` works out what they mean for a container. A wrong guess would keep
the app from starting, or open to the cluster what listened within the pod only; so what counts is the program that is
run, not a word somewhere among its arguments, and an image's name counts only where nothing else is run in it.
`tests/injector/test_servers_for_real.py` starts those that package registries bring, and shows that the rows are true.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from carpool.program import model_servers
from carpool_injector.core import invocations, pods

ANY, LOOPBACK = "0.0.0.0", "127.0.0.1"
"""Hosts on which a server listens: all addresses of the pod, or for the pod's own containers only."""

Kind = Literal["port", "hint", "host", "address", "urls", "flags", "file", "elsewhere", "positional"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A way to tell a server where it listens: flags or variables of the same strength, of which the last one counts.

    `kind` is what they tell: a port, or a `hint` of one that code may overrule; a host; an address of both (`several`:
    each one that is given counts); `urls` with `;` between them, or ports likewise, which code may overrule; `flags`, a
    variable with further flags of the server; a `file` that is not seen here; that it listens `elsewhere` than on a
    port; `positional`, an address as the first word behind this subcommand. `*` in a variable's name stands for any
    text. `host` is the one that a port brings with it, or that a text which is no address stands for; `bare_host` that
    of a flag without a value. `tls`: it is spoken on the ports that are told so.
    """

    kind: Kind
    names: tuple[str, ...]
    several: bool = False
    host: str = ""
    bare_host: str = ""
    tls: bool = False


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a server listens: `port` and `host` unless one of `settings` (the strongest first) tells it otherwise.

    It listens nowhere if not told where `port` is 0. `adds` is a flag or variable for the port that may be added where
    none is there; empty: none. `switch` is a flag that may turn it off. With one of `tls` (flags, whose value may say
    no, or variables) it speaks TLS, with one of `mutual_tls` whatever its value.
    """

    port: int
    settings: tuple[Setting, ...] = ()
    host: str = ANY
    adds: str = ""
    switch: str = ""
    tls: tuple[str, ...] = ()
    mutual_tls: tuple[str, ...] = ()

    def names(self, *kinds: Kind) -> tuple[str, ...]:
        """The flags and variables of these kinds, the strongest first."""
        return tuple(name for setting in self.settings if setting.kind in kinds for name in setting.names)


@dataclass(frozen=True, slots=True)
class Server:
    """A kind of server.

    It is recognised by `programs` (with one of `subcommands`, if there are any, of one word or more, and one of
    `needs`, flags or variables), by `images` whose entrypoint it is, by `marks`: flags or variables that are its own.
    `opened_by` are images that tell it to listen on all addresses. `grpc` is there where it speaks the v2 protocol over
    gRPC as well, `own_grpc` where it speaks a protocol of its own. It `serves` models and nothing else, any web app, or
    pages for people, which no model server does.
    """

    title: str
    http: Listener
    programs: tuple[str, ...] = ()
    subcommands: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    opened_by: tuple[str, ...] = ()
    grpc: Listener | None = None
    own_grpc: Listener | None = None
    serves: Literal["models", "apps", "pages"] = "models"

    @property
    def known(self) -> model_servers.ModelServer:
        """What is known of such servers, however one is recognised."""
        return model_servers.of(self.title)

    def recognises(self, container: pods.Container, run: invocations.Invocation | None = None) -> bool:
        """Whether this server runs in the container, for certain; `run`: as this program of it."""
        run = run or invocations.of(container)
        if run.program in self.programs:
            is_told = not self.needs or any(run.has_setting(name, container) for name in self.needs)
            return is_told and (not self.subcommands or any(run.has_subcommand(each) for each in self.subcommands))
        if not run.program and not container.image_names.isdisjoint(self.images):
            return True
        return any(container.has_setting(mark) for mark in self.marks)


def _port(*names: str, host: str = "") -> Setting:
    return Setting("port", names, host=host)


def _host(*names: str, bare: str = "") -> Setting:
    return Setting("host", names, bare_host=bare)


def _address(*names: str, several: bool = False) -> Setting:
    return Setting("address", names, several)


def _urls(*names: str) -> Setting:
    return Setting("urls", names, several=True)


def _ports(*names: str, tls: bool = False) -> Setting:
    return Setting("urls", names, several=True, host=ANY, tls=tls)


def _usual(
    prefix: str, port: tuple[str, ...] = ("--port",), host: tuple[str, ...] = ("--host",)
) -> tuple[Setting, ...]:
    """Flags for port and host, and variables that begin with `prefix`, which are weaker."""
    return _port(*port), _port(f"{prefix}_PORT"), _host(*host), _host(f"{prefix}_HOST")


def _file(*names: str) -> Setting:
    return Setting("file", names)


def _elsewhere(*names: str) -> Setting:
    return Setting("elsewhere", names)


_KSERVE = tuple(
    f"{prefix}{kind}server"
    for kind in ("sklearn", "xgb", "lgb", "pmml", "paddle", "huggingface", "autogluon", "predictive")
    for prefix in ("", "kserve-")
)
_OF_UVICORN = ("--ssl-keyfile", "--ssl-certfile")
_VLLM = Listener(
    8000, (_elsewhere("--uds"), _port("--port"), _host("--host"), _file("--config")), adds="--port",
    tls=(*_OF_UVICORN, "--ssl_keyfile", "--ssl_certfile"),
)  # fmt: skip
# The images of both set PORT to 80; the programs themselves have 3000. HOSTNAME is the pod's name unless it is set.
_TEXT = Listener(
    80, (_port("--port", "-p"), _port("PORT"), Setting("host", ("--hostname",), host=ANY),
         Setting("host", ("HOSTNAME",), host=ANY)), adds="--port",
)  # fmt: skip
_TENSORFLOW, _TENSORFLOWS_GRPC = (_port("--rest_api_port"),), Listener(8500, (_port("--port"),))
_NET_URLS = ("ASPNETCORE_URLS", "DOTNET_URLS")
_NET_PORTS = ("ASPNETCORE_HTTP_PORTS", "DOTNET_HTTP_PORTS")
_NET_TLS_PORTS = ("ASPNETCORE_HTTPS_PORTS", "DOTNET_HTTPS_PORTS")
_NET_MARKS = (*_NET_URLS, *_NET_PORTS, *_NET_TLS_PORTS)


def _java(name: str) -> tuple[str, str]:
    """A property of Java's as Spring Boot is given it: to the app, and to its virtual machine, which is weaker."""
    return f"--{name}", f"-D{name}"


SPRINGS_TLS = tuple(
    name
    for each in ("server.ssl.key-store", "server.ssl.keyStore", "server.ssl.certificate", "server.ssl.bundle")
    for name in _java(each)
)
"""Flags by which Spring Boot speaks TLS."""

SERVERS = (
    Server(
        "Triton", Listener(8000, (_port("--http-port"), _host("--http-address")), adds="--http-port",
                           switch="--allow-http"),
        programs=("tritonserver",),
        grpc=Listener(8001, (_port("--grpc-port"), _host("--grpc-address")), adds="--grpc-port", switch="--allow-grpc",
                      tls=("--grpc-use-ssl",), mutual_tls=("--grpc-use-ssl-mutual",)),
    ),
    # The image's entrypoint says 8501; the program itself speaks gRPC only, unless it is told a port for HTTP.
    Server(
        "TensorFlow Serving", Listener(8501, _TENSORFLOW, adds="--rest_api_port"),
        images=("tensorflow/serving", "tensorflow-serving"), own_grpc=_TENSORFLOWS_GRPC,
    ),
    Server(
        "TensorFlow Serving", Listener(0, _TENSORFLOW), programs=("tensorflow_model_server",),
        own_grpc=_TENSORFLOWS_GRPC,
    ),
    # No variable is added: a settings.json would overrule it.
    Server(
        "MLServer", Listener(8080, (_port("MLSERVER_HTTP_PORT"), _host("MLSERVER_HOST"))),
        programs=("mlserver",), subcommands=("start",), images=("mlserver",), marks=("MLSERVER_HTTP_PORT",),
        grpc=Listener(8081, (_port("MLSERVER_GRPC_PORT"), _host("MLSERVER_HOST"))),
    ),
    Server(
        "KServe's model server", Listener(8080, (_port("--http_port"),), adds="--http_port"),
        programs=_KSERVE, images=_KSERVE, marks=("--http_port",),
    ),
    # config.properties says where it listens; the image's says on all addresses.
    Server(
        "TorchServe", Listener(8080, (_file("TS_CONFIG_FILE", "--ts-config"),), LOOPBACK),
        programs=("torchserve",), images=("torchserve", "torchserve-kfs"), opened_by=("torchserve", "torchserve-kfs"),
        own_grpc=Listener(7070),
    ),
    Server(
        "vLLM", _VLLM, programs=("vllm",), subcommands=("serve",), images=("vllm-openai",),
    ),
    Server("vLLM", _VLLM, programs=("vllm.entrypoints.openai.api_server",)),
    Server(
        "SGLang", Listener(30000, (_port("--port"), _host("--host"), _file("--config")), LOOPBACK, adds="--port",
                           tls=_OF_UVICORN),
        programs=("sglang.launch_server",),
    ),
    Server(
        "text-generation-inference", _TEXT, programs=("text-generation-launcher",),
        images=("text-generation-inference",),
    ),
    Server(
        "text-embeddings-inference", _TEXT, programs=("text-embeddings-router",),
        images=("text-embeddings-inference",),
    ),
    Server(
        "Infinity", Listener(7997, _usual("INFINITY"), adds="--port"),
        programs=("infinity_emb",), subcommands=("v1", "v2"),
    ),
    Server(
        "Ollama", Listener(11434, (_address("OLLAMA_HOST"),), LOOPBACK),
        programs=("ollama",), subcommands=("serve",), images=("ollama/ollama",), opened_by=("ollama/ollama",),
    ),
    Server(
        "llama.cpp's server",
        Listener(
            8080, _usual("LLAMA_ARG"), LOOPBACK, adds="--port",
            tls=("--ssl-key-file", "--ssl-cert-file", "LLAMA_ARG_SSL_KEY_FILE", "LLAMA_ARG_SSL_CERT_FILE"),
        ),
        programs=("llama-server",), opened_by=("ggml-org/llama.cpp", "ggerganov/llama.cpp"),
    ),
    # Its variables are HOST and PORT, and a file may tell both; nothing says which of them wins.
    Server(
        "llama-cpp-python", Listener(8000, (_host("--host"), _file("--config_file", "CONFIG_FILE", "HOST", "PORT")),
                                     LOOPBACK),
        programs=("llama_cpp.server",),
    ),
    # The last one speaks HTTP in front of the others, which speak gRPC of their own.
    Server(
        "JetStream", Listener(8000),
        images=("jetstream-pytorch-server", "jetstream-maxtext-server", "maxengine-server", "jetstream-http"),
    ),
    Server(
        "carpool-predictor", Listener(8080, _usual("CARPOOL_PREDICTOR"), adds="CARPOOL_PREDICTOR_PORT"),
        programs=("carpool-predictor",), images=("carpool-predictor",),
    ),
    Server(
        "BentoML", Listener(3000, _usual("BENTOML", ("--port", "-p")), adds="BENTOML_PORT", tls=_OF_UVICORN),
        programs=("bentoml",), subcommands=("serve", "serve-http"),
    ),
    # What its code, or the file that it is given, says of HTTP is not seen here. Also the name of a server of pages.
    Server(
        "Ray Serve", Listener(8000, host=LOOPBACK), programs=("serve",), subcommands=("run",),
    ),
    # Not `mlflow server`, which keeps the records of experiments.
    Server(
        "MLflow", Listener(5000, _usual("MLFLOW", ("--port", "-p"), ("--host", "-h")), LOOPBACK, adds="--port"),
        programs=("mlflow",), subcommands=("models serve",),
    ),
    # Where PORT is set, and nothing else says where, it listens on all addresses.
    Server(
        "Gunicorn",
        Listener(
            8000, (_address("--bind", "-b", several=True), Setting("flags", ("GUNICORN_CMD_ARGS",)),
                   _file("--config", "-c"), _port("PORT", host=ANY)), LOOPBACK, tls=("--keyfile", "--certfile"),
        ),
        programs=("gunicorn",), serves="apps",
    ),
    Server(
        "Uvicorn",
        Listener(
            8000, (_elsewhere("--uds", "--fd", "UVICORN_UDS", "UVICORN_FD"), *_usual("UVICORN")), LOOPBACK,
            adds="UVICORN_PORT",
            tls=(*_OF_UVICORN, "UVICORN_SSL_KEYFILE", "UVICORN_SSL_CERTFILE"),
        ),
        programs=("uvicorn",), serves="apps",
    ),
    Server(
        "Hypercorn", Listener(8000, (_address("--bind", "-b", several=True), _file("--config", "-c")), LOOPBACK,
                              tls=("--keyfile", "--certfile")),
        programs=("hypercorn",), serves="apps",
    ),
    Server(
        "Granian",
        Listener(
            8000, (_elsewhere("--uds", "GRANIAN_UDS"), *_usual("GRANIAN")), LOOPBACK, adds="--port",
            tls=("--ssl-certificate", "--ssl-keyfile", "GRANIAN_SSL_CERTIFICATE", "GRANIAN_SSL_KEYFILE"),
        ),
        programs=("granian",), serves="apps",
    ),
    Server(
        "Daphne", Listener(8000, (_elsewhere("--unix-socket", "-u", "--fd", "--endpoint", "-e"),
                                  _port("--port", "-p"), _host("--bind", "-b")), LOOPBACK, adds="--port"),
        programs=("daphne",), serves="apps",
    ),
    Server(
        "Waitress", Listener(8080, (_elsewhere("--unix-socket"), _address("--listen", several=True), _port("--port"),
                                    _host("--host")), adds="--port"),
        programs=("waitress-serve", "waitress"), serves="apps",
    ),
    # PORT is read by newer releases only.
    Server(
        "FastAPI", Listener(8000, (_port("--port"), _host("--host")), adds="--port"),
        programs=("fastapi",), subcommands=("run",), serves="apps",
    ),
    Server(
        "FastAPI for development", Listener(8000, (_port("--port"), _host("--host")), LOOPBACK, adds="--port"),
        programs=("fastapi",), subcommands=("dev",), serves="apps",
    ),
    Server(
        "Flask", Listener(5000, _usual("FLASK_RUN", ("--port", "-p"), ("--host", "-h")), LOOPBACK, adds="--port",
                          tls=("--cert", "FLASK_RUN_CERT")),
        programs=("flask",), subcommands=("run",), serves="apps",
    ),
    Server(
        "Django's runserver", Listener(8000, (Setting("positional", ("runserver",)),), LOOPBACK),
        programs=("manage.py", "django-admin", "django"), subcommands=("runserver",), serves="apps",
    ),
    Server(
        "Sanic", Listener(8000, (_elsewhere("--unix", "-u"), _port("--port", "-p"), _host("--host", "-H")), LOOPBACK,
                          adds="--port", tls=("--cert", "--key", "--tls")),
        programs=("sanic",), serves="apps",
    ),
    Server(
        "Litestar",
        Listener(
            8000, (_elsewhere("--unix-domain-socket", "--uds", "-U", "--file-descriptor", "--fd", "-F"),
                   *_usual("LITESTAR", ("--port", "-p"), ("--host", "-H"))), LOOPBACK, adds="--port",
            tls=(*_OF_UVICORN, "LITESTAR_SSL_CERT_PATH", "LITESTAR_SSL_KEY_PATH"),
        ),
        programs=("litestar",), subcommands=("run",), serves="apps",
    ),
    Server(
        "Streamlit",
        Listener(
            8501, (_port("--server.port"), _port("STREAMLIT_SERVER_PORT"), _host("--server.address"),
                   _host("STREAMLIT_SERVER_ADDRESS")), adds="--server.port",
            tls=("--server.sslCertFile", "STREAMLIT_SERVER_SSL_CERT_FILE"),
        ),
        programs=("streamlit",), subcommands=("run",), serves="pages",
    ),
    # The app's code may say otherwise, so no variable of it is changed.
    Server(
        "Gradio", Listener(7860, (_host("GRADIO_SERVER_NAME"), Setting("hint", ("GRADIO_SERVER_PORT",))), LOOPBACK),
        programs=("gradio",), marks=("GRADIO_SERVER_NAME", "GRADIO_SERVER_PORT"), serves="pages",
    ),
    Server(
        "Chainlit", Listener(8000, _usual("CHAINLIT"), LOOPBACK, adds="--port",
                             tls=("--ssl-cert", "CHAINLIT_SSL_CERT")),
        programs=("chainlit",), subcommands=("run",), serves="pages",
    ),
    Server(
        "http-server", Listener(8080, (_port("-p", "--port"), _port("PORT"), _host("-a")),
                                tls=("-S", "--tls", "--ssl")),
        programs=("http-server",), serves="pages",
    ),
    Server(
        "Next.js", Listener(3000, (_port("--port", "-p"), _port("PORT"), _host("--hostname", "-H")), adds="--port",
                            tls=("--experimental-https",)),
        programs=("next",), subcommands=("start", "dev"), serves="pages",
    ),
    Server(
        "Vite", Listener(4173, (_port("--port"), _host("--host", bare=ANY)), LOOPBACK, adds="--port"),
        programs=("vite",), subcommands=("preview",), serves="pages",
    ),
    # Only where it is told its port: what other programs of Java do nobody knows.
    Server(
        "Spring Boot",
        Listener(
            8080, (_port("--server.port"), _host("--server.address"), _file("SPRING_APPLICATION_JSON"),
                   Setting("flags", ("_JAVA_OPTIONS",)), _port("-Dserver.port"), _host("-Dserver.address"),
                   Setting("flags", ("JDK_JAVA_OPTIONS",)), Setting("flags", ("JAVA_TOOL_OPTIONS",)),
                   _port("SERVER_PORT"), _host("SERVER_ADDRESS")),
            tls=("SERVER_SSL_KEYSTORE", "SERVER_SSL_KEY_STORE", "SERVER_SSL_CERTIFICATE", "SERVER_SSL_BUNDLE",
                 *SPRINGS_TLS),
        ),
        programs=("java",), needs=("--server.port", "-Dserver.port", "SERVER_PORT"), serves="apps",
    ),
    # Microsoft's images tell it 8080, or 80 before release 8; without them it listens on loopback. What it reads first
    # of its variables depends on how it is built: of those that count alike each does.
    Server(
        "ASP.NET Core",
        Listener(8080, (_urls("Kestrel__Endpoints__*__Url", "ASPNETCORE_Kestrel__Endpoints__*__Url"), _urls("--urls"),
                        _urls("URLS"), _urls(*_NET_URLS), _ports("HTTP_PORTS", *_NET_PORTS),
                        _ports("HTTPS_PORTS", *_NET_TLS_PORTS, tls=True))),
        programs=("dotnet",), needs=(*_NET_MARKS, "--urls", "URLS", "HTTP_PORTS", "HTTPS_PORTS"), marks=_NET_MARKS,
        serves="apps",
    ),
)  # fmt: skip
"""The first that recognises a container names it."""
BY_TITLE = {server.title: server for server in reversed(SERVERS)}
"""The first row of each title, which counts for what is said of them."""

TWELVE_FACTOR = Server("an app that reads PORT", Listener(8080, (_port("PORT"),), ""))


def recognise(container: pods.Container, run: invocations.Invocation | None = None) -> Server | None:
    """The server a container runs, or None; `run`: the one that this program of it is."""
    return next((server for server in SERVERS if server.recognises(container, run)), None)


def custom(flag: str | None, variable: str | None) -> Listener:
    """A listener whose flag or variable the pod's owner named; neither is ever added."""
    return Listener(0, tuple(_port(name) for name in (flag, variable) if name), "")


def serves_a_model(container: pods.Container) -> bool:
    """Whether it runs a model server: one that serves nothing else, or a server of any web app with a sign of a model.

    Such a sign is a word for models, or of a framework for them, in the image's name, an argument, the name of a
    variable or the place of a volume; or a GPU.
    """
    server = recognise(container)
    if server is None or server.serves == "pages":
        return False
    return server.serves == "models" or _has_a_sign_of_a_model(container)


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
    # With capitals within a word as the beginning of another one.
    words = (re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()) for text in texts)
    if any(not _SIGNS.isdisjoint(each) for each in words):
        return True
    given = container.resources
    return given is not None and any(_DEVICES.fullmatch(key) for key in (*given.limits, *given.requests))
