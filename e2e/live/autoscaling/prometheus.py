"""Asks a Prometheus server by its HTTP API."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable
from typing import Any, NamedTuple

Object = dict[str, Any]


class Sample(NamedTuple):
    """A time series and its value now."""

    labels: dict[str, str]
    value: float


class Wrong(Exception):
    """Prometheus did not answer with success. The message is what it said."""


class Prometheus:
    """One server. `get` answers a GET of a path such as /api/v1/query?query=up with the body."""

    def __init__(self, get: Callable[[str], str]) -> None:
        self._get = get

    def query(self, expression: str) -> list[Sample]:
        """The instant vector that an expression gives now; a scalar is one sample without labels. Raises Wrong."""
        answer = self._ask("query", query=expression)
        if answer["resultType"] == "scalar":
            return [Sample({}, float(answer["result"][1]))]
        return [Sample(each["metric"], float(each["value"][1])) for each in answer["result"]]

    def label_values(self, selector: str, label: str) -> list[str]:
        """The values of a label among the series that a selector picks. Raises Wrong."""
        values: list[str] = self._ask(f"label/{label}/values", **{"match[]": selector})
        return values

    def targets(self) -> list[Object]:
        """What is scraped now, and how that goes. Raises Wrong."""
        found: list[Object] = self._ask("targets", state="active")["activeTargets"]
        return found

    def rules(self) -> list[Object]:
        """All rules that are evaluated, with their health and last error. Raises Wrong."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def _ask(self, endpoint: str, **parameters: str) -> Any:
        text = self._get(f"/api/v1/{endpoint}?{urllib.parse.urlencode(parameters)}")
        answer = json.loads(text)
        if answer["status"] != "success":
            raise Wrong(f"{parameters}: {answer.get('errorType')}: {answer.get('error')}")
        return answer["data"]
