"""What a line of a log looks like, how seldom the same one comes, and whose name it bears."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import sys
from pathlib import Path

import pytest

from carpool.program import logs

ROOT = Path(__file__).parents[2]
FACTS = {"namespace": "models", "pod": "a\nb", "where": Path("x")}


def line(formatter: logging.Formatter, *, failing: bool = False) -> str:
    record = logging.LogRecord("carpool.test", logging.INFO, __file__, 1, "it %s", ("happened",), None)
    record.facts = FACTS
    if failing:
        try:
            raise ValueError("no")
        except ValueError:
            record.exc_info = sys.exc_info()
    return formatter.format(record)


def test_a_line_of_json_has_time_level_logger_message_and_the_facts() -> None:
    found = json.loads(line(logs.JsonFormatter()))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
    assert found == {
        "level": "info",
        "logger": "carpool.test",
        "message": "it happened",
        "namespace": "models",
        "pod": "a\nb",
        "where": "x",
    }


def test_a_traceback_is_one_member_of_a_line_of_json_and_follows_a_line_of_text() -> None:
    told = line(logs.JsonFormatter(), failing=True)
    assert "\n" not in told
    assert json.loads(told)["exception"].endswith("ValueError: no")
    assert line(logs.TextFormatter(), failing=True).endswith("ValueError: no")


def test_a_line_of_text_stays_one_line_whoever_wrote_the_facts() -> None:
    assert line(logs.TextFormatter()).endswith("INFO    it happened  namespace=models  pod='a\\nb'  where=x")


def test_logs_are_json_where_standard_error_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        logs.set_up("auto", "info")
        assert isinstance(root.handlers[0].formatter, logs.JsonFormatter)
        logs.set_up("text", "info")
        assert isinstance(root.handlers[0].formatter, logs.TextFormatter)
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.captureWarnings(False)


def test_the_same_line_comes_once_in_an_interval_and_says_how_often_it_did_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    limited = logs.RateLimitedLog(logging.getLogger("carpool.test"), lambda: now, interval=1.0)
    for _ in range(100):
        limited.warning("too-large", "a body was too large")
    limited.warning("malformed", "no JSON")
    now = 1.5
    limited.warning("too-large", "a body was too large")
    told = [(record.message, record.facts.get("suppressed")) for record in caplog.records]  # type: ignore[attr-defined]
    assert told == [("a body was too large", None), ("no JSON", None), ("a body was too large", 99)]


def test_all_loggers_are_in_one_tree() -> None:
    """Whoever embeds or filters needs one name: carpool."""
    names: dict[str, str] = {}
    for folder in ("carpool", "sidecar", "injector", "predictor"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getLogger") and node.args:
                    names[str(file.relative_to(ROOT))] = ast.unparse(node.args[0]).strip("'\"")
    theirs = {"trace.TraceState.__module__"}  # another package's, which is turned down and not written to
    outside = {
        file: name
        for file, name in names.items()
        if not (name == "carpool" or name.startswith("carpool.") or name in theirs)
    }
    assert names
    assert outside == {}
