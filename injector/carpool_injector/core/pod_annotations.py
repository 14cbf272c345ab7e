"""The annotations under `carpool.dev/`: settings from all their sources, and the status that the injector writes.

No annotation carries an image, a command, arguments, environment, volumes or a security context: permission to
annotate a pod must not grant more than that. From here on values are numbers, words and checked text.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from pydantic import alias_generators

from carpool_injector.core import command_lines, model, pods, refusals, values
from carpool_injector.core.config import Config
from carpool_injector.core.settings import Settings

INJECT = model.PREFIX + "inject"
STATUS = model.PREFIX + "status"
KSERVE_BATCHER = model.PREFIX + "kserve-batcher"
_NOT_SETTINGS = {INJECT, STATUS, KSERVE_BATCHER}

KNOWN = {model.PREFIX + str(info.alias): name for name, info in Settings.model_fields.items()}
"""Annotation of each setting, and the setting's name."""

_TOLD = 10  # unknown keys that get a warning: looking for the nearest takes 4 ms each
_SHOWN = 80  # characters of a bad value that a message repeats


@dataclass(frozen=True, slots=True)
class Source:
    """Annotations from one place. `where` names it in messages; empty: the pod itself."""

    values: Mapping[str, str]
    where: str = ""


def read_settings(sources: Iterable[Source], config: Config) -> Settings:
    """Settings from several sources; a later one wins.

    Raises `refusals.BadSettings` with every problem: key, value, where it was found, what is allowed.
    """
    found = {key: (value, source.where) for source in sources for key, value in source.values.items() if key in KNOWN}
    settings, problems = _validated(found)
    if settings is not None:
        problems = [*_over_caps(settings, config), *_bad_channel(settings, config)]
    if settings is None or problems:
        raise refusals.BadSettings(problems)
    return settings


def defaults(config: Config) -> Source:
    """The admin's defaults as a source."""
    values = {model.PREFIX + key: value for key, value in config.defaults.items()}
    return Source(values, "the injector's defaults")


def unknown(values: Mapping[str, str]) -> Iterator[str]:
    """A warning for each key under our prefix that is no setting, with the nearest one that is; for ten at most."""
    strange = (key for key in sorted(values) if key.startswith(model.PREFIX))
    for key in itertools.islice((key for key in strange if key not in KNOWN and key not in _NOT_SETTINGS), _TOLD):
        nearest = difflib.get_close_matches(key, [*KNOWN, INJECT, KSERVE_BATCHER], n=1, cutoff=0.6)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        yield f"annotation {_cut(key if key.isprintable() else repr(key))} is unknown and has no effect{hint}"


def problems_of_defaults(config: Config) -> list[str]:
    """What is wrong with the admin's defaults, in words."""
    source = defaults(config)
    problems = [f"defaults: {text}" for text in unknown(source.values)]
    try:
        read_settings([source], config)
    except refusals.BadSettings as error:
        problems += [f"defaults: {problem}" for problem in error.problems]
    return problems


def _validated(found: Mapping[str, tuple[str, str]]) -> tuple[Settings | None, list[str]]:
    # Nothing is raised where pydantic's error is at hand: a refusal that remembers it (its context, `from None` or not)
    # is never freed again, frames of the caller included.
    try:
        values = {key.removeprefix(model.PREFIX): value for key, (value, _) in found.items()}
        return Settings.model_validate(values), []
    except pydantic.ValidationError as error:
        return None, [_problem(detail, found) for detail in error.errors(include_url=False)]


def _problem(detail: Any, found: Mapping[str, tuple[str, str]]) -> str:
    message = detail["msg"].removeprefix("Value error, ")
    if not detail["loc"]:  # a rule over several settings names them itself
        return str(message)
    key = model.PREFIX + str(detail["loc"][0])
    value, where = found[key]
    place = f" (from {where})" if where else ""
    return f"annotation {key}{place}: got {_cut(repr(value))}: {message}"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _over_caps(settings: Settings, config: Config) -> Iterator[str]:
    for kind in ("requests", "limits"):
        for name, value in settings.amounts(kind).items():
            cap = getattr(config.max_resources, name)
            if value != values.NO_LIMIT and values.amount(value) > values.amount(cap):
                key = f"{model.PREFIX}resources-{kind}-{name}"
                yield f"annotation {key}: got {value!r}: the admin allows at most {cap}"


def _bad_channel(settings: Settings, config: Config) -> Iterator[str]:
    channel = settings.image_channel
    if channel is not None and channel not in config.channels:
        allowed = ", ".join(sorted(config.channels)) or "none are set up"
        yield f"annotation {model.PREFIX}image-channel: got {_cut(repr(channel))}: must be one of: {allowed}"


# KServe's key, our setting, the largest value of ours.
_BATCHER_KEYS = (
    (pods.BATCHER + "-max-batchsize", "max-batch-size", 100_000),
    (pods.BATCHER + "-max-latency", "max-latency", 59_999),  # below the time a request has, 60 s
)


def batcher_settings(pod: pods.Pod) -> Mapping[str, str]:
    """Annotations of ours that say the same. A maxLatency makes a window of that length, as it does in KServe.

    Without one the sidecar learns when to send, rather than let single requests wait for KServe's default of 5 s.
    """
    found = pod.metadata.annotations
    return {
        model.PREFIX + setting: found[key]
        for key, setting, largest in _BATCHER_KEYS
        if key in found and _is_usable(found[key], largest)
    }


def batcher_warnings(pod: pods.Pod) -> Iterator[str]:
    """One for each value that is not taken over."""
    found = pod.metadata.annotations
    for key, setting, largest in _BATCHER_KEYS:
        if key in found and not _is_usable(found[key], largest):
            yield f"KServe's {key.rpartition('/')[2]} is no number from 1 to {largest:,}; {setting} keeps its default"


def _is_usable(text: str, largest: int) -> bool:
    return 0 < (command_lines.whole(text, digits=9) or 0) <= largest


_Port = Annotated[int, pydantic.Field(ge=1, le=65535)]
_ToldBy = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


_SecretName = Annotated[str, pydantic.Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,252}$")]


class Injected(pydantic.BaseModel):
    """How a pod was injected. `told_by` is the flag or variable that tells the app its port, `added` whether it is new.

    `grpc_…` are the same for gRPC. `batcher` is the value of KServe's batcher annotation that was taken over.
    `pull_secrets` are the names of those that were added. `port_start`: the pod got a kernel parameter for low ports.
    `called_by` is the Service that shows that callers reach the app's port, where nothing else does.
    """

    model_config = pydantic.ConfigDict(
        strict=True, frozen=True, extra="ignore", alias_generator=alias_generators.to_camel, populate_by_name=True
    )

    version: str
    config: str
    takeover: model.Takeover
    native: bool
    container: str
    app_port: _Port
    listen_port: _Port
    admin_port: _Port
    told_by: _ToldBy | None = None
    added: bool = False
    grpc_app_port: _Port | None = None
    grpc_listen_port: _Port | None = None
    grpc_told_by: _ToldBy | None = None
    grpc_added: bool | None = None
    batcher: Annotated[str | None, pydantic.Field(max_length=64)] = None
    pull_secrets: Annotated[list[_SecretName] | None, pydantic.Field(max_length=16)] = None
    port_start: bool | None = None
    called_by: Annotated[str | None, pydantic.Field(max_length=128)] = None

    @property
    def moves(self) -> list[model.Move]:
        """The moves of the app's ports, the one for HTTP first."""
        listen, rpc, app_rpc = self.listen_port, self.grpc_listen_port, self.grpc_app_port
        if self.takeover == "named-port":
            named = {self.app_port: listen, **({app_rpc: rpc} if app_rpc and rpc else {})}
            return [model.Move(app, app, ours, by_grpc=app == app_rpc) for app, ours in named.items()]
        found = []
        if self.takeover == "port-swap" and (self.told_by is not None or self.grpc_told_by is None):
            found.append(model.Move(listen, self.app_port, listen, False, self.told_by, self.added))
        if self.takeover != "none" and self.grpc_told_by is not None and rpc and app_rpc:
            found.append(model.Move(rpc, app_rpc, rpc, True, self.grpc_told_by, bool(self.grpc_added)))
        return found

    def text(self) -> str:
        """The annotation's value."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


def read_status(pod: pods.Pod) -> Injected | None:
    """The status of a pod that was injected; None for other pods, and where the annotation and the pod disagree."""
    if not any(container.name == model.CONTAINER for container in pod.all_containers):
        return None
    found = _told(pod)
    is_app = found and found.container != model.CONTAINER and pod.container(found.container) is not None
    return found if is_app else None


def _told(pod: pods.Pod) -> Injected | None:
    """What the annotation says, whether or not the pod agrees."""
    text = pod.metadata.annotations.get(STATUS)
    if text is None:
        return None
    try:
        return Injected.model_validate_json(text)
    except pydantic.ValidationError:
        return None


TOKEN_SHIELD = "carpool-no-token"  # noqa: S105 - the name of a volume
"""Name of the volume that each sidecar mounts, and nobody else."""


_DECLARED = "transformer-container"  # as which a sidecar is declared to KServe, without a status


def why_unknown(pod: pods.Pod) -> str:
    """Why nothing is known of a sidecar that the pod has or had, in words; "" for others, and if its status is read.

    Without its status nobody can tell what it changed of the app, and without the sidecar itself not which declared
    ports it took.
    """
    if read_status(pod) is not None:
        return ""
    names = {each.name for each in pod.all_containers}
    shielded = [each.name for each in pod.all_containers if _has_shield(each)]
    told = _told(pod)
    if model.CONTAINER not in names:
        return _why_missing(pod, told, [name for name in shielded if told or name != _DECLARED])
    if model.CONTAINER not in shielded:
        return ""
    if STATUS not in pod.metadata.annotations:
        return f"there is no annotation {STATUS}"
    if told is None:
        return f"its annotation {STATUS} cannot be read"
    return f"its annotation {STATUS} tells of container {told.container!r}, which is not there"


def _has_shield(container: pods.Container) -> bool:
    return any(mount.get("name") == TOKEN_SHIELD for mount in container.volume_mounts)


def _why_missing(pod: pods.Pod, told: Injected | None, shielded: list[str]) -> str:
    """Likewise where no container has the sidecar's name. A status that was copied from another pod says nothing."""
    has_volume = any(volume.name == TOKEN_SHIELD for volume in pod.spec.volumes)
    is_of_pod = told is not None and (has_volume or any(each.name == told.container for each in pod.all_containers))
    if not shielded and not is_of_pod:
        return ""
    other = f"; container {shielded[0]!r} mounts its volume {TOKEN_SHIELD}" if shielded else ""
    return f"its container {model.CONTAINER!r} is not there{other}"


def refused_status(version: str, refusal: refusals.Refusal) -> dict[str, Any]:
    """The status of a pod that asked for the sidecar and cannot have it."""
    return {"version": version, "refused": refusal.code, "message": str(refusal)[:512]}
