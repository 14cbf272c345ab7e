"""All settings of the sidecar: flag, environment variable, default, unit and reason in one place.

The table in docs/settings.md is held against this model by a test. What `Settings.live` names can be changed while
running.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic_settings import BaseSettings

from carpool.program import logs, settings
from carpool.scheduling import isolation, sizes
from carpool_sidecar import agent_flags

PROG = "carpool-sidecar"

_KIB, _MIB = 1024, 1024 * 1024

_WINDOW_LATENCY = 500.0  # what KServe documents

_EPILOG = """\
Settings come from flags first, then from the environment variable in brackets, then from the default.
Flags of KServe's agent (--port, --component-port, --enable-batcher, --max-batchsize, --max-latency) work as they do
there, so this program can stand in for it. Example:

  carpool-sidecar --component-port 8080 --max-batch-size 32

How many pods does a load need? See carpool-sidecar plan --help.
Stopping a pod without losing a request: see carpool-sidecar drain --help.
"""


Port = Annotated[settings.PortOrLink, pydantic.Field(ge=1, le=65535)]
OptionalPort = Annotated[settings.PortOrLink, pydantic.Field(ge=0, le=65535)]


def _parse_statuses(text: str) -> str:
    isolation.Statuses.parse(text)
    return text


def _parse_sizes(text: str) -> str:
    return ",".join(map(str, sizes.parse(text)))


# Headers that speak of one message or one connection; a batch has its own.
_NOT_IN_A_KEY = {
    "host", "content-length", "content-encoding", "transfer-encoding", "connection", "keep-alive", "upgrade", "te",
    "trailer", "expect", "proxy-authorization", "accept-encoding", "x-request-id", "traceparent", "tracestate",
}  # fmt: skip


def _read_key_headers(names: tuple[str, ...]) -> tuple[str, ...]:
    """Each once and in lower case, as gRPC's metadata are named and the rest of the sidecar expects them."""
    for name in names:
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise ValueError(f"{name!r} is not a header name")
        if name.lower() in _NOT_IN_A_KEY:
            raise ValueError(f"{name!r} belongs to a single message and cannot be shared by a batch")
    return tuple(dict.fromkeys([name.lower() for name in names]))


class Settings(BaseSettings):
    """Merges concurrent v1 predict requests into batches for the predictor beside it, and passes on everything else."""

    model_config = settings.config(PROG, "CARPOOL_")

    live: ClassVar[tuple[str, ...]] = (
        "max_batch_size", "max_latency", "timeout", "max_in_flight", "max_queue_instances", "max_queue_bytes",
        "slo", "max_body_bytes", "retry_statuses", "retry_budget", "log_level", "max_batch_bytes", "instance_cost",
        "max_batch_cost", "allowed_batch_sizes", "small_batch_threshold", "priority_ageing",
    )  # fmt: skip

    # --- Batching
    max_batch_size: int = settings.field(
        "Batching",
        "Instances in one call to the predictor, at most; a larger request is split and rejoined.",
        32, ge=1, le=100_000,
    )  # fmt: skip
    max_latency: float | None = settings.field(
        "Batching",
        "Milliseconds the oldest request may wait for others; 0: never wait while the predictor is idle. Empty: 500 "
        "for the window policy; the adaptive policy decides, up to 20.",
        None, ge=0, le=3_600_000,
    )  # fmt: skip
    policy: Literal["auto", "window", "adaptive"] = settings.field(
        "Batching",
        "window: a batch leaves when full or --max-latency old; adaptive: when that is best by what was learned. auto: "
        "window if --max-latency or KServe's --enable-batcher is given, else adaptive.",
        "auto",
    )
    slo: float | None = settings.field(
        "Batching",
        "Service objective: milliseconds from arrival to answer. The adaptive policy refuses early what would miss it. "
        "Empty: none.",
        None, gt=0, le=3_600_000,
    )  # fmt: skip
    max_in_flight: int | None = settings.field(
        "Batching",
        "Batches at the predictor at once, at most. Empty: 1 for the window policy (2 hides the network and JSON time "
        "of a serial predictor); the adaptive policy learns it, up to 8.",
        None, ge=1, le=1024,
    )  # fmt: skip
    timeout: float = settings.field(
        "Batching",
        "Seconds from arrival until a request is answered 504; a caller may ask for less (carpool-timeout-ms).",
        60.0, gt=0, le=86_400,
    )  # fmt: skip
    key_headers: Annotated[settings.CommaList, pydantic.AfterValidator(_read_key_headers)] = settings.field(
        "Batching",
        "Headers the predictor sees; only requests that agree in all of them share a batch.",
        ("authorization", "content-type"),
    )
    max_batch_bytes: int = settings.field(
        "Batching",
        "Bytes of request bodies in one batch, at most; a larger request is split, a larger instance travels alone; "
        "0: no limit. The default is that of --max-body-bytes: who can take any request can take any batch.",
        64 * _MIB, ge=0,
    )  # fmt: skip
    instance_cost: Literal["none", "bytes", "length"] = settings.field(
        "Batching",
        "What an instance costs of --max-batch-cost: its bytes, or the length of a JSON array (1 for anything else).",
        "none",
    )
    max_batch_cost: int = settings.field(
        "Batching",
        "Cost of all instances in one batch, at most, e.g. tokens; a larger instance travels alone; 0: no limit.",
        0, ge=0,
    )  # fmt: skip
    allowed_batch_sizes: Annotated[str, pydantic.AfterValidator(_parse_sizes)] = settings.field(
        "Batching",
        "Sizes the predictor computes with, ascending, e.g. 1,2,4,8,16,32, if it pads others up; a batch leaves at the "
        "size that costs least per instance, and never above the last. Empty: any size.",
        "",
    )
    small_batch_threshold: int = settings.field(
        "Batching", "Requests of at most so many instances go before larger ones; 0: in order of arrival.",
        0, ge=0, le=1_000_000,
    )  # fmt: skip
    priority_ageing: float = settings.field(
        "Batching",
        "Milliseconds after which a larger request is overtaken no more: by none that came so much later.",
        1000.0, ge=0, le=3_600_000,
    )  # fmt: skip
    # --- Overload
    max_queue_instances: int = settings.field(
        "Overload", "Instances waiting for a batch, at most; beyond it the answer is 429.", 16_384, ge=1, le=100_000
    )
    max_queue_bytes: int = settings.field(
        "Overload",
        "Bytes of request bodies held at once (arriving, waiting or at the predictor); beyond it the answer is 429. An "
        "answer of the predictor with more is broken off, and told as 502 (over gRPC by the value at start).",
        256 * _MIB, ge=_KIB,
    )  # fmt: skip
    max_body_bytes: int = settings.field(
        "Overload",
        "Bytes of one predict body, as sent and once decompressed; beyond it the answer is 413.",
        64 * _MIB, ge=_KIB,
    )  # fmt: skip
    overload_status: Literal["429", "503"] = settings.field(
        "Overload", "Status for what is refused because there is too much.", "429"
    )
    # --- Failures
    retry_statuses: Annotated[str, pydantic.AfterValidator(_parse_statuses)] | None = settings.field(
        "Failures",
        "Predictor statuses after which a batch is retried by halves to find the culprit: 4xx, 5xx, single statuses, "
        "comma-separated; empty: never. Not given: 4xx, and 500, by which many servers tell of bad requests too.",
        None,
    )
    retry_budget: float = settings.field(
        "Failures",
        "Such retries that may go before a regular batch, in the long run (bursts of 100 are fine); 0: only the burst.",
        2.0, ge=0, le=100,
    )  # fmt: skip
    kserve_errors: bool = settings.field(
        "Failures",
        "Answer as KServe's batcher does: text/plain, and status 200 with the error in `message` when a batch fails.",
        False,
    )
    # --- Listening
    host: str = settings.field("Listening", "Address to listen on.", "0.0.0.0")
    port: Port = settings.field("Listening", "Port for predict requests and everything passed through.", 9081)
    keep_alive: float = settings.field(
        "Listening",
        "Seconds an idle client connection stays open; longer than any proxy in front, so that they close first.",
        3620.0, gt=0, le=86_400,
    )  # fmt: skip
    head_timeout: float = settings.field(
        "Listening", "Seconds for the head of a request to arrive, once it began.", 30.0, gt=0, le=86_400
    )
    max_connections: int | None = settings.field(
        "Listening",
        "Client connections at once, HTTP and gRPC together, at most; beyond it one is answered 503 and closed. Empty: "
        "half of the open-file limit (a request passed through takes a second file), at most 10000.",
        None, ge=1, le=1_000_000,
    )  # fmt: skip
    fast_lane: Literal["on", "off"] = settings.field(
        "Listening",
        "on: plain predict requests take a shorter way than the general HTTP server; off: all requests take that one.",
        "on",
    )
    grpc_port: OptionalPort = settings.field(
        "Listening", "Port for gRPC: ModelInfer is batched, all other calls are passed through; 0: none.", 0
    )
    admin_host: str = settings.field("Listening", "Address of the admin port.", "0.0.0.0")
    admin_port: Port = settings.field("Listening", "Port for /livez /readyz /metrics /config /drain /drained.", 9082)
    admin_write: Literal["loopback", "any"] = settings.field(
        "Listening", "Who may PATCH /config and POST /drain: callers in this pod, or any.", "loopback"
    )
    # --- Predictor
    component_port: Port = settings.field("Predictor", "Port of the predictor.", 8080)
    component_grpc_port: Port = settings.field("Predictor", "Port of the predictor for gRPC.", 8001)
    upstream: Literal["http", "triton-http", "triton-grpc"] = settings.field(
        "Predictor",
        "What the predictor is sent for v1 requests. http: v1; triton-http, triton-grpc: v2, as tensors made by the "
        "model's metadata, over HTTP or gRPC.",
        "http",
    )
    unknown_models: Literal["batch", "pass"] = settings.field(
        "Predictor",
        "v2 models of which the predictor does not tell whether they have a batch dimension. batch: as if they had, "
        "while their answers fit; pass: unbatched.",
        "batch",
    )
    connect_timeout: float = settings.field(
        "Predictor", "Seconds to connect to the predictor; beyond it the answer is 502.", 5.0, gt=0, le=600
    )
    predictor_health_path: str = settings.field(
        "Predictor",
        "Path that answers 200 once the predictor is ready. Empty: use SERVING_READINESS_PROBE (a Kubernetes probe as "
        "JSON); without that, ready means the port accepts connections.",
        "",
    )
    # --- Shutdown
    quiet_period: float = settings.field(
        "Shutdown",
        "Seconds after SIGTERM in which requests are still served while endpoints forget this pod. While requests keep "
        "coming it lasts longer, up to nearly half of --grace-period; 0: not at all. Cut short where it would leave no "
        "time to answer what was accepted.",
        5.0, ge=0, le=3600,
    )  # fmt: skip
    grace_period: float = settings.field(
        "Shutdown", "Seconds from SIGTERM to exit, at most; keep it below terminationGracePeriodSeconds.",
        25.0, gt=0, le=86_400,
    )  # fmt: skip
    # --- Logs
    log_level: logs.Level = settings.field("Logs", "debug tells why each batch left.", "info")
    log_format: logs.Format = settings.field("Logs", "auto: text on a terminal, JSON elsewhere.", "auto")
    # --- KServe
    enable_batcher: bool = settings.field(
        "KServe", "Batch predict requests; --enable-batcher=false only passes through.", True
    )

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
        allowed = sizes.parse(self.allowed_batch_sizes)
        if allowed and allowed[-1] > self.max_batch_size:
            raise ValueError(
                f"--allowed-batch-sizes ({self.allowed_batch_sizes}) must not exceed --max-batch-size "
                f"({self.max_batch_size})"
            )
        if self.max_batch_cost and self.instance_cost == "none":
            raise ValueError(f"--max-batch-cost ({self.max_batch_cost}) needs --instance-cost bytes or length")
        if self.quiet_period >= self.grace_period:
            raise ValueError(
                f"--quiet-period ({self.quiet_period}) must be shorter than --grace-period ({self.grace_period})"
            )
        return self

    def _check_ports(self) -> None:
        taken = {"--port": self.port, "--admin-port": self.admin_port}
        if self.grpc_port:
            taken["--grpc-port"] = self.grpc_port
        for (name, port), (other, same) in itertools.combinations(taken.items(), 2):
            if port == same:
                raise ValueError(f"{name} and {other} must differ; both are {port}")

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
        try:
            # The policy was chosen at the start; a latency given later bounds it, but does not change it.
            policy = "adaptive" if self.is_adaptive else "window"
            return self.model_validate({**self.model_dump(), "policy": policy, **changes})
        except pydantic.ValidationError as error:
            raise ValueError("; ".join(settings.problems(type(self), error))) from None


def load(argv: Sequence[str]) -> Settings:
    """Settings from the command line and the environment; exits with status 2 and one line if something is wrong."""
    problem = agent_flags.problem(argv)
    if problem is not None:
        settings.fail(PROG, problem)
    return settings.load(Settings, agent_flags.in_our_words(argv), _EPILOG)
