"""What follows from a predictor's answers: which of its requests can be batched, by which rule, with which settings.

`examine` makes a plan of what can be measured; once that was done, `report` and `values` say all of it, for people and
for programs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from carpool.program import model_servers
from carpool_sidecar.doctor import descriptions, identity, samples
from carpool_sidecar.planning import probing
from carpool_sidecar.protocols import models
from carpool_sidecar.protocols.lists import rules

V1, V2 = "v1", "v2"
_LOOPBACK = re.compile(r"http://(127\.|localhost\b|\[::1\])", re.IGNORECASE)


class Usual(NamedTuple):
    """Where requests of a rule go if nothing describes the API, and which member has a text that can be made up.

    In bodies that name a model, it is one of OpenAI's list; what is reranked is a list of texts.
    """

    path: str
    member: str = ""
    names_model: bool = False
    is_reranked: bool = False


_USUAL = {
    "openai-embeddings": Usual("/v1/embeddings", "input", names_model=True),
    "tei-embed": Usual("/embed", "inputs"),
    "tei-rerank": Usual("/rerank", "texts", is_reranked=True),
    "ollama-embed": Usual("/api/embed"),
    "mlflow": Usual("/invocations"),
}
# Beyond this a difference is no rounding: another text beside it changes an answer.
_PADDING = 1e-3


class Kind(NamedTuple):
    """A kind of request: its path, and `by` what it is batched: v1, v2 or a rule's name; empty: by nothing.

    `bodies` were made up; where there are none, they have to be recorded. `about` says what is known of it. Rerank
    requests that can go as pairs go `to` where --rerank-to says it.
    """

    path: str
    by: str
    bodies: tuple[bytes, ...] = ()
    about: str = ""
    to: str = ""


class Examination(NamedTuple):
    """All that was found: who it is, its kinds of requests, and what is dangerous.

    `probed` is what was measured of the kind at `measured`, or None. `lists` are rules that were named, and `rerank_to`
    where pairs go by what was named, which go before those that were found to fit.
    """

    who: identity.Identity
    kinds: tuple[Kind, ...]
    warnings: tuple[str, ...] = ()
    key_headers: tuple[str, ...] = ()
    measured: str = ""
    probed: probing.Probed | None = None
    lists: str = ""
    rerank_to: str = ""

    @property
    def is_unanswered(self) -> bool:
        """Whether requests were sent, and not even one alone was answered."""
        return self.probed is not None and not self.probed.sizes

    @property
    def buys(self) -> bool | None:
        """Whether batching buys something, None where nothing was measured that tells."""
        if self.probed is None or not self.probed.tells:
            return None
        return probing.is_worth_it(self.probed.sizes, probing.advise(self.probed.sizes))

    @property
    def settings(self) -> dict[str, str]:
        """Settings by their names: those of the kind that was measured, or of all kinds if none was."""
        found: dict[str, str] = {}
        if self.is_unanswered:
            return found
        chosen = [kind for kind in self.kinds if kind.path == self.measured or not self.measured]
        by_rules = dict.fromkeys(kind.by for kind in chosen if kind.by not in ("", V1, V2))
        if lists := self.lists or ",".join(by_rules):
            found["lists"] = lists
        as_pairs = [] if self.lists else [kind.to for kind in chosen if kind.to]
        if to := self.rerank_to or next(iter(as_pairs), ""):
            found["rerank-to"] = to
        if self.key_headers:
            found["key-headers"] = ",".join((*model_servers.USUAL_KEY_HEADERS, *self.key_headers))
        if self.probed is not None and self.buys:
            found["max-batch-size"] = str(probing.advise(self.probed.sizes).largest)
        return found


def examine(
    who: identity.Identity, described: Sequence[descriptions.Operation], tensors: Mapping[str, models.ModelInfo]
) -> Examination:
    """What can be said before anything is measured; `tensors` is what v2's metadata tell of each model."""
    kinds = tuple(_kinds(who, described, tensors))
    headers = dict.fromkeys(who.known.chooses_by)
    warnings = [*model_servers.words(who.known)]
    batched = {kind.path for kind in kinds if kind.by}
    for operation in described:
        mine = [name for name in operation.headers if name not in model_servers.USUAL_KEY_HEADERS]
        if mine and operation.path in batched:
            headers |= dict.fromkeys(mine)
            warnings.append(
                f"POST {operation.path} reads {_listed(mine, 'the header')}: only requests that agree may share a batch"
            )
    most = who.most_rows
    warnings += [
        f"it takes {most} inputs a call, and the rule {rule.name} gives it {rule.max_batch_size}: a rule of your own "
        f"with 'extends: {rule.name}' and 'max_batch_size: {most}' makes larger batches"
        for rule in (rules.built_in()[name] for name in who.rules)
        if most is not None and rule.max_batch_size is not None and most > rule.max_batch_size
    ]
    return Examination(who, kinds, tuple(warnings), tuple(headers))


def judge(found: Examination, measured: str, by: str, probed: probing.Probed, has_other_lengths: bool) -> Examination:
    """The same with what was measured at a path, of requests with texts of other lengths, or not.

    `by` is what joined them, as in `Kind`; the path need not be one that was known of.
    """
    kinds = found.kinds
    if (measured, by) not in [kind[:2] for kind in kinds]:
        kinds = (*(kind for kind in kinds if kind.path != measured), Kind(measured, by))
    warnings = list(found.warnings)
    worst = max((each.difference for each in probed.sizes), default=0.0)
    if has_other_lengths and probed.is_steady and worst > _PADDING:
        warnings.append(
            f"numbers differ by up to {worst:.2g} where texts of other lengths share a call: the model sees the "
            "padding, so a caller's answer depends on the others in the batch"
        )
    return found._replace(kinds=kinds, warnings=tuple(warnings), measured=measured, probed=probed)


def _kinds(
    who: identity.Identity, described: Sequence[descriptions.Operation], tensors: Mapping[str, models.ModelInfo]
) -> Iterator[Kind]:
    for name, model in tensors.items():
        objection = model.objection()
        shapes = ", ".join(f"{spec.name} {spec.datatype} {list(spec.shape)}" for spec in model.inputs)
        path = f"/v2/models/{name}/infer"
        if not (path + shapes).isprintable():
            continue  # a terminal would obey it
        if objection is not None:
            yield Kind(path, "", about=objection.meaning)
        else:
            yield Kind(path, V2, tuple(samples.tensors(model)), shapes)
    for name in who.v1_models:
        yield Kind(f"/v1/models/{name}:predict", V1)
    seen = set()
    takes = _pairs(who, described)
    for operation in described:
        fitting = [rule.name for rule in rules.built_in().values() if descriptions.fits(operation, rule)]
        known = [name for name in fitting if name in who.rules]
        for name in known[:1] or fitting[:1]:
            seen.add(name)
            yield _by_rule(operation.path, name, who, takes)
        if not fitting and (proposed := descriptions.proposal(operation)) is not None:
            yield Kind(operation.path, "", about=f"a rule of your own may fit:\n{proposed}")
    for name in who.rules:
        usual = _USUAL.get(name)
        if usual is not None and name not in seen and (who.openai_models or not usual.names_model):
            yield _by_rule(usual.path, name, who, takes)


def _pairs(who: identity.Identity, described: Sequence[descriptions.Operation]) -> str:
    """How the predictor takes pairs, as --rerank-to calls it; empty if it does not, or nothing shows that it does."""
    rule = rules.built_in().get(who.known.pairs)
    shows = who.is_reranker or (rule is not None and any(descriptions.fits(each, rule) for each in described))
    return who.known.pairs if shows else ""


def _by_rule(path: str, name: str, who: identity.Identity, takes: str) -> Kind:
    """Requests by a built-in rule; `takes` says how the predictor takes pairs, if it does."""
    return Kind(path, name, _texts(name, who), to=takes if rules.built_in()[name].query else "")


def _texts(rule: str, who: identity.Identity) -> tuple[bytes, ...]:
    usual = _USUAL.get(rule, Usual(""))
    if not usual.member or (usual.names_model and not who.openai_models):
        return ()
    if usual.is_reranked:  # whoever else has such a path may want more than that
        return tuple(samples.pairs(usual.member)) if who.is_reranker else ()
    return tuple(samples.texts(usual.member, who.openai_models[0] if usual.names_model else None))


def _listed(names: Sequence[str], word: str) -> str:
    return f"{word}{'s' if len(names) > 1 else ''} {', '.join(names)}"


# --- for people and programs --------------------------------------------------------------------------------------


def report(found: Examination, url: str, port: int) -> str:
    """All of it, in sections; `url` is how the predictor was reached, `port` its own."""
    lines = ["what it is", f"  {_name(found.who)}"]
    lines += ["", "what can be batched", *_indented(map(_line, found.kinds))]
    if not found.kinds:
        lines.append("  nothing that is known here: docs/lists.md tells how to write a rule for requests with a list")
    if found.probed is not None:
        lines += ["", f"what batching buys at {found.measured}", *_indented([probing.table(found.probed)])]
    else:
        path = next((kind.path for kind in found.kinds if kind.by), "PATH")
        lines += ["", "what batching buys", "  not measured: record the bodies of some requests, and give them:"]
        address = f"--url {shlex.quote(url)} --path {shlex.quote(path)}"
        lines += [f"  carpool-sidecar doctor {address} --body FILE FILE"]
    if found.warnings:
        lines += ["", "what to look at", *(f"  - {text}" for text in found.warnings)]
    return "\n".join([*lines, "", *_what_to_set(found, url, port)])


def _what_to_set(found: Examination, url: str, port: int) -> Iterator[str]:
    if found.buys is False:
        yield "what to set\n  nothing: it is as well off without the sidecar"
        return
    if found.is_unanswered:
        yield f"what to set\n  nothing yet: requests to {found.measured} are not answered"
        return
    if not found.lists and not any(kind.by for kind in found.kinds):
        known = ", ".join(found.who.rules)
        needed = f"by what its models do, one of these rules: {known}" if known else ""
        yield f"what to set\n  nothing yet: {needed or 'no request of its is batched without a rule of your own'}"
        return
    yield f'label of the pod template or InferenceService\n  {model_servers.PREFIX}inject: "true"\n'
    chosen = found.settings
    if chosen:
        yield "its annotations"
        yield from (f"  {model_servers.annotation(name, _as_yaml(value))}" for name, value in chosen.items())
        yield ""
    flags = "".join(f" --{name} {shlex.quote(value)}" for name, value in chosen.items())
    yield f"or without an injector\n  carpool-sidecar --component-port {port}{flags}"
    if _LOOPBACK.match(url):
        yield "  where that port is forwarded, --component-port is the one on which it listens in its pod"


def values(found: Examination) -> dict[str, Any]:
    """The same as JSON values."""
    who = found.who
    return {
        "server": who.title,
        "version": who.version,
        "said_at": who.said_at,
        "requests": [
            {"path": kind.path, "by": kind.by, "about": kind.about, "made_up": bool(kind.bodies)}
            | ({"rerank_to": kind.to} if kind.to else {})
            for kind in found.kinds
        ],
        "warnings": list(found.warnings),
        "measured": found.measured,
        "probe": None if found.probed is None else probing.values(found.probed),
        "settings": found.settings,
    }


def _name(who: identity.Identity) -> str:
    if not who.title:
        return "a server that does not say what it is"
    return f"{who.title}{f' {who.version}' if who.version else ''}, by its answer at {who.said_at}"


def _line(kind: Kind) -> str:
    how = {"": "not as it is", V1: "v1, without a rule", V2: "v2, without a rule"}.get(kind.by, f"rule {kind.by}")
    pairs = f", as pairs to {kind.to}" if kind.to else ""
    return f"POST {kind.path}: {how}{pairs}{f'; {kind.about}' if kind.about else ''}"


def _indented(texts: Iterator[str] | Sequence[str]) -> Iterator[str]:
    for text in texts:
        for line in text.splitlines():
            yield f"  {line}"


def _as_yaml(value: str) -> str:
    if "\n" in value:
        return "\n    ".join(["|", *value.strip().splitlines()])
    return f'"{value}"' if value.isdecimal() else value
