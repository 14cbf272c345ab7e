"""Runs `hey`, the load generator that people use by hand, beside the checking client, through the same ingress."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

from e2e.cluster import binaries

LONGEST = "10m"
END_SECONDS = 40.0
STATUS = re.compile(r"^\s*\[(\d{3})\]\s+(\d+) responses", re.MULTILINE)
ERROR = re.compile(r"^\s*\[(\d+)\]\s+(\S.*)$", re.MULTILINE)


class Count(NamedTuple):
    """What hey counted: answers by status, and requests without an answer by the error of Go's client."""

    statuses: dict[int, int]
    errors: dict[str, int]

    @property
    def failed(self) -> int:
        bad = sum(count for status, count in self.statuses.items() if status != 200)
        return bad + sum(self.errors.values())

    @property
    def requests(self) -> int:
        return sum(self.statuses.values()) + sum(self.errors.values())


class Hey:
    """A running hey. `count` is there after the block."""

    def __init__(self, url: str, host: str, callers: int, rate: int) -> None:
        body = '{"instances": [1, "two", {"three": 3}]}'
        each = max(1, rate // callers)  # its limit is for each caller
        words = ["-z", LONGEST, "-c", str(callers), "-q", str(each), "-host", host, "-m", "POST"]
        words += ["-T", "application/json", "-d", body, url]
        self.text = ""
        self._process = subprocess.Popen(
            [str(binaries.provide(binaries.HEY)), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def stop(self) -> None:
        """Asks for the summary, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        try:
            self.text, _ = self._process.communicate(timeout=END_SECONDS)
        finally:
            self._process.kill()

    @property
    def count(self) -> Count:
        return read(self.text)


def read(text: str) -> Count:
    """The two tables at the end of hey's summary."""
    answers, _, errors = text.partition("Error distribution:")
    told = {words: int(count) for count, words in ERROR.findall(errors)}
    return Count({int(status): int(count) for status, count in STATUS.findall(answers)}, told)


@contextlib.contextmanager
def running(ingress: str, host: str, path: str, *, callers: int = 4, rate: int = 20) -> Iterator[Hey]:
    """Keeps hey going until the block ends, at so many requests per second."""
    hey = Hey(ingress.rstrip("/") + path, host, callers, rate)
    try:
        yield hey
    finally:
        hey.stop()
