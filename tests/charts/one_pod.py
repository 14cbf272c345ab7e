"""Alerts as one pod's counters answer them, when all that they have counted was counted within the range."""

from __future__ import annotations

import operator
import re
from typing import Any

import promql_parser
from prometheus_client import CollectorRegistry

_OPERATORS = {"/": operator.truediv, ">": operator.gt, "==": operator.eq}


def value(expression: str, registry: CollectorRegistry) -> float:
    """What `sum(rate(…))` of counters, and what is computed from such, comes to; a comparison is 1 or 0.

    Raises `KeyError` or `AttributeError` for what is not computed here.
    """
    return float(_value(promql_parser.parse(expression), registry))


def _value(part: Any, registry: CollectorRegistry) -> float:
    if isinstance(part, promql_parser.NumberLiteral):
        return float(part.val)
    if isinstance(part, promql_parser.BinaryExpr):
        return float(_OPERATORS[str(part.op)](_value(part.lhs, registry), _value(part.rhs, registry)))
    (rate,) = part.expr.args
    selector = rate.vector_selector
    assert all(str(each.op) in ("MatchOp.Equal", "MatchOp.Re") for each in selector.matchers.matchers)
    return sum(
        sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == selector.name
        and all(re.fullmatch(each.value, sample.labels[each.name]) for each in selector.matchers.matchers)
    )
