"""The documents' tables, made from the code. `python -m tests.tables` writes them; a test holds them to it."""

from __future__ import annotations

import argparse
import pathlib
import re
import typing
from collections.abc import Callable, Iterable, Iterator

import prometheus_client
import pydantic
from pydantic_settings import BaseSettings

from carpool import prometheus
from carpool.program import settings
from carpool.scheduling import messages
from carpool_injector.core import decision, servers
from carpool_injector.core import refusals as injector_refusals
from carpool_injector.core import settings as injector_settings
from carpool_injector.webhook import metrics as injector_metrics
from carpool_predictor import config as predictor_config
from carpool_sidecar import config, errors, metrics
from carpool_sidecar.protocols.lists import rules
from carpool_sidecar.protocols.v2_grpc import statuses
from tests import marks

COMMAND = "python -m tests.tables"
ROOT = pathlib.Path(__file__).parents[1]
PAGES = (*sorted((ROOT / "docs").glob("*.md")), ROOT / "injector" / "README.md")


def first_settings() -> str:
    """The flags of `carpool-sidecar` that matter first."""
    return _settings(config.Settings, lambda group: group == config.FIRST, config.Settings.live)


def sidecar_settings() -> str:
    """Every other flag of `carpool-sidecar` but those for experts, in short."""
    told_elsewhere = (config.FIRST, config.EXPERTS)
    return _settings(config.Settings, lambda group: group not in told_elsewhere, config.Settings.live, in_short=True)


def expert_settings() -> str:
    """Flags of `carpool-sidecar` that tests and emergencies need."""
    return _settings(config.Settings, lambda group: group == config.EXPERTS)


def predictor_settings() -> str:
    """The flags of `carpool-predictor` about models and batches, in short."""
    return _settings(predictor_config.Settings, lambda group: group in ("Batching", "Models"), in_short=True)


def sidecar_metrics() -> str:
    """Every metric, in the order of the code; those with † batched functions have, too."""
    of_functions = {family.name for family in prometheus.Collector().describe()}
    rows = []
    for family in metrics.Metrics().registry.collect():
        if not family.name.startswith("carpool_"):
            continue
        rows.append(_metric(family, _labels(family.name), "†" if family.name in of_functions else ""))
    return "\n".join(rows)


def function_metrics() -> str:
    """Every metric that batched functions alone have."""
    explained = {family.name for family in metrics.Metrics().registry.collect()}
    families = [family for family in prometheus.Collector().describe() if family.name not in explained]
    return "\n".join(_metric(family, "{function}") for family in families)


_TOTAL = {"counter": "_total"}


def _metric(family: prometheus_client.Metric, labels: str, mark: str = "") -> str:
    """A line. Names of counters say that they are; all others that are no gauges say what they are."""
    kind = " (histogram)" if family.type == "histogram" else ""
    return f"- `{family.name}{_TOTAL.get(family.type, '')}{labels}`{mark}{kind}: {_cell(family.documentation)}"


def refusals() -> str:
    """Every reason by which errors are counted, by status: what callers are told, without what they can do."""
    names = {number: name for name, number in vars(statuses).items() if name.isupper() and isinstance(number, int)}
    reasons: dict[str, dict[str, str]] = {}
    for kind in sorted(error_kinds(), key=errors.status_of):
        if kind.reason != errors.UpstreamStatus.reason:
            error = kind()
            status = f"{errors.status_of(kind)}, `{names[statuses.code(error)]}`"
            meant = reasons.setdefault(status, {})
            meant.setdefault(kind.reason, _cell(str(error).partition(";")[0]))
    rows = [f"- `{reason}` ({status}): {words}" for status, meant in reasons.items() for reason, words in meant.items()]
    return "\n".join([*rows, f"- `{errors.UpstreamStatus.reason}`: the predictor's own"])


def batch_reasons() -> str:
    """Every reason why a batch leaves."""
    return "\n".join(f"- `{reason}` ({reason.policies}): {reason.meaning}" for reason in messages.Reason)


def reasons_for_not_batching() -> str:
    """Every reason for which a predict request is passed through unbatched."""
    return "\n".join(f"- `{reason}`: {reason.meaning}" for reason in errors.NotBatched)


def built_in_lists() -> str:
    """Every built-in rule of `--lists`: where it finds rows, and how many of them may share a call."""
    rows = ["| rule | paths | rows | most |", "|---|---|---|---|"]
    for rule in rules.built_in().values():
        paths = [path for path in rule.paths if "%3" not in path]  # a colon, as some clients write it
        cells = [
            f"[`{rule.name}`](#{_SECTIONS[rule.name]})",
            _codes(paths),
            _codes(place.text for place in rule.rows),
            str(rule.max_batch_size or ""),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


_SECTIONS = {
    "openai-embeddings": "openais-embeddings",
    "tei-embed": "text-embeddings-inference",
    "hf-toolkit": "hugging-faces-inference-toolkits",
    "mlflow": "mlflow",
    "tfserving-columns": "tensorflow-serving",
    "tfserving-classify": "tensorflow-serving",
    "ollama-embed": "ollama",
    "tei-predict": "text-embeddings-inference",
    "vllm-pooling": "vllms-other-models",
    "vllm-score": "vllms-other-models",
    "cohere-embed": "coheres-embeddings",
    "rerank": "reranking",
    "tei-rerank": "reranking",
    "nim-ranking": "reranking",
}


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def error_kinds(base: type[errors.CarpoolError] = errors.CarpoolError) -> Iterator[type[errors.CarpoolError]]:
    """A kind of error and all kinds of it that callers can be told, the general ones first."""
    if base.__module__ in ("carpool.errors", "carpool_sidecar.errors"):
        yield base
    for kind in base.__subclasses__():
        yield from error_kinds(kind)


def first_annotations() -> str:
    """The annotations that matter first."""
    aliases = (str(info.alias) for info in injector_settings.Settings.model_fields.values())
    told, first = _meanings(), injector_settings.Settings.first
    return "\n".join(f"- `{key}` ({_allowed(key)}): {told[key]}" for key in aliases if key in first)


def annotations() -> str:
    """The other annotations of the injector itself, and those that do more than the flag of their name."""
    told = _meanings()
    return "\n".join(f"- `{key}`: {told[key]}" for key in _other_annotations() if not _is_a_flag(key))


def annotations_of_flags() -> str:
    """The other annotations, which mean what the flags of their names mean, and take what those take."""
    return _codes(filter(_is_a_flag, _other_annotations()))


_MORE_THAN_THE_FLAG = {"grace-period", "grpc-port", "host", "predictor-health-path", "record", "tracing"}


def _other_annotations() -> Iterator[str]:
    aliases = (str(info.alias) for info in injector_settings.Settings.model_fields.values())
    return (alias for alias in aliases if alias not in injector_settings.Settings.first)


def _is_a_flag(key: str) -> bool:
    return key not in _MORE_THAN_THE_FLAG and key.replace("-", "_") in config.Settings.model_fields


def _meanings() -> dict[str, str]:
    return {str(info.alias): _cell(info.description) for info in injector_settings.Settings.model_fields.values()}


def deciders() -> str:
    """Who may ask for a sidecar, the strongest first."""
    rows = ["| | asked by | values | asked by the pod itself |", "|---|---|---|---|"]
    rows += [
        f"| {number} | {row.source} | {row.words} | {'yes' if row.explicit else 'no'} |"
        for number, row in enumerate(decision.ROWS, 1)
    ]
    return "\n".join(rows)


def skips() -> str:
    """Why a pod goes without a sidecar that nobody has to change."""
    return "\n".join(f"- `{row}`: {row.words}" for row in injector_refusals.Skip)


def reasons() -> str:
    """Why a pod that asks for a sidecar cannot have it: of each code the first words; each refusal has its own."""
    words: dict[str, list[str]] = {}
    for row in injector_refusals.Reason:
        words.setdefault(row.code, []).append(_facts(row.words))
    return "\n".join(f"- `{code}`: {found[0]}{'; …' if len(set(found)) > 1 else ''}" for code, found in words.items())


def http_errors() -> str:
    """Why a review gets an HTTP error."""
    rows = injector_refusals.HttpError
    return "\n".join(f"- `{row.code}` ({row.status}): {_facts(row.words)}" for row in rows)


def _facts(template: str) -> str:
    """A row's text with the names of its facts in italics."""
    return re.sub(r"\{(\w+)[^}]*\}", r"*\1*", template.replace("{{}}", "`{}`"))


def recognised_servers() -> str:
    """Servers that are recognised, and what tells them their port, by where they listen if nothing does."""
    listening: dict[str, list[str]] = {"all addresses": [], "127.0.0.1": [], "(cannot be told)": []}
    for title in dict.fromkeys(server.title for server in servers.SERVERS):
        server = servers.BY_TITLE[title]
        told = _codes(server.http.names("port", "address"))
        if server.grpc:
            told += f", for gRPC {server.grpc.port} {_codes(server.grpc.names('port'))}"
        where = "127.0.0.1" if server.http.host == "127.0.0.1" else "all addresses"
        listening[where if told else "(cannot be told)"].append(
            f"{title} {server.http.port} ({told})" if told else title
        )
    rows = [f"| {where} | {'; '.join(found)} |" for where, found in listening.items()]
    return "\n".join(["| listens, if not told, on | server and port, and what tells it another |", "|---|---|", *rows])


def metrics_of_injector() -> str:
    """Every metric of the injector."""
    made = injector_metrics.Metrics()
    made.configured("")
    rows: list[str] = []
    for collector in made.registry._collector_to_names:
        names = getattr(collector, "_labelnames", ())
        labels = "{" + ",".join(names) + "}" if names else ""
        families = collector.describe() if hasattr(collector, "describe") else ()
        rows += [_metric(family, labels) for family in families if family.name.startswith("carpool_injector_")]
    return "\n".join(rows)


def _allowed(key: str) -> str:
    try:
        injector_settings.Settings.model_validate({key: "\0"})
    except pydantic.ValidationError as error:
        told = error.errors()[0]["msg"].removeprefix("Value error, must be ").removesuffix(", without the unit")
        return _without_rules(_cell(told))
    raise AssertionError(f"{key} accepts anything")


def _without_rules(text: str) -> str:
    """Without the names of all rules for lists, which a page of their own has."""
    return re.sub(r" \([a-z-]+(, [a-z-]+){5,}\)", "", text)


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "/")


TABLES: dict[str, Callable[[], str]] = {
    "reasons for not batching": reasons_for_not_batching,
    "built-in lists": built_in_lists,
    "sidecar settings that matter first": first_settings,
    "sidecar settings": sidecar_settings,
    "sidecar settings for experts": expert_settings,
    "predictor settings": predictor_settings,
    "metrics": sidecar_metrics,
    "function metrics": function_metrics,
    "refusals": refusals,
    "batch reasons": batch_reasons,
    "annotations that matter first": first_annotations,
    "annotations": annotations,
    "annotations of flags": annotations_of_flags,
    "who decides": deciders,
    "recognised servers": recognised_servers,
    "why not": skips,
    "refusals of the injector": reasons,
    "reviews without an answer": http_errors,
    "injector metrics": metrics_of_injector,
}


def written(page: str) -> str:
    """The page with all tables brought up to date."""
    for name in marks.names(page):
        if name in TABLES:
            page = marks.renewed(page, name, COMMAND, TABLES[name]())
    return page


def _settings(
    model: type[BaseSettings],
    is_wanted: Callable[[object], bool] = lambda group: True,
    live: tuple[str, ...] = (),
    *,
    in_short: bool = False,
) -> str:
    rows = []
    for name, info in model.model_fields.items():
        extra = info.json_schema_extra
        if not is_wanted(extra["group"] if isinstance(extra, dict) else None):
            continue
        default = ",".join(info.default) if isinstance(info.default, tuple) else info.default
        shown = f" (`{default}`)" if default not in ("", None) else ""
        others = [word for word in typing.get_args(info.annotation) if isinstance(word, str) and word != default]
        mark = " *" if name in live else ""
        meaning = _in_short(info.description or "") if in_short else _without_rules(info.description or "")
        if untold := [word for word in others if word not in meaning.lower()]:
            meaning += f" Or: {_codes(untold)}."
        linked = re.sub(r"docs/(\w+)[.]md", r"[\1](\1.md)", meaning)
        rows.append(f"- `{settings.flag(name)}`{mark}{shown}: {linked}")
    return "\n".join(rows)


def _in_short(meaning: str) -> str:
    """The first sentence, what no value and 0 mean, and warnings, without examples: `--help` has all of it."""
    first, *others = re.split(r"(?<=\.) +(?=[A-Za-z0-9])", meaning)
    needed = ("Empty:", "0:", "Not given:", "Only", "Keep")
    told = [first, *(each for each in others if each.startswith(needed) and each != "Empty: none.")]
    # A word and a colon say of which value the rest is; more colons, and semicolons, that more follows,
    # but for what 0 means, and what holds without a value.
    end = "(?:, for example|, such as|: |; (?!0 |without ))"
    more = re.compile(rf"^((?:Not given: |\w+: )?(?!Not given)\w+ [^`:]*?){end}.*")
    return " ".join(more.sub(r"\1.", each) for each in told)


def _labels(family: str) -> str:
    counters = metrics.Metrics()
    for metric in vars(counters).values():
        if getattr(metric, "_name", None) == family and metric._labelnames:
            return "{" + ",".join(metric._labelnames) + "}"
    return ""


if __name__ == "__main__":
    argparse.ArgumentParser(description="Write the tables into their pages.").parse_args()
    for file in PAGES:
        file.write_text(written(file.read_text()))
