"""Settings of the predictor: flags, environment variables and defaults from one model."""

from __future__ import annotations

import re
from typing import Literal

import pydantic
from pydantic_settings import BaseSettings

from carpool.program import logs, settings
from carpool_predictor import model_loading, served_model

PREFIX = "CARPOOL_PREDICTOR_"

_MiB = 1024 * 1024
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


class Settings(BaseSettings):
    """Serve models: KServe's v1 protocol, OpenAI's embeddings. Flags win over environment variables (in brackets)."""

    model_config = settings.config("carpool-predictor", PREFIX)

    host: str = settings.field("Server", "Address to listen on; 0.0.0.0 means all IPv4 interfaces", "0.0.0.0")
    port: settings.PortOrLink = settings.field(
        "Server", "Port for predictions and health; 0 takes a free one, told in the log", 8080, ge=0, le=65535
    )
    max_body_bytes: int = settings.field(
        "Server",
        "Largest request body in bytes, decompressed; 413 above. Wide by default, as the sidecar sends whole batches",
        256 * _MiB,
        ge=1,
    )
    body_timeout: float = settings.field(
        "Server", "Seconds for a request body to arrive; 408 after", 60.0, gt=0, allow_inf_nan=False
    )
    max_waiting_calls: int = settings.field(
        "Server", "Calls that may wait for one model, the running one included; 503 above", 1024, ge=1
    )
    max_waiting_bytes: int = settings.field(
        "Server",
        "Bytes of bodies that may wait for one model; 503 above. At least --max-body-bytes",
        512 * _MiB,
        ge=1,
    )
    quiet_period: float = settings.field(
        "Server",
        "Seconds to keep serving after SIGTERM while /readyz is 503, so that a sidecar stopped at the same moment can"
        " drain through this server; 0 stops listening at once",
        0.0,
        ge=0,
        allow_inf_nan=False,
    )
    grace_period: float = settings.field(
        "Server",
        "Seconds after the quiet period for accepted requests to be answered; then workers are killed",
        25.0,
        ge=0,
        allow_inf_nan=False,
    )
    max_batch_size: int = settings.field(
        "Batching",
        "Most instances in one call of a model, from any number of requests; larger requests are split. 0: no batching,"
        " each request is a call of its own, as a sidecar in front wants it",
        0,
        ge=0,
        le=100_000,
    )
    max_latency: float | None = settings.field(
        "Batching",
        "Milliseconds the oldest request may wait for others. Empty: as long as is found to pay",
        None,
        ge=0,
        le=3_600_000,
    )
    models: settings.CommaList = settings.field(
        "Models",
        "Models to serve: built in (echo, minilm), a built-in one renamed (name=echo), or your own"
        " (name=package.module:Class)",
        ("echo",),
        min_length=1,
    )
    device: settings.CommaList = settings.field(
        "Models",
        "Where models compute: auto, cpu, cuda or cuda:N; auto means cuda if there is one, else cpu. Of several"
        " (cuda:0,cuda:1) each has a worker process of every model",
        ("auto",),
        min_length=1,
    )
    torch_threads: int = settings.field(
        "Models", "Threads torch computes with on the cpu; 0 means as many as this container may use CPUs", 0, ge=0
    )
    echo_fixed_ms: float = settings.field(
        "Echo model", "Service time of each call in milliseconds", 0.0, ge=0, allow_inf_nan=False
    )
    echo_per_instance_ms: float = settings.field(
        "Echo model", "Service time of each instance in milliseconds, added to that", 0.0, ge=0, allow_inf_nan=False
    )
    echo_answer: Literal["instance", "length"] = settings.field(
        "Echo model", "A prediction is the instance itself, or its length in bytes", "instance"
    )
    echo_poison: str = settings.field(
        "Echo model", "A call with an instance written exactly like this JSON text fails with 400; empty: none", ""
    )
    log_format: logs.Format = settings.field(
        "Logs", "json, text, or auto: text on a terminal and json elsewhere", "auto"
    )
    log_level: logs.Level = settings.field("Logs", "Least severity to log", "info")

    @pydantic.field_validator("models")
    @classmethod
    def _are_models(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        names = [model_loading.parse(text).name for text in models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two models are named {name!r}")
        return models

    @pydantic.field_validator("device")
    @classmethod
    def _are_devices(cls, devices: tuple[str, ...]) -> tuple[str, ...]:
        for device in devices:
            if not _DEVICE.fullmatch(device):
                raise ValueError(f"{device!r} is no device; allowed: auto, cpu, cuda, cuda:0, cuda:1, …")
        return devices

    @pydantic.model_validator(mode="after")
    def _batching_is_on(self) -> Settings:
        if self.max_latency is not None and not self.max_batch_size:
            raise ValueError(f"--max-latency ({self.max_latency:g}) needs --max-batch-size, which turns batching on")
        return self

    @pydantic.model_validator(mode="after")
    def _one_body_fits(self) -> Settings:
        if self.max_waiting_bytes < self.max_body_bytes:
            raise ValueError(
                f"--max-waiting-bytes ({self.max_waiting_bytes}) must be at least --max-body-bytes"
                f" ({self.max_body_bytes})"
            )
        return self

    def specs(self) -> list[model_loading.Spec]:
        """The models to serve."""
        return [model_loading.parse(text) for text in self.models]

    def batching(self) -> served_model.Batching | None:
        """How requests share calls, or None if they do not."""
        if not self.max_batch_size:
            return None
        return served_model.Batching(self.max_batch_size, None if self.max_latency is None else self.max_latency / 1e3)

    def options(self) -> model_loading.Options:
        """What the built-in models are told."""
        return model_loading.Options(
            torch_threads=self.torch_threads,
            echo_fixed_ms=self.echo_fixed_ms,
            echo_per_instance_ms=self.echo_per_instance_ms,
            echo_answer=self.echo_answer,
            echo_poison=self.echo_poison,
        )
