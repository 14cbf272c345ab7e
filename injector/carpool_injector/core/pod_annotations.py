"""The annotations under `carpool.dev/`: their types, where a value comes from, and the sidecar's flags made of them.

No annotation carries an image, a command, arguments, environment, volumes or a security context: who may annotate a
pod must not gain more than that. Values pass from here on as numbers, words and checked text only.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pydantic

from carpool_injector.core import errors, model, quantities
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


def read(sources: Iterable[Source], config: Config) -> Settings:
    """Settings from several sources; a later one wins.

    Raises `errors.BadSettings` with every problem: key, value, where it was found, what is allowed.
    """
    found = {key: (value, source.where) for source in sources for key, value in _settings_in(source.values)}
    settings, problems = _validated(found)
    if settings is not None:
        problems = [*_over_caps(settings, config), *_bad_channel(settings, config)]
    if settings is None or problems:
        raise errors.BadSettings(problems)
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
        read([source], config)
    except errors.BadSettings as error:
        problems += [f"defaults: {problem}" for problem in error.problems]
    return problems


def _settings_in(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((key, value) for key, value in values.items() if key in KNOWN)


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
    for name in ("requests_cpu", "requests_memory", "limits_cpu", "limits_memory"):
        value = getattr(settings, f"resources_{name}")
        cap = getattr(config.max_resources, name.partition("_")[2])
        if value is not None and quantities.amount(value) > quantities.amount(cap):
            key = f"{model.PREFIX}resources-{name.replace('_', '-')}"
            yield f"annotation {key}: got {value!r}: the admin allows at most {cap}"


def _bad_channel(settings: Settings, config: Config) -> Iterator[str]:
    channel = settings.image_channel
    if channel is not None and channel not in config.channels:
        allowed = ", ".join(sorted(config.channels)) or "none are set up"
        yield f"annotation {model.PREFIX}image-channel: got {_cut(repr(channel))}: must be one of: {allowed}"
