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


_MEMORY = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,6})?) ?(?P<unit>%|[KMGT]i?B|B)?", re.ASCII)
_UNITS = {"": 1.0, "%": 0.01, "B": 1.0}
_UNITS |= {f"{letter}B": 1e3**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}iB": 1024.0**power for power, letter in enumerate("KMGT", 1)}
_LEAST_MEMORY = 16 * _MiB


def memory_limit(text: str) -> float | None:
    """A share of a GPU's memory up to 1.0, or a number of bytes; None if there is no limit.

    Raises ValueError with what is wrong and what is allowed.
    """
    if not text:
        return None
    found = _MEMORY.fullmatch(text)
    allowed = "allowed: a share of the GPU's memory (0.5 or 50%) or an amount from 16MiB on (8GiB, 500MB)"
    if found is None:
        raise ValueError(f"{text!r} is no amount of memory; {allowed}")
    unit = found["unit"] or ""
    amount = float(found["number"]) * _UNITS[unit]
    is_share = unit in ("", "%")
    if amount <= 0 or (amount > 1 if is_share else amount < _LEAST_MEMORY):
        raise ValueError(f"{text!r} is {'no share' if is_share else 'too little'}; {allowed}")
    return amount


class Settings(BaseSettings):
    """Serve models: KServe's v1 protocol, OpenAI's embeddings. Flags win over environment variables (in brackets)."""

    model_config = settings.config("carpool-predictor", PREFIX)

    host: str = settings.field("Server", "Address to listen on; :: means all interfaces, over IPv6 and IPv4", "::")
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
        "Models to serve: built in (echo, minilm, vit-random), a built-in one renamed (name=echo), or your own"
        " (name=package.module:Class)",
        ("echo",),
        min_length=1,
    )
    device: settings.CommaList = settings.field(
        "Models",
        "Where models compute: auto, cpu, cuda or cuda:N; auto means cuda if there is one, else cpu. Of several"
        " (cuda:0,cuda:1) each has a worker process of every model. CUDA_VISIBLE_DEVICES decides which GPUs there are",
        ("auto",),
        min_length=1,
    )
    torch_threads: int = settings.field(
        "Models", "Threads torch computes with on the cpu; 0 means as many as this container may use CPUs", 0, ge=0
    )
    precision: Literal["auto", "float32", "float16", "bfloat16"] = settings.field(
        "Models",
        "Numbers that minilm and vit-random compute with. auto: float16 on a GPU with tensor cores, else float32",
        "auto",
    )
    gpu_memory: str = settings.field(
        "Models",
        "Most GPU memory that torch may claim in each worker process of minilm and vit-random: a share (0.5 or 50%) or"
        " an amount (8GiB, 500MB). CUDA itself takes some 0.5 GB beside it. Empty: all",
        "",
    )
    vit_size: Literal["tiny", "small", "base", "large", "huge"] = settings.field(
        "Models", "Size of vit-random: ViT-Ti/16, S/16, B/16, L/16 or H/14", "base"
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

    @pydantic.field_validator("gpu_memory")
    @classmethod
    def _is_an_amount(cls, text: str) -> str:
        memory_limit(text)
        return text

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
            precision=self.precision,
            gpu_memory=memory_limit(self.gpu_memory),
            vit_size=self.vit_size,
            echo_fixed_ms=self.echo_fixed_ms,
            echo_per_instance_ms=self.echo_per_instance_ms,
            echo_answer=self.echo_answer,
            echo_poison=self.echo_poison,
        )
