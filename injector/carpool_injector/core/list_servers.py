"""Servers that take lists and batch nothing by themselves, and the built-in rule with which the sidecar batches them.

A rule is chosen without an annotation only where two things are certain of the program that is run: it makes its
answer of each row alone, and it computes one request at a time. Where the first is the model's affair, the pod's owner
is told which rule there is. Servers that batch by themselves (vLLM, TGI, Text Embeddings Inference, Triton) are none of
these: a second batcher in front of them only costs time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from carpool_injector.core import edits, pods, servers
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
            and all(last(container, flag) == value for flag, value in self.flags.items())
            and all(container.variable(name) == value for name, value in self.variables.items())
            and all(last(container, flag) is None for flag in self.without)
        )


_NAMES = ("huggingfaceserver", "kserve-huggingfaceserver")
HUGGING_FACE = servers.Server("KServe's Hugging Face server", servers.Listener(8080), programs=_NAMES, images=_NAMES)
_BY_TITLE = {server.title: server for server in reversed(servers.SERVERS)}

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
        "mlflow", _BY_TITLE["MLflow"],
        "MLflow's server (mlflow models serve) calls its model once for each request to /invocations",
    ),
    # runtimes/mlflow of SeldonIO/MLServer; KServe sets the variable by the model format mlflow.
    ListServer(
        "mlflow", _BY_TITLE["MLServer"],
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
            f"them with carpool.dev/lists: {found.rule} (an empty value ends this notice)"
        )


def recognise(container: pods.Container) -> ListServer | None:
    """The kind of server that runs in a container, None for all others."""
    return next((each for each in LIST_SERVERS if each.recognises(container)), None)


def last(container: pods.Container, flag: str) -> str | None:
    """The value that a flag is given last, which is the one that counts."""
    found = [value for _, _, value in edits.flag_values(container.words, flag)]
    return found[-1] if found else None
