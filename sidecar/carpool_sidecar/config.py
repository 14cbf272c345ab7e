"""All settings of the sidecar: flag, environment variable, default, unit and reason in one place.

The tables in docs/settings.md are made from `Settings`. The sidecar also takes the flags of KServe's agent
(cmd/agent/main.go of kserve/kserve), in whose place it can run.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic_settings import BaseSettings, NoDecode

from carpool.program import logs, settings, shared_names
from carpool.scheduling import limits, packing
from carpool_sidecar.batching import retried_statuses, row_shapes
from carpool_sidecar.planning import probing
from carpool_sidecar.protocols import interface
from carpool_sidecar.protocols.lists import room, rules
from carpool_sidecar.protocols.pairs import destinations

PROG = "carpool-sidecar"

_KIB, _MIB = 1024, 1024 * 1024

_WINDOW_LATENCY = 500.0  # what KServe documents
_MOST_LEARNED_IN_FLIGHT = 8

FIRST = "What matters first"
"""The group of the ten settings that decide most for most predictors; it comes first in `--help` and the documents."""

EXPERTS = "For experts"
"""The group of settings that tests and emergencies need; it comes last."""

_EPILOG = """\
Settings come from flags first, then from the environment variable in brackets, then from the default.
Flags of KServe's agent (--port, --component-port, --enable-batcher, --max-batchsize, --max-latency) work as they do
there, so this program can stand in for it. Example:

  carpool-sidecar --component-port 8080 --max-batch-size 32

Which version is it, and does its hot path run compiled? carpool-sidecar --version.
What is this predictor, what does batching buy there, what should be set? See carpool-sidecar doctor --help.
What do rules of --lists make of a request? See carpool-sidecar lists --help.
What do batches buy at your predictor? See carpool-sidecar probe --help.
How many pods does a load need? See carpool-sidecar plan --help.
What would other settings have done with the traffic of the last minutes? See carpool-sidecar advise --help.
Stopping a pod without losing a request: see carpool-sidecar drain --help.
What does a sidecar do? Open its admin port in a browser, or see carpool-sidecar top --help and tap --help.
"""


# KServe's agent also pulls models and logs payloads. Ignoring those flags would lose data silently.
_AGENT_PULLER = ("--enable-puller", "--config-dir", "--model-dir")
_AGENT_LOGGER = (
    "--log-url", "--workers", "--source-uri", "--log-mode", "--log-store-path", "--log-store-format",
    "--log-marshaller-url", "--log-marshaller-port", "--log-batch-size", "--log-batch-interval",
    "--inference-service", "--namespace", "--endpoint", "--component", "--metadata-headers",
    "--metadata-annotations", "--logger-ca-cert-file", "--logger-tls-skip-verify",
)  # fmt: skip
_AGENT_TASKS = {"the model puller": _AGENT_PULLER, "payload logging": _AGENT_LOGGER}

Port = Annotated[settings.PortOrLink, pydantic.Field(ge=1, le=65535)]
OptionalPort = Annotated[settings.PortOrLink, pydantic.Field(ge=0, le=65535)]


def _parse_statuses(text: str) -> str:
    retried_statuses.Statuses.parse(text)
    return text


def _parse_sizes(text: str) -> str:
    return ",".join(map(str, packing.parse_sizes(text)))


def _split_lists(value: Any) -> Any:
    """YAML is one value, whatever commas are in it."""
    if isinstance(value, str):
        return [value] if rules.is_text(value) else [item.strip() for item in value.split(",") if item.strip()]
    return value


def _check_lists(chosen: tuple[str, ...]) -> tuple[str, ...]:
    rules.load(chosen)
    return chosen


def _check_destination(text: str) -> str:
    if text:
        destinations.Destination.parse(text)
    return text


def _row_sizes(payload: interface.Payload, start: int, stop: int) -> Sequence[int]:
    return payload.row_sizes(start, stop)


def _row_lengths(payload: interface.Payload, start: int, stop: int) -> Sequence[int]:
    return payload.row_lengths(start, stop)


def _row_room(
    payload: interface.Payload, start: int, stop: int, costs: limits.RowMeasure | None, most: int
) -> Sequence[int]:
    """Parts of a call that rows take up: by the limits of their rule, and by what they cost of `most`."""
    taken = payload.row_room(start, stop)
    if costs is None:
        return taken
    return [max(part, cost * room.WHOLE // most) for part, cost in zip(taken, costs(payload, start, stop), strict=True)]


# By how much longer requests of a lower level are overtaken than larger ones.
_LEVEL_AGEING = 60

# What an instance costs, by the values of --instance-cost.
_ROW_COSTS: Mapping[str, limits.RowMeasure] = {"bytes": _row_sizes, "length": _row_lengths}


class Settings(BaseSettings):
    """Merges concurrent predict requests (v1, v2, gRPC) into batches for the predictor; passes on everything else."""

    model_config = settings.config(PROG, "CARPOOL_")

    live: ClassVar[tuple[str, ...]] = (
        "max_batch_size", "max_latency", "slo", "max_in_flight", "timeout", "log_level",
    )  # fmt: skip
    """What can be changed while the sidecar runs."""

    # --- Batching
    max_batch_size: int = settings.field(
        FIRST,
        "Most instances in one call to the predictor. A larger request is split, and its answer is joined again. With "
        "--allowed-batch-sizes, the largest of those is the limit, and changing this while running has no effect.",
        32, ge=1, le=100_000,
    )  # fmt: skip
    max_latency: float | None = settings.field(
        FIRST,
        "Milliseconds the oldest request may wait for others. 0: none waits while the predictor is idle. Empty: 500 "
        "with the window policy; the adaptive policy decides, up to 20.",
        None, ge=0, le=3_600_000,
    )  # fmt: skip
    from_probe: str = settings.field(
        "Batching",
        "File that `carpool-sidecar probe --json` or `doctor --json` wrote. The largest batch that pays is "
        "--max-batch-size, unless that is given; no batch is as large as one that failed, whatever is set later; and "
        "if answers in a batch have other texts or another form than alone, nothing is batched. Empty: none.",
        "",
    )
    policy: Literal["auto", "window", "adaptive"] = settings.field(
        FIRST,
        "window: a batch leaves when it is full or --max-latency old. adaptive: a batch leaves when that is best by "
        "what was learned. auto: window if --max-latency or KServe's --enable-batcher is given, else adaptive.",
        "auto",
    )
    slo: float | None = settings.field(
        FIRST,
        "Service objective: milliseconds from arrival to answer. The adaptive policy refuses requests early that would "
        "miss it. Empty: none.",
        None, ge=1, le=3_600_000,
    )  # fmt: skip
    max_in_flight: int | None = settings.field(
        "Batching",
        "Most batches at the predictor at once; the policy begins with so many. Empty: it is learned, up to 8: one for "
        "each batch that the predictor works on at a time, and one that arrives when the predictor is done.",
        None, ge=1, le=1024,
    )  # fmt: skip
    timeout: float = settings.field(
        FIRST,
        "Seconds from arrival until a request is answered 504. A caller may ask for less (carpool-timeout-ms).",
        60.0, ge=0.01, le=86_400,
    )  # fmt: skip
    key_headers: Annotated[settings.CommaList, pydantic.AfterValidator(shared_names.read_key)] = settings.field(
        FIRST,
        "Headers the predictor sees. Only requests that agree in all of them share a batch.",
        ("authorization", "content-type"),
    )
    forward_headers: Annotated[settings.CommaList, pydantic.AfterValidator(shared_names.read_forwarded)] = (
        settings.field(
            "Batching",
            "Headers that the predictor sees of a batch whose requests differ in them, for example "
            "x-tenant=first,x-user=joined. first: the value of the first request that has the header. joined: all, "
            "once, with commas between them, as many as fit into 4096 characters.",
            (),
        )
    )
    answer_members: Annotated[settings.CommaList, pydantic.AfterValidator(shared_names.read_members)] = settings.field(
        "Batching",
        "Members of the predictor's v1 answers that are the same for all callers, such as model_name,model_version: "
        "each caller of a batch gets those that its answer has, as they were written, up to 4096 bytes each.",
        (),
    )
    lists: Annotated[
        tuple[str, ...], NoDecode, pydantic.BeforeValidator(_split_lists), pydantic.AfterValidator(_check_lists)
    ] = settings.field(
        FIRST,
        "What else is batched: names of built-in rules (openai-embeddings, tei-embed, hf-toolkit, mlflow, "
        "tfserving-columns, tfserving-classify, ollama-embed, tei-predict, vllm-pooling, vllm-score, cohere-embed, "
        "rerank, tei-rerank, nim-ranking), YAML files with rules of your own, or YAML itself; see docs/lists.md.",
        (),
    )
    rerank_to: Annotated[str, pydantic.AfterValidator(_check_destination)] = settings.field(
        "Batching",
        "Where rerank requests by --lists (rerank, tei-rerank, nim-ranking) go as pairs of query and document, so that "
        "all callers share calls: tei-predict (/predict of text-embeddings-inference), vllm-score (/score of vLLM), v1 "
        "or v2 (the model that the body names), v1:MODEL or v2:MODEL. Empty: they go as they are.",
        "",
    )
    mix_forms: bool = settings.field(
        "Batching",
        "Let instances of different forms share a batch: with other members, the same in another order, or other kinds "
        "of values. Only for predictors that look at each instance by itself: one that makes a table or an array of "
        "them gives callers other predictions then.",
        False,
    )
    max_batch_bytes: int = settings.field(
        "Batching",
        "Most bytes of request bodies in one batch. A larger request is split, a larger instance is sent alone. 0: no "
        "limit. The default is that of --max-body-bytes: a predictor that can take any request can take any batch.",
        64 * _MIB, ge=0,
    )  # fmt: skip
    instance_cost: Literal["none", "bytes", "length"] = settings.field(
        "Batching",
        "What an instance costs of --max-batch-cost: its bytes, or the length of a JSON array (1 for anything else).",
        "none",
    )
    max_batch_cost: int = settings.field(
        "Batching",
        "Most that all instances of a batch may cost, for example in tokens. A larger instance is sent alone. 0: no "
        "limit.",
        0, ge=0,
    )  # fmt: skip
    allowed_batch_sizes: Annotated[str, pydantic.AfterValidator(_parse_sizes)] = settings.field(
        "Batching",
        "Sizes the predictor computes with, ascending, for example 1,2,4,8,16,32, if it pads others up. A batch leaves "
        "at the size that costs least per instance, and never above the last. Empty: any size.",
        "",
    )
    small_batch_threshold: int = settings.field(
        "Batching",
        "Requests of at most so many instances leave before larger ones. 0: requests leave in order of arrival.",
        0, ge=0, le=1_000_000,
    )  # fmt: skip
    group_by_length: bool = settings.field(
        "Batching",
        "Instances of like length share a batch: for predictors that pad all of a batch to the longest, such as "
        "sentence encoders, and not where the server packs them or batches by itself. The length is an instance's "
        "bytes. A request is overtaken only by those that came less than --priority-ageing after it.",
        False,
    )
    priority_header: Annotated[str, pydantic.AfterValidator(shared_names.read_priority)] = settings.field(
        "Batching",
        "Header, over gRPC metadata, by which callers say how urgent a request is: high, normal or low (or 1, 0, -1). "
        "Higher levels leave first and are not refused for want of room that lower ones take. Empty: all are normal.",
        "",
    )
    # --- Overload
    max_queue_instances: int = settings.field(
        FIRST, "Most instances that wait for a batch. Beyond it the answer is 429.", 16_384, ge=1, le=100_000
    )
    max_queue_bytes: int = settings.field(
        "Overload",
        "Most bytes of request bodies held at once: arriving, waiting or at the predictor. Beyond it the answer is "
        "429. If the predictor answers with more, the answer is broken off and its callers get 502.",
        256 * _MIB, ge=_KIB,
    )  # fmt: skip
    max_body_bytes: int = settings.field(
        "Overload",
        "Most bytes of one predict body, as sent and once decompressed. Beyond it the answer is 413.",
        64 * _MIB, ge=_KIB,
    )  # fmt: skip
    # --- Failures
    retry_statuses: Annotated[str, pydantic.AfterValidator(_parse_statuses)] | None = settings.field(
        "Failures",
        "Statuses of the predictor after which a batch is sent again by halves to find the bad request: 4xx, 5xx, "
        "single statuses, comma-separated. Not given: 4xx, and 500, which many servers answer to bad requests, too. "
        "Empty: none.",
        None,
    )
    kserve_errors: bool = settings.field(
        "Failures",
        "Answer errors as KServe's batcher does: text/plain, and status 200 with the error in `message` when a batch "
        "fails.",
        False,
    )
    # --- Listening
    host: str = settings.field(
        "Listening", "Address to listen on: `::` means all, over IPv6 and IPv4, `0.0.0.0` all of IPv4.", "::"
    )
    port: Port = settings.field("Listening", "Port for predict requests and everything passed through.", 9081)
    keep_alive: float = settings.field(
        "Listening",
        "Seconds an idle client connection stays open. Keep it longer than in any proxy in front, so that the proxy "
        "closes first.",
        3620.0, ge=0.1, le=86_400,
    )  # fmt: skip
    max_connections: int | None = settings.field(
        "Listening",
        "Most client connections at once, HTTP and gRPC together. One more is answered 503 and closed. Empty: half of "
        "the open-file limit (a request passed through takes a second file), at most 10000.",
        None, ge=1, le=1_000_000,
    )  # fmt: skip
    grpc_port: OptionalPort = settings.field(
        FIRST, "Port for gRPC. ModelInfer is batched, all other calls are passed through. 0: none.", 0
    )
    admin_host: str = settings.field("Listening", "Address of the admin port, likewise.", "::")
    admin_port: Port = settings.field(
        "Listening",
        "Port for /livez /readyz /metrics /config /arrivals /drain /drained, and / with the live page.",
        9082,
    )
    admin_write: Literal["loopback", "any"] = settings.field(
        "Listening", "Who may PATCH /config and POST /drain. loopback: callers in this pod; any: everybody.", "loopback"
    )
    admin_token_file: str = settings.field(
        "Listening",
        "File with a token, which both then take (`Authorization: Bearer`), from wherever they come; the admin port is "
        "read-only without it. Empty: none.",
        "",
    )
    # --- Predictor
    component_host: Literal["127.0.0.1", "::1"] = settings.field(
        "Predictor",
        "Address of the predictor. `::1` is for one that listens over IPv6 only; `127.0.0.1` reaches all others, "
        "and does so in pods of IPv6 only.",
        "127.0.0.1",
    )
    component_port: Port = settings.field(FIRST, "Port of the predictor.", 8080)
    component_grpc_port: Port = settings.field("Predictor", "Port of the predictor for gRPC.", 8001)
    upstream: Literal["http", "triton-http", "triton-grpc"] = settings.field(
        "Predictor",
        "How v1 requests, and those of --lists, are sent to the predictor. http: as they are; triton-http, "
        "triton-grpc: as v2, in tensors made by the model's metadata, over HTTP or gRPC. Of --lists these take "
        "openai-embeddings and, with --rerank-to v2, rules of rerank requests.",
        "http",
    )
    embeddings_output: str = settings.field(
        "Predictor",
        "Output that has the embeddings, for --lists openai-embeddings in front of triton-http or triton-grpc. Only "
        "models with several outputs of floating point numbers in two dimensions need it. Empty: the only such output.",
        "",
    )
    unknown_models: Literal["batch", "pass"] = settings.field(
        "Predictor",
        "v2 models of which the predictor does not tell whether they have a batch dimension. batch: they are batched "
        "while their answers fit; pass: they are not batched.",
        "batch",
    )
    connect_timeout: float = settings.field(
        "Predictor", "Seconds to connect to the predictor. Beyond it the answer is 502.", 5.0, ge=0.01, le=600
    )
    predictor_health_path: str = settings.field(
        "Predictor",
        "Path that answers 200 once the predictor is ready. Empty: SERVING_READINESS_PROBE (a Kubernetes probe as "
        "JSON) decides; without that, the predictor is ready when its port accepts connections.",
        "",
    )
    # --- Shutdown
    quiet_period: float = settings.field(
        "Shutdown",
        "Seconds after SIGTERM in which requests are still served while endpoints forget this pod. It lasts longer "
        "while requests keep coming, up to nearly half of --grace-period, and shorter where no time would be left to "
        "answer what was accepted. 0: none.",
        5.0, ge=0, le=3600,
    )  # fmt: skip
    grace_period: float = settings.field(
        "Shutdown", "Most seconds from SIGTERM to exit. Keep it below terminationGracePeriodSeconds.",
        25.0, gt=0, le=86_400,
    )  # fmt: skip
    # --- Logs
    log_level: logs.Level = settings.field("Logs", "debug tells why each batch left.", "info")
    log_format: logs.Format = settings.field("Logs", "auto: text on a terminal, JSON elsewhere.", "auto")
    server_timing: bool = settings.field(
        "Logs",
        "Tell callers in the header Server-Timing (over gRPC in trailing metadata) how long their request waited, how "
        "long the predictor took, and what batch it was in. Browsers' developer tools show it.",
        False,
    )
    record: str = settings.field(
        "Logs",
        "File to which arrivals are appended for `carpool-sidecar advise --from` and `plan --from`: times, instances, "
        "bytes and hashed keys, no payloads. At 64 MiB it becomes FILE.1 and a new one begins. Empty: none.",
        "",
    )
    tracing: Literal["off", "otlp"] = settings.field(
        "Logs",
        "otlp: spans of batches and of the waits of traced requests, by OTLP over HTTP; where they go and which are "
        "sampled is told by OpenTelemetry's own environment variables (OTEL_EXPORTER_OTLP_ENDPOINT), see "
        "docs/tracing.md.",
        "off",
    )
    # --- KServe
    enable_batcher: bool = settings.field(
        "KServe", "Batch predict requests. --enable-batcher=false only passes through.", True
    )
    # --- For experts: what tests and emergencies need
    priority_ageing: float = settings.field(
        EXPERTS,
        "Milliseconds. A larger request is not overtaken by small ones that came so much later (see "
        "--small-batch-threshold), nor by those of the next higher level that came sixty times as much later (see "
        "--priority-header).",
        1000.0, ge=0, le=3_600_000,
    )  # fmt: skip
    retry_budget: float = settings.field(
        EXPERTS,
        "Retries by halves that each regular batch allows for, in the long run. Bursts of 100 are fine. 0: only the "
        "burst.",
        2.0, ge=0, le=100,
    )  # fmt: skip
    head_timeout: float = settings.field(
        EXPERTS, "Seconds for the head of a request to arrive, once it began.", 30.0, ge=0.1, le=86_400
    )

    _probe: probing.Kept | None = None
    _list_rules: tuple[rules.Rule, ...] = ()

    @pydantic.model_validator(mode="after")
    def _load_lists(self) -> Settings:
        self._list_rules = rules.load(self.lists)
        return self

    @pydantic.model_validator(mode="after")
    def _apply_probe(self) -> Settings:
        if self.from_probe:
            self._probe = self._read_probe()
            self._obey_probe()
        return self

    def _obey_probe(self) -> None:
        kept = self._probe
        if kept is None:
            return
        if kept.max_batch_size is not None and "max_batch_size" not in self.model_fields_set:
            self.max_batch_size = kept.max_batch_size
        if kept.fails_from is not None:
            self.max_batch_size = max(1, min(self.max_batch_size, kept.fails_from - 1))
        if kept.changes:
            self.enable_batcher = False

    def _read_probe(self) -> probing.Kept:
        try:
            with pathlib.Path(self.from_probe).open("rb") as file:
                text = file.read(_MIB + 1)
            if len(text) > _MIB:
                raise ValueError(f"it is larger than {_MIB} bytes")
            return probing.read(text)
        except OSError as error:
            raise ValueError(f"--from-probe ({self.from_probe}) cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ValueError(f"--from-probe ({self.from_probe}): {error}") from None

    @pydantic.model_validator(mode="after")
    def _check_together(self) -> Settings:
        if not self.is_adaptive and self.timeout * 1000 <= self.latency_bound:
            raise ValueError(
                f"--timeout ({self.timeout} s) must be longer than --max-latency ({self.latency_bound} ms), or "
                "requests would time out while they wait for a batch"
            )
        self._check_ports()
        if self.max_body_bytes > self.max_queue_bytes:
            raise ValueError(
                f"--max-body-bytes ({self.max_body_bytes}) must not exceed --max-queue-bytes ({self.max_queue_bytes})"
            )
        allowed = packing.parse_sizes(self.allowed_batch_sizes)
        if allowed and allowed[-1] > self.max_batch_size:
            is_probed = self._probe is not None and self.max_batch_size in (
                self._probe.max_batch_size,
                (self._probe.fails_from or 0) - 1,
            )
            raise ValueError(
                f"--allowed-batch-sizes ({self.allowed_batch_sizes}) must not exceed --max-batch-size "
                f"({self.max_batch_size}{' by --from-probe' if is_probed else ''})"
            )
        if self.max_batch_cost and self.instance_cost == "none":
            raise ValueError(f"--max-batch-cost ({self.max_batch_cost}) needs --instance-cost bytes or length")
        self._check_lists_before_v2()
        if self.answer_members and self.upstream != "http":
            raise ValueError(
                f"--answer-members needs --upstream http: with {self.upstream} the predictor gives no v1 answers"
            )
        if both := sorted({header.name for header in self.forwarded} & set(self.key_headers)):
            raise ValueError(
                f"--forward-headers names {', '.join(both)}, in which all requests of a batch agree by --key-headers"
            )
        if self.quiet_period >= self.grace_period:
            raise ValueError(
                f"--quiet-period ({self.quiet_period}) must be shorter than --grace-period ({self.grace_period})"
            )
        return self

    def _check_lists_before_v2(self) -> None:
        to = self.destination
        if to is not None:
            to.check(self.list_rules)
        if self.upstream == "http" or not self.lists:
            return
        allowed, as_pairs = rules.built_in()["openai-embeddings"], to is not None and to.kind == destinations.V2
        others = [rule.name for rule in self.list_rules if rule != allowed and not (rule.query and as_pairs)]
        if others:
            raise ValueError(
                f"--upstream {self.upstream} takes no rule of --lists but openai-embeddings as it is built in, and "
                "with --rerank-to v2 those of rerank requests, as only such requests can be made into tensors; given: "
                f"{', '.join(others)}"
            )

    @property
    def destination(self) -> destinations.Destination | None:
        """Where rerank requests go as pairs, if they do."""
        return destinations.Destination.parse(self.rerank_to) if self.rerank_to else None

    def _check_ports(self) -> None:
        taken = {"--port": self.port, "--admin-port": self.admin_port}
        if self.grpc_port:
            taken["--grpc-port"] = self.grpc_port
        for (name, port), (other, same) in itertools.combinations(taken.items(), 2):
            if port == same:
                raise ValueError(f"{name} and {other} must differ; both are {port}")

    @property
    def forwarded(self) -> tuple[shared_names.Forwarded, ...]:
        """What --forward-headers names."""
        return shared_names.forwarded(self.forward_headers)

    @property
    def list_rules(self) -> tuple[rules.Rule, ...]:
        """The rules of --lists, as they were when the program began."""
        return self._list_rules

    @property
    def is_adaptive(self) -> bool:
        """Whether the adaptive policy runs: told so, or told neither a latency nor that this is KServe's batcher."""
        if self.policy != "auto":
            return self.policy == "adaptive"
        stands_in_for_kserve = self.enable_batcher and "enable_batcher" in self.model_fields_set
        return self.max_latency is None and not stands_in_for_kserve

    @property
    def latency_bound(self) -> float:
        """The longest voluntary wait in milliseconds."""
        return _WINDOW_LATENCY if self.max_latency is None else self.max_latency

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """A copy with some live settings changed.

        Raises `ValueError` with one line that names the field and what is allowed.
        """
        unknown = [name for name in changes if name not in self.live]
        if unknown:
            raise ValueError(f"{', '.join(unknown)} cannot be changed at run time; these can: {', '.join(self.live)}")
        # Numbers come as text from the command line, which is no reason to take text or `true` for one in JSON.
        if wrong := [
            f"{settings.named(type(self), name)} got {json.dumps(value)}: must be a number"
            for name, value in changes.items()
            if isinstance(value, (bool, str)) and isinstance(getattr(self, name), (int, float, type(None)))
        ]:
            raise ValueError("; ".join(wrong))
        try:
            # The policy was chosen at the start; a latency given later bounds it, but does not change it.
            policy = "adaptive" if self.is_adaptive else "window"
            # What a probe found and the rules were read at the start; their files may be others by now, or gone.
            read_already = {"policy": policy, "from_probe": "", "lists": ()}
            made = self.model_validate({**self.model_dump(), **read_already, **changes})
        except pydantic.ValidationError as error:
            raise ValueError("; ".join(settings.problems(type(self), error))) from None
        made.from_probe, made._probe = self.from_probe, self._probe
        made.lists, made._list_rules = self.lists, self._list_rules
        made._obey_probe()
        return made

    @property
    def _most_cost(self) -> tuple[float, limits.RowMeasure | None]:
        """The most that the rows of a call may cost, and what they do: as it is said here, and by rules with limits."""
        costs = _ROW_COSTS.get(self.instance_cost) if self.max_batch_cost else None
        if not any(rule.has_room for rule in self.list_rules):
            return self.max_batch_cost or math.inf, costs
        return room.WHOLE, functools.partial(_row_room, costs=costs, most=self.max_batch_cost)

    @property
    def scheduler_limits(self) -> limits.Limits:
        """What the scheduler obeys, in its units."""
        allowed = packing.parse_sizes(self.allowed_batch_sizes)
        most, costs = self._most_cost
        return limits.Limits(
            max_batch_size=allowed[-1] if allowed else self.max_batch_size,
            max_latency=self.latency_bound / 1000,
            timeout=self.timeout,
            slo=math.inf if self.slo is None else self.slo / 1000,
            max_in_flight=self.max_in_flight or _MOST_LEARNED_IN_FLIGHT,
            learns_in_flight=self.max_in_flight is None,
            max_queue_instances=self.max_queue_instances,
            max_queue_bytes=self.max_queue_bytes,
            retry_budget=self.retry_budget,
            max_batch_bytes=self.max_batch_bytes or math.inf,
            max_batch_cost=most,
            row_sizes=_row_sizes,
            row_costs=costs,
            row_lengths=_row_sizes if self.group_by_length else None,
            row_shape=row_shapes.of,
            allowed_sizes=allowed,
            small_batch_threshold=self.small_batch_threshold,
            priority_ageing=self.priority_ageing / 1000,
            level_ageing=_LEVEL_AGEING * self.priority_ageing / 1000,
        )


def load(argv: Sequence[str]) -> Settings:
    """Settings from the command line and the environment; exits with status 2 and one line if something is wrong."""
    for argument in argv:
        name, _, value = argument.partition("=")
        for task, names in _AGENT_TASKS.items():
            if name in names and not (name in _AGENT_PULLER and value == "false"):
                settings.fail(PROG, f"{name}: this is the batcher only; keep KServe's own agent image for {task}")
    return settings.load(Settings, _without_agent_flags(argv), _EPILOG)


def _without_agent_flags(argv: Sequence[str]) -> list[str]:
    """Spell --max-batchsize our way, and leave out what KServe's agent declares and this program has no use for.

    The other spelling is no alias of the field: an alias would also be an environment variable, without prefix.
    """
    kept: list[str] = []
    skip = False
    for argument in argv:
        name, _, _ = argument.partition("=")
        if name == "--max-batchsize":
            argument = argument.replace(name, "--max-batch-size", 1)
        if not skip and name != "--probe-period" and name not in _AGENT_PULLER:
            kept.append(argument)
        skip = not skip and argument == "--probe-period"
    return kept
