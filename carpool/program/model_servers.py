"""What is known of model servers by their names, and what is said of it: by the injector, which reads a manifest, and
by `carpool-sidecar doctor`, which asks a running server.

Facts are those that decide what batching is worth and what is dangerous; how a server is recognised, each program
knows for itself. docs/protocols.md and docs/lists.md have the sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

PREFIX = "carpool.dev/"
"""What settings begin with as annotations."""

USUAL_KEY_HEADERS = ("authorization", "content-type")
"""The sidecar's default of --key-headers."""


class ModelServer(NamedTuple):
    """A kind of server.

    `speaks` are the protocols of its that are batched without a rule, in words; `rules` those for lists that fit its
    other requests. It `batches` by itself whatever arrives together, or `may_batch` where the setting in these words
    says so. Lists that are longer than it takes are cut by the rules `for_long_lists`. It `makes_tables` where a call's
    instances become one table or array, so that one changes how another is read. `chooses_by` are headers, in lower
    case, by which it chooses the model of a request. The rule `reranks` is for its rerankers, which take `pairs` of
    texts in the way that --rerank-to calls so.
    """

    title: str
    speaks: str = ""
    rules: tuple[str, ...] = ()
    batches: bool = False
    may_batch: str = ""
    for_long_lists: tuple[str, ...] = ()
    makes_tables: bool = False
    chooses_by: tuple[str, ...] = ()
    reranks: str = ""
    pairs: str = ""


_OPENAI = "openai-embeddings"

SERVERS = (
    ModelServer("Triton", "v2 over HTTP and gRPC", may_batch="dynamic_batching in a model's configuration"),
    ModelServer("TensorFlow Serving", "v1", ("tfserving-columns", "tfserving-classify"), may_batch="--enable_batching"),
    ModelServer("MLServer", "v2 over HTTP and gRPC", may_batch="max_batch_size in model-settings.json"),
    ModelServer("KServe's model server", "v1 and v2 over HTTP, v2 over gRPC", makes_tables=True),
    ModelServer("KServe's Hugging Face server", "v1 and v2 over HTTP", (_OPENAI,)),
    ModelServer("OpenVINO Model Server", "v1 and v2 over HTTP, v2 over gRPC", (_OPENAI,)),
    ModelServer("TorchServe", "v1 and v2 of its KServe wrapper", may_batch="batchSize of a model"),
    ModelServer("vLLM", rules=(_OPENAI,), batches=True, reranks="rerank", pairs="vllm-score"),
    ModelServer("SGLang", rules=(_OPENAI,), batches=True),
    ModelServer("text-generation-inference", batches=True),
    ModelServer(
        "text-embeddings-inference",
        rules=("tei-embed", _OPENAI),
        batches=True,
        for_long_lists=("tei-embed", "tei-rerank"),
        reranks="tei-rerank",
        pairs="tei-predict",
    ),
    ModelServer("Infinity", rules=(_OPENAI,), batches=True),
    ModelServer("Ollama", rules=("ollama-embed", _OPENAI), batches=True),
    ModelServer("llama.cpp's server", rules=(_OPENAI,), batches=True),
    ModelServer("JetStream", batches=True),
    ModelServer("carpool-predictor", "v1", (_OPENAI,)),
    ModelServer("BentoML", may_batch="batchable=True of an API"),
    ModelServer("LitServe", may_batch="max_batch_size of a LitAPI"),
    ModelServer("mosec", may_batch="max_batch_size of a worker"),
    ModelServer("Ray Serve", may_batch="@serve.batch", chooses_by=("serve_multiplexed_model_id",)),
    ModelServer("MLflow", rules=("mlflow",), makes_tables=True),
)
BY_TITLE = {server.title: server for server in SERVERS}


def of(title: str) -> ModelServer:
    """What is known of the server with a title; nothing, of one that is not among them."""
    return BY_TITLE.get(title, ModelServer(title))


def annotation(name: str, value: str) -> str:
    """A setting as it is written in a manifest."""
    return f"{PREFIX}{name}: {value}"


def words(server: ModelServer) -> Iterator[str]:
    """What fits, what is gained and what is dangerous, in sentences; nothing of a server that is not known."""
    if server.speaks:
        yield f"{server.title} speaks {server.speaks}, which needs no rule"
    if server.batches:
        yield own_batches(server.title, server.rules)
    elif server.rules:
        yield f"{fitting(server.rules)}: {annotation('lists', ','.join(server.rules))}"
    if server.may_batch:
        yield (
            f"{server.title} batches by itself where it is told to ({server.may_batch}): leave one of both, as two "
            "waits add up"
        )
    if server.for_long_lists:
        yield (
            f"{server.title} refuses lists that are longer than its limit: "
            f"{annotation('lists', ','.join(server.for_long_lists))} cuts them"
        )
    if server.makes_tables:
        yield (
            f"{server.title} makes one table of all instances of a call: only instances of one form share a batch, "
            f"unless {annotation('mix-forms', 'true')} says otherwise"
        )
    for header in server.chooses_by:
        yield choice(server.title, header, USUAL_KEY_HEADERS)


def fitting(rules: Sequence[str]) -> str:
    """That rules fit, without what to set."""
    return f"the rule{'s' if len(rules) > 1 else ''} {' and '.join(rules)} for lists fit{'' if len(rules) > 1 else 's'}"


def own_batches(title: str, rules: Sequence[str]) -> str:
    """What is said of a server that batches by itself; `rules` are those that fit its embeddings."""
    text = (
        f"{title} batches by itself what arrives together: the sidecar passes its requests on as they are and makes "
        "them no faster"
    )
    return f"{text}; for a model of embeddings see {annotation('lists', rules[0])}" if rules else text


def choice(title: str, header: str, keys: Sequence[str]) -> str:
    """What is said of a server that may choose the model by a header; `keys` are the headers that reach it already."""
    return (
        f"{title} may choose the model by the header {header}, which does not reach it on a batch: where callers send "
        f"it, set {annotation('key-headers', ','.join((*keys, header)))}"
    )
