"""All settings that annotations can make, each with its type, range and meaning: one place for code and documentation.

The ranges of what becomes a flag of the sidecar are the sidecar's own (a test holds the two together), and so are the
rules between settings: what is accepted here must never keep a sidecar from starting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import alias_generators

from carpool.program import shared_names
from carpool_injector.core import list_rules, values

_KIB = 1024
_DAY = 86_400.0
_HOUR_MS = 3_600_000.0
_LARGEST = 2**40
# The sidecar's own defaults.
BATCH_SIZE, _BODY_BYTES, _QUEUE_BYTES = 32, 64 * 2**20, 256 * 2**20
_TIMEOUT, _WINDOW = 60.0, 500.0
# The only rule whose requests the sidecar can make into tensors (carpool_sidecar.config).
_LISTS_BEFORE_V2 = "openai-embeddings"
_PAIRS = r"tei-predict|vllm-score|v[12](:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
_MEMBERS = rf"({shared_names.MEMBER}(,{shared_names.MEMBER}){{0,{shared_names.MOST_MEMBERS - 1}}})?"


def _kebab(name: str) -> str:
    return alias_generators.to_snake(name).replace("_", "-")


def _check_headers(text: str) -> str:
    values.full_match(values.HEADERS, text, "header names, comma-separated, at most 32")
    shared = sorted(shared_names.NOT_SHARED.intersection(text.lower().split(",")))
    if shared:
        raise ValueError(f"must not name {shared[0]}, which belongs to a single message")
    return text


def _check_priority(text: str) -> str:
    values.full_match(f"({values.HEADER})?", text, "the name of one header")
    if shared_names.is_taken(text):
        raise ValueError(f"must not name {text.lower()}, which says something else of a request")
    return text


def _check_members(text: str) -> str:
    allowed = f"letters, digits and _.-, from a letter or _ on, comma-separated, at most {shared_names.MOST_MEMBERS}"
    values.full_match(_MEMBERS, text, f"names of members: {allowed}")
    own = sorted(shared_names.OF_EACH_ANSWER.intersection(text.lower().split(",")))
    if own:
        raise ValueError(f"must not name {own[0]}, which is each caller's own in an answer")
    return text


def _check_forwarded(text: str) -> str:
    values.full_match(values.FORWARDED, text, "name=first or name=joined, comma-separated, at most 32")
    named = dict(entry.split("=") for entry in text.lower().split(",")) if text else {}
    for entry in filter(None, text.lower().split(",")):
        name, how = entry.split("=")
        if name in shared_names.NOT_FORWARDED:
            raise ValueError(
                f"must not name {name}: key-headers keeps callers apart who differ in credentials or types"
            )
        if shared_names.NOT_METADATA.fullmatch(name):
            raise ValueError(
                f"must not name {name}: gRPC knows only 0-9 a-z _ . - and keeps grpc-* and *-bin for itself"
            )
        if named[name] != how:
            raise ValueError(f"must not name {name} twice, as first and as joined")
    return text


def _check_sizes(text: str) -> str:
    values.full_match(values.SIZES, text, "ascending whole numbers from 1, like 1,2,4,8")
    sizes = [int(size) for size in text.split(",")] if text else []
    if any(small >= large for small, large in zip([0, *sizes], sizes, strict=False)):
        raise ValueError("must be ascending whole numbers from 1, like 1,2,4,8")
    return text


def _flag_like(example: str) -> pydantic.BeforeValidator:
    return values.text(r"--?[a-zA-Z][a-zA-Z0-9_.-]{0,63}", f"a flag such as {example}")


_VARIABLE = values.text(r"[A-Za-z_][A-Za-z0-9_]{0,127}", "the name of an environment variable")
_PATH = values.text(values.PATH, "a path that begins with /, at most 256 characters")
_QUANTITY = values.quantity()
_MEMORY = values.quantity(values.check_memory)
_QUANTITY_OR_NONE = values.quantity(values.check_quantity_or_none, values.NO_LIMIT)


class SidecarSettings(pydantic.BaseModel):
    """Settings that are flags of the sidecar as well."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=_kebab, use_attribute_docstrings=True
    )

    # --- Batching
    max_batch_size: Annotated[int | None, values.whole(1, 100_000)] = None
    """Instances in one call to the predictor, at most."""
    max_latency: Annotated[float | None, values.number(0, _HOUR_MS, "milliseconds")] = None
    """Milliseconds the oldest request may wait for others. Without it the sidecar learns when to send."""
    timeout: Annotated[float | None, values.number(0.01, _DAY, "seconds")] = None
    """Seconds until a request is answered 504."""
    from_probe: Annotated[str | None, _PATH] = None
    """File with what `carpool-sidecar probe --json` or `doctor --json` printed; sizes follow from it."""
    policy: Annotated[str | None, values.choice("auto", "window", "adaptive")] = None
    """When a batch leaves."""
    slo: Annotated[float | None, values.number(1, _HOUR_MS, "milliseconds")] = None
    """Service objective: milliseconds from arrival to answer; what would miss it is refused early."""
    max_in_flight: Annotated[int | None, values.whole(1, 1024)] = None
    """Batches at the predictor at once, at most."""
    key_headers: Annotated[str | None, values.checked(_check_headers)] = None
    """Only requests that agree in these share a batch."""
    forward_headers: Annotated[str | None, values.checked(_check_forwarded)] = None
    """Headers that the predictor sees of a batch whose requests differ in them: the first value, or all joined."""
    answer_members: Annotated[str | None, values.checked(_check_members)] = None
    """Members of the predictor's v1 answers that are the same for all callers, and that each of them gets."""
    mix_forms: Annotated[bool | None, values.switch()] = None
    """Let instances of other forms share a batch; for apps that look at each instance by itself."""
    max_batch_bytes: Annotated[int | None, values.whole(0, _LARGEST)] = None
    """Bytes in one batch, at most; 0: no limit."""
    instance_cost: Annotated[str | None, values.choice("none", "bytes", "length")] = None
    """What an instance costs."""
    max_batch_cost: Annotated[int | None, values.whole(0, _LARGEST)] = None
    """Cost of all instances in one batch, at most."""
    allowed_batch_sizes: Annotated[str | None, values.checked(_check_sizes)] = None
    """Sizes the predictor computes with."""
    small_batch_threshold: Annotated[int | None, values.whole(0, 1_000_000)] = None
    """Requests so small go before larger ones."""
    group_by_length: Annotated[bool | None, values.switch()] = None
    """Let instances of like length share a batch; for apps that pad all of a batch to the longest."""
    priority_header: Annotated[str | None, values.checked(_check_priority)] = None
    """Header that says how urgent a request is: high, normal or low (or 1, 0, -1)."""
    priority_ageing: Annotated[float | None, values.number(0, _HOUR_MS, "milliseconds")] = None
    """Milliseconds after which a larger request is overtaken no more, and one of a lower level after 60 times that."""
    # --- Overload and failures
    max_queue_instances: Annotated[int | None, values.whole(1, 100_000)] = None
    """Instances waiting, at most; beyond it 429."""
    max_queue_bytes: Annotated[int | None, values.whole(_KIB, _LARGEST)] = None
    """Bytes of bodies held at once; beyond it 429."""
    max_body_bytes: Annotated[int | None, values.whole(_KIB, _LARGEST)] = None
    """Bytes of one predict body; beyond it 413."""
    retry_statuses: Annotated[
        str | None, values.text(values.STATUSES, "4xx, 5xx or statuses from 400 to 599, comma-separated")
    ] = None
    """Predictor statuses after which a batch is retried by halves."""
    retry_budget: Annotated[float | None, values.number(0, 100, "retries per batch")] = None
    """Such retries per batch in the long run."""
    kserve_errors: Annotated[bool | None, values.switch()] = None
    """Answer errors as KServe's batcher does."""
    server_timing: Annotated[bool | None, values.switch()] = None
    """Tell callers in `Server-Timing` how long they waited, how long the predictor took, and what batch it was."""
    # --- Connections and the predictor
    host: Annotated[str | None, values.choice("::", "0.0.0.0")] = None
    """Where the sidecar listens, with its admin port too: `::` is all addresses, `0.0.0.0` all of IPv4."""
    keep_alive: Annotated[float | None, values.number(0.1, _DAY, "seconds")] = None
    """Seconds an idle connection stays open."""
    head_timeout: Annotated[float | None, values.number(0.1, _DAY, "seconds")] = None
    """Seconds for a request's head."""
    max_connections: Annotated[int | None, values.whole(1, 1_000_000)] = None
    """Client connections at once, HTTP and gRPC together; beyond it 503."""
    component_host: Annotated[str | None, values.choice("127.0.0.1", "::1")] = None
    """Where the sidecar reaches the app. ::1 is for one that listens over IPv6 only."""
    connect_timeout: Annotated[float | None, values.number(0.01, 600, "seconds")] = None
    """Seconds to reach the predictor."""
    upstream: Annotated[str | None, values.choice("http", "triton-http", "triton-grpc")] = None
    """What v1 predict requests go on as. http: as they are; triton-http, triton-grpc: v2, for Triton and MLServer."""
    embeddings_output: Annotated[str | None, values.text(values.TENSOR, "the name of an output of the model")] = None
    """Output that has the embeddings, for OpenAI's embeddings of a v2 model with several that may be."""
    unknown_models: Annotated[str | None, values.choice("batch", "pass")] = None
    """v2 models of which the predictor does not say whether they have a batch dimension: batch them or pass them on."""
    lists: Annotated[str | None, values.checked(list_rules.check)] = None
    """Rules by which requests with a list in them are batched (docs/lists.md). A file works only where the pod declares
    a container for the sidecar that mounts it. Without it: the rule for the app's server, where that is certain;
    empty: none."""
    rerank_to: Annotated[str | None, values.text(_PAIRS, "tei-predict, vllm-score, v1, v2, v1:MODEL or v2:MODEL")] = (
        None
    )
    """Where rerank requests by `lists` go as pairs of query and document, so that all callers share calls."""
    predictor_health_path: Annotated[str | None, _PATH] = None
    """Path that answers 200 once the predictor is ready. Without it: the container's own readiness probe."""
    quiet_period: Annotated[float | None, values.number(0, 3600, "seconds")] = None
    """Seconds still served after SIGTERM, at least."""
    grace_period: Annotated[float | None, values.number(0, _DAY, "seconds", above=True)] = None
    """Seconds from SIGTERM to exit, at most. Without it: 5 less than terminationGracePeriodSeconds."""
    log_level: Annotated[str | None, values.choice("debug", "info", "warning", "error")] = None
    """Least severity to log."""
    log_format: Annotated[str | None, values.choice("auto", "json", "text")] = None
    """Form of the log."""
    record: Annotated[str | None, _PATH] = None
    """File to which arrivals are appended: times, instances, bytes, hashed keys. It works only where the pod declares a
    container for the sidecar that mounts a volume there."""
    tracing: Annotated[str | None, values.choice("off", "otlp")] = None
    """otlp: spans by OpenTelemetry. Its environment variables are those of a container for the sidecar that the pod
    declares."""


class Settings(SidecarSettings):
    """What a pod's annotations say, defaults and KServe's batcher included; None: nothing was said."""

    first: ClassVar[tuple[str, ...]] = (
        "max-batch-size", "max-latency", "policy", "slo", "timeout", "key-headers", "lists", "port", "app-port-arg",
        "resources-limits-cpu",
    )  # fmt: skip
    """The ten that decide most for most pods; the documents tell them before all others."""

    takeover: Annotated[
        str | None, values.choice("auto", "queue-proxy", "kserve-agent", "port-swap", "named-port", "none")
    ] = None
    """How the sidecar gets in front of the app; auto takes the first that works."""
    container: Annotated[str | None, values.text(values.DNS_LABEL, "the name of a container")] = None
    """The app's container, where the pod has several."""
    port: Annotated[str | None, values.checked(values.port)] = None
    """The app's port for predictions, number or name, where its container has several."""
    grpc_port: Annotated[str | None, values.checked(values.port_or_off)] = None
    """The app's port for gRPC calls of the v2 protocol, number or name; off leaves gRPC to the app. Without it:
    Triton's and MLServer's."""
    app_port_arg: Annotated[str | None, _flag_like("--port")] = None
    """The flag that tells the app its port, for port-swap on a server that is not recognised."""
    app_port_env: Annotated[str | None, _VARIABLE] = None
    """The environment variable that tells the app its port, likewise."""
    app_grpc_port_arg: Annotated[str | None, _flag_like("--grpc-port")] = None
    """The flag that tells the app its port for gRPC, likewise."""
    app_grpc_port_env: Annotated[str | None, _VARIABLE] = None
    """The environment variable that tells the app its port for gRPC, likewise."""
    sidecar_mode: Annotated[str | None, values.choice("auto", "native", "classic")] = None
    """native: an init container that restarts; classic: a container."""
    components: Annotated[
        str | None, values.text(values.COMPONENTS, "predictor, transformer, explainer, comma-separated")
    ] = None
    """Components of an InferenceService that get a sidecar; predictor without it."""
    image_channel: Annotated[str | None, values.text(values.DNS_LABEL, "the name of a channel")] = None
    """One of the sidecar images the admin offers."""
    resources_requests_cpu: Annotated[str | None, _QUANTITY] = None
    """CPU the sidecar requests."""
    resources_requests_memory: Annotated[str | None, _MEMORY] = None
    """Memory the sidecar requests."""
    resources_limits_cpu: Annotated[str | None, _QUANTITY_OR_NONE] = None
    """CPU the sidecar is limited to; none: without a limit, except in a pod of the class Guaranteed."""
    resources_limits_memory: Annotated[str | None, _MEMORY] = None
    """Memory the sidecar is limited to."""

    @pydantic.model_validator(mode="after")
    def _check_together(self) -> Settings:
        for problem in self._conflicts():
            raise ValueError(problem)
        return self

    def _conflicts(self) -> Iterator[str]:
        adaptive = self.policy == "adaptive" or (self.policy in (None, "auto") and self.max_latency is None)
        latency, timeout = _or(self.max_latency, _WINDOW), _or(self.timeout, _TIMEOUT)
        if not adaptive and timeout * 1000 <= latency:
            yield f"carpool.dev/timeout ({timeout:g} s) must be longer than carpool.dev/max-latency ({latency:g} ms)"
        body, queue = _or(self.max_body_bytes, _BODY_BYTES), _or(self.max_queue_bytes, _QUEUE_BYTES)
        if body > queue:
            yield f"carpool.dev/max-body-bytes ({body}) must not exceed carpool.dev/max-queue-bytes ({queue})"
        size, largest = _or(self.max_batch_size, BATCH_SIZE), int((self.allowed_batch_sizes or "0").split(",")[-1])
        if largest > size:
            yield (
                f"carpool.dev/allowed-batch-sizes ({self.allowed_batch_sizes}) must not exceed "
                f"carpool.dev/max-batch-size ({size})"
            )
        if self.max_batch_cost and self.instance_cost in (None, "none"):
            yield "carpool.dev/max-batch-cost needs carpool.dev/instance-cost bytes or length"
        yield from self._conflicts_of_lists()
        if self.answer_members and self.upstream not in (None, "http"):
            yield (
                f"carpool.dev/answer-members needs carpool.dev/upstream http: with {self.upstream} the predictor gives "
                "no v1 answers"
            )
        forwarded = {entry.partition("=")[0] for entry in (self.forward_headers or "").lower().split(",")}
        if both := sorted(filter(None, forwarded.intersection((self.key_headers or "").lower().split(",")))):
            yield (
                f"carpool.dev/forward-headers must not name {', '.join(both)}, in which all requests of a batch agree "
                "by carpool.dev/key-headers"
            )
        limits = self.amounts("limits")
        for name, request in self.amounts("requests").items():
            limit = limits.get(name, values.NO_LIMIT)
            if limit != values.NO_LIMIT and values.amount(request) > values.amount(limit):
                yield f"carpool.dev/resources-requests-{name} ({request}) must not exceed its limit ({limit})"

    def _conflicts_of_lists(self) -> Iterator[str]:
        if self.rerank_to and not list_rules.has_query(self.lists or ""):
            with_query = ", ".join(list_rules.WITH_QUERY)
            yield f"carpool.dev/rerank-to needs a rule in carpool.dev/lists that has a query, such as {with_query}"
        if self.upstream in (None, "http") or self.lists in (None, ""):
            return
        allowed = [_LISTS_BEFORE_V2]
        if (self.rerank_to or "").startswith("v2"):
            allowed += list_rules.WITH_QUERY
        if not set((self.lists or "").split(",")) <= set(allowed):
            yield (
                f"carpool.dev/lists must be {' or '.join(allowed)}, or empty for none, where carpool.dev/upstream is "
                f"{self.upstream}: of no other rule can requests be made into tensors"
            )

    def amounts(self, kind: Literal["requests", "limits"]) -> dict[str, str]:
        """What was set of the sidecar's resources, cpu and memory in this order."""
        found = {name: getattr(self, f"resources_{kind}_{name}") for name in ("cpu", "memory")}
        return {name: value for name, value in found.items() if value is not None}

    def flags(self) -> Iterator[tuple[str, str]]:
        """The sidecar's flags that were set, as name and value, in the order of the fields."""
        for name, info in SidecarSettings.model_fields.items():
            value = getattr(self, name)
            if value is not None:
                yield "--" + str(info.alias), _written(value)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
