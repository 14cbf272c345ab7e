"""Logs of the webhook server: text for people at a terminal, JSON for everything that collects them.

Facts about an event travel in `extra=facts(...)`, so that JSON keeps them as members and text shows them as
`name=value`. Pods are never logged: their environment may hold secrets.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from pythonjsonlogger import json as jsonlogger

from carpool_injector.webhook import options


def set_up(log_format: options.LogFormat, level: options.LogLevel) -> None:
    """Send all logs to standard error; `auto` means text on a terminal and JSON elsewhere."""
    handler = logging.StreamHandler(sys.stderr)
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextFormatter() if as_text else json_formatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.captureWarnings(True)


def facts(**values: Any) -> dict[str, dict[str, Any]]:
    """The `extra` argument of a log call."""
    return {"facts": values}


class Seldom:
    """Logs at most one line in `interval` seconds for each kind, and says how many it kept to itself.

    Anyone who reaches the server can make it fail requests, and a log that grows with them would be their next victim.
    `kind` must come from a small closed set.
    """

    def __init__(self, log: logging.Logger, interval: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._interval = interval
        self._clock = clock
        # All mutable state: for each kind when it was last told, and how many came since.
        self._kinds: dict[str, tuple[float, int]] = {}

    def warning(self, kind: str, message: str, /, **values: Any) -> None:
        """Log `message` with its facts, or count it."""
        self.log(logging.WARNING, kind, message, **values)

    def error(self, kind: str, message: str, /, **values: Any) -> None:
        """The same with the traceback of the exception that is being handled."""
        self.log(logging.ERROR, kind, message, exc_info=True, **values)

    def log(self, level: int, kind: str, message: str, /, *, exc_info: Any = None, **values: Any) -> None:
        """The same at any level, and with any exception's traceback."""
        told, kept = self._kinds.get(kind, (float("-inf"), 0))
        now = self._clock()
        if now - told < self._interval:
            self._kinds[kind] = (told, kept + 1)
            return
        self._kinds[kind] = (now, 0)
        extra = facts(**values, **({"suppressed": kept} if kept else {}))
        self._log.log(level, message, exc_info=exc_info, extra=extra)


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """The `logger` of an aiohttp server, which tells of each malformed request with a traceback: seldom here.

    Of exceptions whose text quotes what was sent only the type is told.
    """

    def __init__(self, logger: logging.Logger, interval: float = 1.0) -> None:
        super().__init__(logger, None)
        self._seldom = Seldom(logger, interval)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        error = kwargs.get("exc_info")
        error = sys.exc_info()[1] if error is True else error
        kind = type(error).__name__ if isinstance(error, BaseException) else ""
        is_http = isinstance(error, BaseException) and type(error).__module__.startswith("aiohttp.")
        if is_http:
            self._seldom.log(logging.WARNING, kind, "what was sent is not HTTP as it should be", error=kind)
        else:
            self._seldom.log(level, kind, str(msg) % args if args else str(msg), exc_info=error)


def json_formatter() -> logging.Formatter:
    """One JSON object a line: `time` (ISO 8601, UTC), `level`, `logger`, `message`, `exception`, then the facts."""
    return _JsonFormatter(
        "%(levelname)s %(name)s %(message)s",
        rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception", "timestamp": "time"},
        timestamp=True,
    )


class _JsonFormatter(jsonlogger.JsonFormatter):
    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        super().add_fields(log_data, record, message_dict)
        log_data["level"] = record.levelname.lower()
        log_data |= log_data.pop("facts", {})


class TextFormatter(logging.Formatter):
    """`12:34:56 INFO    message  name=value …`"""

    def format(self, record: logging.LogRecord) -> str:
        shown = "  ".join(f"{name}={_plain(value)}" for name, value in getattr(record, "facts", {}).items())
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {record.getMessage()}"
        line = f"{line}  {shown}" if shown else line
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _plain(value: object) -> str:
    """Text that stays on its line, whoever wrote it."""
    text = str(value)
    return text if text.isprintable() else repr(text)
