"""All settings of the sidecar: flag, environment variable, default, unit and reason in one place.

The README's table is held against this model by a test. What `Settings.live` names can be changed while running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic_settings import BaseSettings

from sidecar import logs, settings
from sidecar.core import limits, retries

PROG = "carpool-sidecar"

_KIB, _MIB = 1024, 1024 * 1024

# KServe's agent also pulls models and logs payloads. Ignoring those flags would lose data silently.
_AGENT_PULLER = ("--enable-puller", "--config-dir", "--model-dir")
_AGENT_LOGGER = (
    "--log-url", "--workers", "--source-uri", "--log-mode", "--log-store-path", "--log-store-format",
    "--log-marshaller-url", "--log-marshaller-port", "--log-batch-size", "--log-batch-interval",
    "--inference-service", "--namespace", "--endpoint", "--component", "--metadata-headers",
    "--metadata-annotations", "--logger-ca-cert-file", "--logger-tls-skip-verify",
)  # fmt: skip

_EPILOG = """\
Settings come from flags first, then from the environment variable in brackets, then from the default.
Flags of KServe's agent (--port, --component-port, --enable-batcher, --max-batchsize, --max-latency) work as they do
there, so this program can stand in for it. Example:

  carpool-sidecar --component-port 8080 --max-batch-size 32 --max-latency 20
"""


def _ignore_service_link(value: Any, info: pydantic.ValidationInfo) -> Any:
    # In the namespace of a Service named "carpool" Kubernetes sets CARPOOL_PORT=tcp://… in every pod.
    is_link = isinstance(value, str) and value.startswith(("tcp://", "udp://", "sctp://"))
    return Settings.model_fields[str(info.field_name)].default if is_link else value


Port = Annotated[int, pydantic.BeforeValidator(_ignore_service_link), pydantic.Field(ge=1, le=65535)]


def _parse_statuses(text: str) -> str:
    retries.Statuses.parse(text)
    return text


class Settings(BaseSettings):
    """Merges concurrent v1 predict requests into batches for the predictor beside it, and passes on everything else."""

    model_config = settings.config(PROG, "CARPOOL_")

    live: ClassVar[tuple[str, ...]] = (
        "max_batch_size", "max_latency", "timeout", "max_in_flight", "max_queue_instances", "max_queue_bytes",
        "max_body_bytes", "retry_statuses", "retry_budget", "log_level",
    )  # fmt: skip

    # --- Batching
    max_batch_size: int = settings.field(
        "Batching",
        "Instances in one call to the predictor, at most; a larger request is split and rejoined.",
        32, ge=1, le=100_000, validation_alias=pydantic.AliasChoices("max_batch_size", "max-batchsize"),
    )  # fmt: skip
    max_latency: float = settings.field(
        "Batching",
        "Milliseconds the oldest request may wait for others; 0: never wait while the predictor is idle.",
        500.0, ge=0, le=3_600_000,
    )  # fmt: skip
    max_in_flight: int = settings.field(
        "Batching",
        "Batches at the predictor at once; 2 hides the network and JSON time of a serial predictor.",
        1, ge=1, le=1024,
    )  # fmt: skip
    timeout: float = settings.field(
        "Batching",
        "Seconds from arrival until a request is answered 504; a caller may ask for less (carpool-timeout-ms).",
        60.0, gt=0, le=86_400,
    )  # fmt: skip
    key_headers: settings.CommaList = settings.field(
        "Batching",
        "Headers the predictor sees; only requests that agree in all of them share a batch.",
        ("authorization", "content-type"),
    )
    # --- Overload
    max_queue_instances: int = settings.field(
        "Overload", "Instances waiting for a batch, at most; beyond it the answer is 429.", 16_384, ge=1, le=1_000_000
    )
    max_queue_bytes: int = settings.field(
        "Overload",
        "Bytes of request bodies held at once (arriving, waiting or at the predictor); beyond it the answer is 429.",
        256 * _MIB, ge=_KIB,
    )  # fmt: skip
    max_body_bytes: int = settings.field(
        "Overload",
        "Bytes of one predict body, as sent and once decompressed; beyond it the answer is 413.",
        64 * _MIB, ge=_KIB,
    )  # fmt: skip
    # --- Failures
    retry_statuses: Annotated[str, pydantic.AfterValidator(_parse_statuses)] = settings.field(
        "Failures",
        "Predictor statuses after which a batch is retried by halves to find the culprit: 4xx, 5xx, single statuses, "
        "comma-separated; empty: never.",
        "4xx",
    )
    retry_budget: float = settings.field(
        "Failures", "Such retries per regular batch in the long run (bursts of 100 are fine); 0: only the burst.",
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
    admin_host: str = settings.field("Listening", "Address of the admin port.", "0.0.0.0")
    admin_port: Port = settings.field("Listening", "Port for /livez /readyz /metrics /config /drain.", 9082)
    admin_write: Literal["loopback", "any"] = settings.field(
        "Listening", "Who may PATCH /config and POST /drain: callers in this pod, or any.", "loopback"
    )
    # --- Predictor
    component_port: Port = settings.field("Predictor", "Port of the predictor.", 8080)
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
        "Seconds after SIGTERM in which requests are still served while endpoints forget this pod.",
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
        if self.port == self.admin_port:
            raise ValueError(f"--port and --admin-port must differ; both are {self.port}")
        if self.max_body_bytes > self.max_queue_bytes:
            raise ValueError(
                f"--max-body-bytes ({self.max_body_bytes}) must not exceed --max-queue-bytes ({self.max_queue_bytes})"
            )
        if self.quiet_period >= self.grace_period:
            raise ValueError(
                f"--quiet-period ({self.quiet_period}) must be shorter than --grace-period ({self.grace_period})"
            )
        return self

    def core_limits(self) -> limits.Limits:
        """The core's numbers, in its units."""
        return limits.Limits(
            max_batch_size=self.max_batch_size,
            max_latency=self.max_latency / 1000,
            timeout=self.timeout,
            max_in_flight=self.max_in_flight,
            max_queue_instances=self.max_queue_instances,
            max_queue_bytes=self.max_queue_bytes,
            retry_statuses=retries.Statuses.parse(self.retry_statuses),
            retry_budget=self.retry_budget,
        )

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """A copy with some live settings changed.

        Raises `ValueError` with one line that names the field and what is allowed.
        """
        unknown = [name for name in changes if name not in self.live]
        if unknown:
            raise ValueError(f"{', '.join(unknown)} cannot be changed at run time; these can: {', '.join(self.live)}")
        try:
            return self.model_validate({**self.model_dump(), **changes})
        except pydantic.ValidationError as error:
            raise ValueError("; ".join(settings.problems(type(self), error))) from None


def load(argv: Sequence[str]) -> Settings:
    """Settings from the command line and the environment; exits with status 2 and one line if something is wrong."""
    _refuse_agent_duties(argv)
    return settings.load(Settings, _without_probe_period(argv), _EPILOG)


def _refuse_agent_duties(argv: Sequence[str]) -> None:
    for argument in argv:
        name, _, value = argument.partition("=")
        if name in _AGENT_PULLER and value != "false":
            settings.fail(PROG, f"{name}: this is the batcher only; keep KServe's own agent image for the model puller")
        if name in _AGENT_LOGGER:
            settings.fail(PROG, f"{name}: this is the batcher only; keep KServe's own agent image for payload logging")


def _without_probe_period(argv: Sequence[str]) -> list[str]:
    """KServe's agent declares --probe-period and never uses it; neither does this program."""
    kept: list[str] = []
    skip = False
    for argument in argv:
        if not skip and argument.partition("=")[0] != "--probe-period":
            kept.append(argument)
        skip = not skip and argument == "--probe-period"
    return kept
