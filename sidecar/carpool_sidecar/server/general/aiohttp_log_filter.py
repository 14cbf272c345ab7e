"""What aiohttp's server may log.

It logs malformed HTTP as an error with a traceback, and the error quotes the line that was malformed. Anyone who
reaches the port could fill the log with that, and a line may hold credentials.
"""

from __future__ import annotations

import logging
from typing import Any

from aiohttp import http_exceptions


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """The `logger` of an aiohttp server: malformed HTTP is one line at debug, without a word of what was sent.

    Everything else is logged as aiohttp asks, bugs with their traceback.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, None)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        error = kwargs.get("exc_info")
        if isinstance(error, http_exceptions.HttpProcessingError):
            super().log(logging.DEBUG, f"{msg}: %s", *args, type(error).__name__)
        else:
            super().log(level, msg, *args, **kwargs)
