"""Logs for people at a terminal, JSON for everything that collects them.

Standard library logging, one handler on standard error, and one tree of loggers: all names begin with `carpool`. Facts
about an event travel in `extra=facts(...)`, so that JSON keeps them as members and text shows them as `name=value`.
Bodies of requests and pods are never logged: they may hold what is secret.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

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


class RateLimitedLog:
    """Logs one line in `interval` seconds for each kind of event, and says how many it kept to itself.

    A predictor that is down fails hundreds of batches a second, and anyone who reaches a server can make it fail
    requests: the first line says it all. The others are logged at debug. `kind` must come from a small closed set.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic, interval: float = 5.0) -> None:
        self._log = log
        self._clock = clock
        self._interval = interval
        self._kinds: dict[str, tuple[float, int]] = {}  # when the last line came, and how many were kept since

    def warning(self, kind: str, message: str, /, **values: Any) -> None:
        """Log `message` with its facts, or count it."""
        self.log(logging.WARNING, kind, message, **values)

    def error(self, kind: str, message: str, /, **values: Any) -> None:
        """The same as an error, with the traceback of the exception that is being handled."""
        self.log(logging.ERROR, kind, message, exc_info=True, **values)

    def log(self, level: int, kind: str, message: str, /, *, exc_info: Any = None, **values: Any) -> None:
        """The same at any level, and with any exception's traceback."""
        last, kept = self._kinds.get(kind, (float("-inf"), 0))
        now = self._clock()
        if now - last < self._interval:
            self._kinds[kind] = (last, kept + 1)
            self._log.debug(message, extra=facts(**values))
            return
        self._kinds[kind] = (now, 0)
        extra = facts(**values, **({"suppressed": kept} if kept else {}))
        self._log.log(level, message, exc_info=exc_info, extra=extra)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (ISO 8601, UTC), `level`, `logger`, `message`, the facts, then `exception`."""

    converter = staticmethod(time.gmtime)

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
        return json.dumps(line, default=str, ensure_ascii=False, separators=(",", ":"))


class TextFormatter(logging.Formatter):
    """`12:34:56 INFO    message  name=value …`"""

    def format(self, record: logging.LogRecord) -> str:
        shown = "  ".join(f"{name}={_on_one_line(value)}" for name, value in getattr(record, "facts", {}).items())
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {record.getMessage()}"
        line = f"{line}  {shown}" if shown else line
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _on_one_line(value: object) -> str:
    text = str(value)
    return text if text.isprintable() else repr(text)
