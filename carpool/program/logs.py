"""Logs for people at a terminal, JSON for everything that collects them.

Standard library logging, one handler on standard error. Facts about an event travel in `extra={"facts": {...}}`, so
that JSON keeps them as members and text shows them as `name=value`. Request and response bodies are never logged.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec

Format = Literal["auto", "json", "text"]
Level = Literal["debug", "info", "warning", "error"]


def set_up(log_format: Format, level: Level) -> None:
    """Send all logs to standard error; `auto` means text on a terminal and JSON elsewhere."""
    handler = logging.StreamHandler(sys.stderr)
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.captureWarnings(True)


def facts(**values: Any) -> dict[str, dict[str, Any]]:
    """The `extra` argument of a log call."""
    return {"facts": values}


class Seldom:
    """Warns at most once in `interval` seconds for each kind of event, and says how many it kept to itself.

    A predictor that is down fails hundreds of batches a second; the first line says it all. `kinds` must come from a
    small closed set.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float], interval: float = 5.0) -> None:
        self._log = log
        self._clock = clock
        self._interval = interval
        self._kinds: dict[str, tuple[float, int]] = {}  # when last told, how many since

    def warning(self, kind: str, message: str, **values: Any) -> None:
        """Log `message` with its facts, or count it."""
        told, kept = self._kinds.get(kind, (float("-inf"), 0))
        now = self._clock()
        if now - told < self._interval:
            self._kinds[kind] = (told, kept + 1)
            self._log.debug(message, extra=facts(**values))
            return
        self._kinds[kind] = (now, 0)
        self._log.warning(message, extra=facts(**values, **({"suppressed": kept} if kept else {})))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (ISO 8601, UTC), `level`, `logger`, `message`, then the facts."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()

    converter = staticmethod(time.gmtime)


class TextFormatter(logging.Formatter):
    """`12:34:56 INFO  message  name=value …`"""

    def format(self, record: logging.LogRecord) -> str:
        shown = "  ".join(f"{name}={value}" for name, value in getattr(record, "facts", {}).items())
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {record.getMessage()}"
        line = f"{line}  {shown}" if shown else line
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
