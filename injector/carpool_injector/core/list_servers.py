"""What batching is worth in front of a server: a rule for its lists, or nothing, as it batches by itself.

A rule is chosen without an annotation only where two things are certain of the program that is run: it makes its
answer of each row alone, and it computes one request at a time. Where the first is the model's affair, the pod's owner
is told which rule there is.

In front of servers that batch by themselves what arrives together, the sidecar only adds a hop. A namespace that asks
for all its predictors does not mean them; a pod that asks for itself gets the sidecar, and is told what it will not do.
Embeddings are the exception: with a rule for lists such servers are predictors like any other (docs/lists.md). And a
server that chooses the model by a header needs to be shown that header, in which all requests of a batch agree then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from carpool.program import model_servers
from carpool_injector.core import command_lines, pods, servers, sites
from carpool_injector.core.settings import Settings


@dataclass(frozen=True, slots=True)
class ListServer:
    """A kind of server: `server`, given each of `flags` with this value, each of `variables`, and none of `without`.

    `rule` is the built-in rule for it, `why` says in words what it was recognised by and what it does. `chosen`: the
    rule is in force where nothing was set.
    """

    rule: str
    server: servers.Server
    why: str
    chosen: bool = False
    flags: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def recognises(self, container: pods.Container) -> bool:
        """Whether it runs in the container, for certain."""
        return (
            self.server.recognises(container)
            and all(command_lines.last_value(container.words, flag) == value for flag, value in self.flags.items())
            and all(container.variable(name) == value for name, value in self.variables.items())
            and all(command_lines.last_value(container.words, flag) is None for flag in self.without)
        )


_ENDS = " (an empty value ends this notice)"
_NAMES = ("huggingfaceserver", "kserve-huggingfaceserver")
HUGGING_FACE = servers.Server("KServe's Hugging Face server", servers.Listener(8080), programs=_NAMES, images=_NAMES)

LIST_SERVERS = (
    # python/huggingfaceserver of kserve/kserve, v0.15 to v0.20: with this backend `encoder_model.py` calls the model in
    # the event loop, for one request after the other. Only this task has /openai/v1/embeddings, and no model's
    # architecture stands for it: it has to be told. With --backend=auto the model decides whether vLLM serves it; with
    # --predictor_host it is a transformer, and another server computes.
    ListServer(
        "openai-embeddings", HUGGING_FACE,
        "KServe's Hugging Face server with --backend=huggingface and --task=text_embedding answers embeddings one "
        "request at a time",
        chosen=True, flags={"--backend": "huggingface", "--task": "text_embedding"}, without=("--predictor_host",),
    ),
    # mlflow/pyfunc/scoring_server of mlflow/mlflow.
    ListServer(
        "mlflow", servers.BY_TITLE["MLflow"],
        "MLflow's server (mlflow models serve) calls its model once for each request to /invocations",
    ),
    # runtimes/mlflow of SeldonIO/MLServer; KServe sets the variable by the model format mlflow.
    ListServer(
        "mlflow", servers.BY_TITLE["MLServer"],
        "MLServer with the runtime of MLflow calls its model once for each request to /invocations",
        variables={"MLSERVER_MODEL_IMPLEMENTATION": "mlserver_mlflow.MLflowRuntime"},
    ),
)  # fmt: skip


def chosen(container: pods.Container, settings: Settings) -> ListServer | None:
    """The server in a container if its rule is in force: it is certain, and nothing was set, not even no rule."""
    found = recognise(container) if settings.lists is None else None
    return found if found is not None and found.chosen else None


def advice(container: pods.Container, settings: Settings) -> Iterator[str]:
    """A warning where the sidecar could batch what it passes on, if the pod's owner knows that the model allows it."""
    found = recognise(container) if settings.lists is None else None
    if found is not None and not found.chosen:
        yield (
            f"{found.why}; the sidecar passes these on as they are: if the model answers each row for itself, batch "
            f"them with {model_servers.annotation('lists', found.rule)}{_ENDS}"
        )


def recognise(container: pods.Container) -> ListServer | None:
    """The kind of server that runs in a container, None for all others."""
    return next((each for each in LIST_SERVERS if each.recognises(container)), None)


_GENERATION = {"--task": ("generate", "transcription"), "--runner": ("generate",)}
_GENERATIVE_TASKS = ("text_generation", "text2text_generation")  # of KServe's Hugging Face server


def _own_batches(container: pods.Container) -> model_servers.ModelServer | None:
    """The server in a container that batches by itself, as it is called, and with the rules that fit its embeddings;
    None for all others.

    Of KServe's Hugging Face server that is certain where it is told to generate text, or to leave its model to vLLM;
    with `--backend=auto` the model decides.
    """
    server, words = servers.recognise(container), container.words
    if server is None:
        return None
    if HUGGING_FACE.recognises(container):
        if command_lines.last_value(words, "--task") in _GENERATIVE_TASKS:
            return model_servers.ModelServer("KServe's Hugging Face server, which generates text,", batches=True)
        if command_lines.last_value(words, "--backend") != "vllm":
            return None
        server = servers.BY_TITLE["vLLM"]
    elif any(command_lines.last_value(words, flag) in told for flag, told in _GENERATION.items()):
        return server.known._replace(rules=()) if server.known.batches else None
    return server.known if server.known.batches else None


def gains_nothing(pod: pods.Pod, settings: Settings) -> bool:
    """Whether whatever may be the app batches by itself, and no rule makes lists of its embeddings."""
    found = [_own_batches(app) for app in sites.candidates(pod, settings)]
    return bool(found) and not any(each is None or (each.rules and settings.lists) for each in found)


def advice_on_own_batches(container: pods.Container, settings: Settings) -> Iterator[str]:
    """A warning for who asked for the sidecar in front of such a server all the same."""
    found = _own_batches(container)
    if found is not None and not (found.rules and settings.lists is not None):
        yield model_servers.own_batches(found.title, found.rules) + (_ENDS if found.rules else "")


def advice_on_choice(container: pods.Container, settings: Settings) -> Iterator[str]:
    """A warning where callers who ask the server for different models would share a batch."""
    found = servers.recognise(container)
    keys = [name.strip().lower() for name in (settings.key_headers or "").split(",") if name.strip()]
    missing = [name for name in found.known.chooses_by if name not in keys] if found is not None else []
    if found is not None and missing:
        yield model_servers.choice(found.title, missing[0], keys or model_servers.USUAL_KEY_HEADERS)


def told(container: pods.Container) -> tuple[str, ...]:
    """What is known of the server in a container, in sentences; none of a server of any web app."""
    found = servers.recognise(container)
    return tuple(model_servers.words(found.known)) if found is not None else ()
