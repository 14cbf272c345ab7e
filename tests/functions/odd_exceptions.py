"""Exceptions that refuse to be touched, each in its own way. Worker processes import them by name."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import carpool


class Trap(Exception):
    """What the odd ones raise."""


def _refuse(*_: Any, **__: Any) -> Any:
    raise Trap("it was touched")


def _exit(*_: Any, **__: Any) -> Any:
    raise SystemExit(9)


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    key: str


@dataclasses.dataclass(frozen=True)
class FrozenWithoutFields(Exception): ...


@dataclasses.dataclass(frozen=True)
class FrozenError(carpool.CarpoolError):
    key: str


class OddText(str):
    __slots__ = ()
    __eq__ = __format__ = __hash__ = __add__ = _refuse  # type: ignore[assignment]


class Meta(type):
    __name__ = property(_refuse)  # type: ignore[assignment]


class OddMeta(Exception, metaclass=Meta): ...


class Required(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class KeywordOnly(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code


class MadeOnce(Exception):
    made = 0

    def __new__(cls, *args: Any) -> MadeOnce:
        if args != ("secret",):
            raise TypeError("there is one of it")
        return super().__new__(cls)


class OddGroup(ExceptionGroup):
    def __new__(cls, code: int) -> OddGroup:
        return super().__new__(cls, str(code), [ValueError(code)])

    def __init__(self, code: int) -> None: ...


class OddImport(ImportError):
    name = property(_refuse)  # type: ignore[assignment]


class OddSyntax(SyntaxError):
    lineno = text = property(_refuse)  # type: ignore[assignment]


class OutOfMemoryError(Exception):
    __str__ = _refuse


class Other(Exception):
    """What a copy of another becomes."""


class OddDied(carpool.WorkerDied):
    remedy = is_overload = property(_refuse)  # type: ignore[assignment]


def _with(base: type[BaseException] = Exception, **members: Any) -> type[BaseException]:
    """A class with these members, which a module has by name as if it had been written out."""
    name = f"Odd{len(_MADE)}"
    made = type(name, (base,), {**members, "__module__": __name__})
    globals()[name] = made
    _MADE.append(made)
    return made


_MADE: list[type[BaseException]] = []


def _noted(notes: Any) -> BaseException:
    error = ValueError("noted")
    error.__notes__ = notes
    return error


def _caused_by_itself() -> BaseException:
    error = ValueError("a circle")
    error.__cause__ = error.__context__ = error
    return error


def _holding(value: Any) -> BaseException:
    error = ValueError("it holds what cannot be copied")
    error.value = value  # type: ignore[attr-defined]
    return error


_UNCOPIED = _with(__reduce_ex__=_refuse)

KINDS: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: ValueError("no"),
    "frozen": lambda: Frozen("bad"),
    "frozen, without fields": FrozenWithoutFields,
    "frozen, of the library": lambda: FrozenError("bad"),
    "refuses to be set": _with(__setattr__=_refuse),
    "refuses to be deleted from": _with(__delattr__=_refuse),
    "refuses to be asked": _with(__getattribute__=_refuse),
    "refuses to be asked for what it lacks": _with(__getattr__=_refuse),
    "str raises": _with(__str__=_refuse),
    "str is an int": _with(__str__=lambda self: 13),
    "str is an odd str": _with(__str__=lambda self: OddText("odd")),
    "str exits": _with(__str__=_exit),
    "str never ends": _with(__str__=lambda self: str(self)),
    "repr raises": _with(__repr__=_refuse),
    "str and repr exit": _with(__str__=_exit, __repr__=_exit, __format__=_exit),
    "with_traceback raises": _with(with_traceback=_refuse),
    "add_note raises": _with(add_note=_refuse),
    "reduce raises": _with(__reduce__=_refuse, __reduce_ex__=_refuse),
    "reduce exits": _with(__reduce__=_exit, __reduce_ex__=_exit),
    "reduce is a name": _with(__reduce__=lambda self: "KINDS"),
    "reduce is nothing": _with(__reduce__=lambda self: None),
    "reduce makes a text": _with(__reduce__=lambda self: (str, ("text",))),
    "reduce makes another": _with(__reduce__=lambda self: (Other, ("other",))),
    "setstate raises": _with(__setstate__=_refuse, code=5),
    "copy raises": _with(__copy__=_refuse, __deepcopy__=_refuse),
    "copy exits": _with(__copy__=_exit),
    "copy is None": _with(__copy__=lambda self: None),
    "copy is itself": _with(__copy__=lambda self: self),
    "class raises": _with(__class__=property(_refuse)),
    "class exits": _with(__class__=property(_exit)),
    "class is another": _with(__class__=property(lambda self: int)),
    "args raise": _with(args=property(_refuse)),
    "dict raises": _with(__dict__=property(_refuse)),
    "traceback raises": _with(__traceback__=property(_refuse)),
    "cause raises": _with(__cause__=property(_refuse)),
    "cause is a text": _with(__cause__="a text"),
    "context raises": _with(__context__=property(_refuse)),
    "suppress_context raises": _with(__suppress_context__=property(_refuse)),
    "notes raise": _with(__notes__=property(_refuse)),
    "notes are a number": lambda: _noted(3),
    "notes are a text": lambda: _noted("abc"),
    "a property raises": _with(code=property(_refuse)),
    "eq raises": _with(__eq__=_refuse, __hash__=_refuse),
    "no hash": _with(__eq__=lambda self, other: True, __hash__=None),
    "bool and len raise": _with(__bool__=_refuse, __len__=_refuse, __iter__=_refuse),
    "odd class of a class": OddMeta,
    "group": lambda: ExceptionGroup("several", [ValueError(1), Frozen("bad")]),
    "group with another constructor": lambda: OddGroup(3),
    "required arguments": lambda: Required(3, "no"),
    "keyword arguments": lambda: KeywordOnly(code=3),
    "cannot be made again": lambda: MadeOnce("secret"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
    "import": lambda: OddImport("no"),
    "syntax": lambda: OddSyntax("no"),
    "os": lambda: FileNotFoundError(2, "No such file", "here"),
    "memory": MemoryError,
    "memory of a device": OutOfMemoryError,
    "its own cause": _caused_by_itself,
    "holds a lock": lambda: _holding(threading.Lock()),
    "holds a trap": lambda: _holding(_UNCOPIED()),
    "stop": lambda: StopIteration("end"),
    "async stop": lambda: StopAsyncIteration("end"),
    "timeout": TimeoutError,
    "worker died": lambda: OddDied("no"),
}
GRAVE: dict[str, Callable[[], BaseException]] = {
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "base": lambda: BaseException("odd"),
    "base that refuses": _with(BaseException, __str__=_exit, __setattr__=_refuse, __reduce_ex__=_exit),
    "base group": lambda: BaseExceptionGroup("several", [SystemExit(1), ValueError(2)]),
}
ALL = KINDS | GRAVE


class Model:
    """In a worker process: raises or returns the exception that an item names."""

    def __init__(self, device: str) -> None: ...

    def __call__(self, items: list[str], *, returned: bool = False) -> list[Any]:
        made = [ALL[item]() if item in ALL else item for item in items]
        bad = [each for each in made if issubclass(type(each), BaseException)]
        if bad and not returned:
            raise bad[0]
        return made


def odd_result(what: str) -> Any:
    """A result of which one special method raises, or is a property that does."""
    return type("Lazy", (), {what: property(_refuse) if what == "__class__" else _refuse})()


ODD_RESULTS = [
    "__class__", "__len__", "__getattr__", "__getattribute__", "__iter__", "__bool__", "__eq__", "__hash__", "__repr__",
    "__getitem__", "__setattr__", "__await__",
]  # fmt: skip
