"""Models for worker processes, one for each situation; the processes import them by name."""

from __future__ import annotations

import functools
import os
import pathlib
import select
import signal
import sys
import threading
import time
from typing import Any

from carpool.workers.errors import EndWorker, Unusable
from carpool_predictor import calls, stages


class Doubling:
    """Doubles numbers. Made for a device, and with a number to add by default."""

    def __init__(self, device: str, plus: int = 0) -> None:
        self.device = device
        self.plus = plus

    def __call__(self, items: list[int], *, plus: int | None = None) -> list[int]:
        return [2 * item + (self.plus if plus is None else plus) for item in items]


class Telling:
    """Tells about its process, and does to it what the first item says."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.calls = 0

    def __call__(self, items: list[Any]) -> list[Any]:
        self.calls += 1
        return [getattr(self, item[0])(*item[1:]) for item in items]

    def about(self) -> tuple[int, str, int]:
        return os.getpid(), self.device, self.calls

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def session(self) -> int:
        return os.getsid(0)

    def die(self) -> None:
        os._exit(3)

    def read(self, pipe: pathlib.Path) -> str:
        """Wait until somebody opens a named pipe for writing, and for what is written."""
        return pipe.read_text()

    def write(self, pipe: pathlib.Path, text: str) -> None:
        pipe.write_text(text)

    def signalled(self, number: int) -> str:
        os.kill(os.getpid(), number)
        return signal.Signals(number).name


class Echo:
    """Returns what it is given."""

    def __init__(self, device: str) -> None: ...

    def __call__(self, items: list[Any]) -> list[Any]:
        return items


class Odd(Exception):
    """Can be pickled, and not read back."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Stubborn(Exception):
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("no")


class Raising:
    """Raises, or returns as a result, the exception that the first item names."""

    def __init__(self, device: str) -> None: ...

    def __call__(self, items: list[str], *, returned: bool = False) -> list[Any]:
        kinds = {
            "value": ValueError("a bad value"),
            "exit": SystemExit(7),
            "odd": Odd(1, 2),
            "stubborn": Stubborn("mule"),
        }
        if items[0] == "lambda":
            return [lambda: None]
        if items[0] == "pid":
            return [os.getpid()]
        if returned:
            return [kinds[item] for item in items]
        raise kinds[items[0]]


class FailingUntilMarked:
    """Cannot be made before a file exists, which its first try writes if it is told to."""

    def __init__(self, device: str, marker: pathlib.Path, *, marks: bool = False) -> None:
        if not marker.exists():
            if marks:
                marker.touch()
            raise OSError("the weights are not mounted yet")

    def __call__(self, items: list[int]) -> list[int]:
        return items


class Dead:
    """Ends its process while it is made."""

    def __init__(self, device: str) -> None:
        os._exit(5)

    def __call__(self, items: list[int]) -> list[int]:
        return items


class Hopeless(Doubling):
    """Says that no restart can help."""

    def __init__(self, device: str) -> None:
        raise Unusable("there is no such model")


class Holding:
    """Keeps a named pipe open for writing for as long as its process lives, and computes for ever if it is told to."""

    def __init__(self, device: str, pipe: pathlib.Path) -> None:
        self.pipe = pipe.open("wb")

    def __call__(self, items: list[str]) -> list[int]:
        while items == ["for ever"]:
            pass
        if items == ["sleep"]:
            time.sleep(3600)
        return [os.getpid()]


def make_doubling(device: str) -> Doubling:
    return Doubling(device, plus=int(device))


class Coroutines:
    def __init__(self, device: str) -> None: ...

    async def __call__(self, items: list[int]) -> list[int]:
        return items


class Without:
    def __init__(self, device: str) -> None: ...


def modules(device: str) -> Any:
    """A model that tells which modules its process has."""
    return lambda items: [item in sys.modules for item in items]


class Bytes:
    """Adds an exclamation mark to a request, or does what it says."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, request: bytes | bytearray) -> list[bytes | bytearray]:
        if request == b"raise":
            raise ValueError("a bad request")
        if request == b"die":
            os._exit(3)
        return [self.device.encode() if request == b"device" else request, b"!"]


class WithServe:
    """Adds what it calls `serve` to numbers, which is nobody else's business."""

    def __init__(self, device: str) -> None:
        self.serve = 52

    def __call__(self, items: list[int]) -> list[int]:
        return [item + self.serve for item in items]


class InStages(Bytes):
    """The same in three stages, of which the second does what the request says."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._stages = (bytes, super().__call__, list)

    def serve(self, *connection: Any) -> None:
        stages.serve_in_stages(calls.Calls(*connection), self._stages)


class InSteps(Bytes):
    """The same in three steps, of which the second waits for a moment and does what the request says."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._steps = (bytes, self._wait, list)

    def serve(self, *connection: Any) -> None:
        stages.serve_in_steps(calls.Calls(*connection), *self._steps)

    def _wait(self, request: bytes) -> list[bytes | bytearray]:
        threading.Event().wait(0.002)
        return self(request)


class MeetingInSteps:
    """Answers calls in pairs: the first one's answer is not written before the second is computed.

    The second is to be sent once the first is computed, when the model opens the pipe to read.
    """

    def __init__(self, device: str, pipe: pathlib.Path) -> None:
        self._pipe = pipe
        self._is_second_here = threading.Event()
        self._reads: list[bytes] = []

    def serve(self, *connection: Any) -> None:
        stages.serve_in_steps(calls.Calls(*connection), self._read, self._compute, self._write)

    def __call__(self, request: bytes | bytearray) -> list[bytes | bytearray]:
        return [request]

    def _read(self, request: bytes | bytearray) -> bytes:
        self._reads.append(bytes(request))
        return self._reads[-1]

    def _compute(self, request: bytes) -> bytes:
        if request == b"second":
            self._is_second_here.set()
            return request
        threading.Event().wait(0.01)  # as for a device, so that there is time to write another answer
        if request == b"first":
            with self._pipe.open("rb"):
                select.select([int(sys.argv[2])], [], [], 30)  # the worker's socket: the second one is there
        return request

    def _write(self, request: bytes) -> list[bytes]:
        return [request if request != b"first" or self._is_second_here.wait(30) else b"alone"]


class EndingInSteps(MeetingInSteps):
    """Ends its process in the second call, while the first one's answer has yet to be written."""

    def _compute(self, request: bytes) -> bytes:
        request = super()._compute(request)
        if request == b"second":
            raise EndWorker
        return request


class EndingInStages(EndingInSteps):
    """The same in two stages."""

    def serve(self, *connection: Any) -> None:
        stages.serve_in_stages(calls.Calls(*connection), (lambda request: self._compute(bytes(request)), self._write))


class MeetingInStages:
    """Answers calls in threes: each waits in its stage until the two after it, or before it, are in theirs."""

    def __init__(self, device: str) -> None:
        meeting = threading.Barrier(3, timeout=30)
        self._stages = tuple(functools.partial(self._meet, meeting, place) for place in range(3))

    def serve(self, *connection: Any) -> None:
        stages.serve_in_stages(calls.Calls(*connection), self._stages)

    def __call__(self, request: bytes | bytearray) -> list[bytes | bytearray]:
        return [request]

    @staticmethod
    def _meet(meeting: threading.Barrier, place: int, request: bytes | list[bytes]) -> bytes | list[bytes]:
        text = b"".join(request) if isinstance(request, list) else bytes(request)
        if int(text) % 3 == 2 - place:
            meeting.wait()
        return [text]


class DyingOnce:
    """Ends its process at the first batch, unless a file exists, which it writes before."""

    def __init__(self, device: str, marker: pathlib.Path) -> None:
        self.marker = marker

    def __call__(self, items: list[int]) -> list[int]:
        if not self.marker.exists():
            self.marker.touch()
            os._exit(3)
        return items


class Choosy:
    """Raises if an item is odd."""

    def __init__(self, device: str) -> None: ...

    def __call__(self, items: list[Any]) -> list[Any]:
        if "odd" in items:
            raise ValueError("it is odd")
        return items
