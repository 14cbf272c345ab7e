"""What `explain` and `inject` make of a file of other people: decisions in a few words, and what must never happen.

An object is injected as the command line does it, asked for explicitly. Of an InferenceService the decision is that of
the pod to come, in Standard mode where it names none.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from carpool_injector.core import model, refusals
from carpool_injector.documents import editing, reading
from carpool_injector.objects import explanation, manifests, workloads
from tests.injector.corpus.listing import Entry

_INJECTOR = manifests.Injector()
LARGEST = 2_000_000
"""Bytes; beyond it stand generated definitions."""


@dataclass(slots=True)
class Result:
    """Of a file: its objects, and what went wrong. `unreadable` says why it is no manifest, for its author."""

    entries: list[Entry] = field(default_factory=list)
    unreadable: str = ""
    crashes: list[str] = field(default_factory=list)
    changed: str = ""


def run(path: str, content: bytes) -> Result:
    """Explain and inject everything in a file, and take it out again."""
    found = Result()
    try:
        text = content.decode()
        documents = reading.parse(text, path)
    except (UnicodeDecodeError, reading.Unreadable) as error:
        found.unreadable = str(error)
        return found
    for document in documents:
        for thing in objects(document.data):
            entry = _entry(thing, found.crashes)
            if entry is not None:
                found.entries.append(entry)
    if found.entries:
        found.changed = _round_trip(path, text, documents, found.crashes)
    return found


def objects(data: Any) -> Iterator[model.Object]:
    """The objects of a document, those of Lists each on its own."""
    if isinstance(data, dict):
        held = workloads.items(data)
        if held is None:
            yield data
        for item in held or ():
            yield from objects(item)


def _entry(thing: model.Object, crashes: list[str]) -> Entry | None:
    name = workloads.describe(thing)
    try:
        _, report = manifests.inject(thing, _INJECTOR)
        explained = explanation.explain(thing, _INJECTOR)
    except refusals.Malformed as error:
        return Entry(name, f"malformed: {str(error)[:100]}")
    except Exception:
        crashes.append(traceback.format_exc())
        return Entry(name, "crash")
    if report is None and explained is None:
        return None
    return Entry(name, _decision(report, explained))


def _decision(report: manifests.Report | None, explained: explanation.Explanation | None) -> str:
    done = report.result if report else "nothing"
    if explained is None:
        return done
    if explained.refusal is not None:
        return f"{done}, {explained.refusal.code}"
    if explained.plan is None:
        return f"{done}, {explained.reason}"
    plan = explained.plan
    grpc = f", gRPC {plan.grpc_listen_port}" if plan.grpc_listen_port else ""
    way = f"{plan.takeover} of {plan.container}" if plan.takeover != "none" else f"beside {plan.container}"
    return f"{done}, {way}: {plan.app_port} behind {plan.listen_port}{grpc}"


def _round_trip(path: str, text: str, documents: list[reading.Node], crashes: list[str]) -> str:
    """Why the file does not come back to the byte; empty where it does."""
    try:
        injected = _after(path, text, documents, lambda thing: manifests.inject(thing, _INJECTOR))
        if injected == text:
            return ""
        back = _after(path, injected, reading.parse(injected, path), manifests.uninject)
    except reading.Unreadable as error:
        return f"cannot be edited: {error}"
    except Exception:
        crashes.append(traceback.format_exc())
        return "crash"
    return "" if back == text else _first_difference(text, back)


def _after(path: str, text: str, documents: list[reading.Node], change: manifests.Change) -> str:
    results = [manifests.apply(document.data, change)[0] for document in documents]
    return editing.edited(text, documents, results, path)


def _first_difference(before: str, after: str) -> str:
    for number, (one, other) in enumerate(zip(before.split("\n"), after.split("\n"), strict=False), 1):
        if one != other:
            return f"line {number}: {one.strip()!r} came back as {other.strip()!r}"
    return f"{len(before)} characters came back as {len(after)}"
