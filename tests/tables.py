"""The README's tables, made from the code. `python -m tests.tables` writes them; a test holds them to it."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable

from pydantic_settings import BaseSettings

from predictor import config as predictor_config
from sidecar import config, metrics, settings

README = pathlib.Path(__file__).parents[1] / "README.md"


def sidecar_settings() -> str:
    """Every flag of `carpool-sidecar`."""
    return _settings(config.Settings, config.Settings.live)


def predictor_settings() -> str:
    """Every flag of `carpool-predictor`."""
    return _settings(predictor_config.Settings, ())


def sidecar_metrics() -> str:
    """Every metric, in the order of the code."""
    rows = ["| name | type | meaning |", "|---|---|---|"]
    for family in metrics.Metrics().registry.collect():
        if not family.name.startswith("carpool_"):
            continue
        suffix = "_total" if family.type == "counter" else ""
        labels = _labels(family.name)
        rows.append(f"| `{family.name}{suffix}{labels}` | {family.type} | {family.documentation} |")
    return "\n".join(rows)


TABLES: dict[str, Callable[[], str]] = {
    "sidecar settings": sidecar_settings,
    "predictor settings": predictor_settings,
    "metrics": sidecar_metrics,
}


def block(name: str, text: str) -> str:
    """A table between its markers, as it stands in the README."""
    return f"<!-- {name}: made by python -m tests.tables -->\n{text}\n<!-- end -->"


def written(page: str) -> str:
    """The page with all tables brought up to date."""
    for name, make in TABLES.items():
        pattern = re.compile(rf"<!-- {name}: .*?<!-- end -->", re.DOTALL)
        page = pattern.sub(lambda _, name=name, make=make: block(name, make()), page)
    return page


def _settings(model: type[BaseSettings], live: tuple[str, ...]) -> str:
    rows = ["| flag | default | meaning |", "|---|---|---|"]
    for name, info in model.model_fields.items():
        default = ",".join(info.default) if isinstance(info.default, tuple) else info.default
        shown = f"`{default}`" if default not in ("", None) else "empty"
        mark = " *" if name in live else ""
        rows.append(f"| `{settings.flag(name)}`{mark} | {shown} | {(info.description or '').replace('|', '/')} |")
    return "\n".join(rows)


def _labels(family: str) -> str:
    counters = metrics.Metrics()
    for metric in vars(counters).values():
        if getattr(metric, "_name", None) == family and metric._labelnames:
            return "{" + ",".join(metric._labelnames) + "}"
    return ""


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
