"""Types of annotation values: text in, a checked value out, with the allowed range in words.

Annotations are written by people and by attackers (istio#58889: a newline in a quantity became a container). So each
type is a full match of plain ASCII: nothing is trimmed, and digits are 0 to 9. Resource quantities (`250m`, `1Gi`)
follow k8s.io/apimachinery/pkg/api/resource/quantity.go without exponents (`1e3`), in which a few characters could stand
for any number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any

import pydantic

_SUFFIXES = {"n": "1e-9", "u": "1e-6", "m": "1e-3", "": "1", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12"}
_FACTORS = {suffix: Decimal(factor) for suffix, factor in _SUFFIXES.items()}
_FACTORS |= {"Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40)}
_FORM = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(n|u|m|k|M|G|T|Ki|Mi|Gi|Ti|)", re.ASCII)


def amount(text: str) -> Decimal:
    """The number a quantity stands for, in cores or bytes.

    Raises ValueError, its text saying what is allowed.
    """
    form = _FORM.fullmatch(text)
    if form is None:
        raise ValueError("must be a quantity such as 250m, 2, 128Mi or 1Gi")
    return Decimal(form[1]) * _FACTORS[form[2]]


def check_quantity(text: str) -> str:
    """The text, if it is a quantity above 0; else a ValueError that says what is allowed."""
    if amount(text) <= 0:
        raise ValueError("must be a quantity above 0")
    return text


NO_LIMIT = "none"
"""The word for a limit that is left out."""


def _or_word(check: Callable[[str], str], *words: str) -> Callable[[str], str]:
    """The same check, which lets some words through as well."""

    def read(text: str) -> str:
        if text in words:
            return text
        try:
            return check(text)
        except ValueError as error:
            raise ValueError(f"{error}, or {words[0]}") from None

    return read


check_quantity_or_none = _or_word(check_quantity, NO_LIMIT)

_LEAST_MEMORY = Decimal(2**20)


def check_memory(text: str) -> str:
    """The same for memory, of which less than 1Mi is a slip: `512` are bytes, and the m of `128m` is a thousandth."""
    if amount(text) < _LEAST_MEMORY:
        raise ValueError(f"must be 1Mi or more, such as 512Mi; this means {amount(text).normalize():f} bytes")
    return text


Memory = Annotated[str, pydantic.AfterValidator(check_memory)]
"""A quantity of memory, kept as it was written."""

Quantity = Annotated[str, pydantic.AfterValidator(check_quantity)]
"""A positive quantity, kept as it was written."""

_WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)
HEADER = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}"


def _matching(pattern: str) -> Any:
    """What a schema says of text before it is read: all of it matches."""
    return Annotated[str, pydantic.Field(pattern=f"^({pattern})$")]


def whole(low: int, high: int) -> pydantic.BeforeValidator:
    """A whole number from `low` to `high`."""

    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low:,} to {high:,}")
        return int(text)

    return pydantic.BeforeValidator(read, _matching(_WHOLE.pattern))


def number(low: float, high: float, unit: str, above: bool = False) -> pydantic.BeforeValidator:
    """A decimal number of `unit` from `low` to `high`; `above`: `low` itself is not allowed."""
    range_ = f"above {low:g} and up to {high:,.9g}" if above else f"from {low:g} to {high:,.9g}"

    def read(text: str) -> float:
        value = float(text) if _NUMBER.fullmatch(text) else -1.0
        if not low <= value <= high or (above and value == low):
            raise ValueError(f"must be a number of {unit} {range_}, without the unit")
        return value

    return pydantic.BeforeValidator(read, _matching(_NUMBER.pattern))


def choice(*words: str) -> pydantic.BeforeValidator:
    """One of some words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be {' or '.join(words)}")
        return text

    return pydantic.BeforeValidator(read, _matching("|".join(words)))


def switch() -> pydantic.BeforeValidator:
    """`true` or `false`."""

    def read(text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueError("must be true or false")
        return text == "true"

    return pydantic.BeforeValidator(read, _matching("true|false"))


def text(pattern: str, allowed: str) -> pydantic.BeforeValidator:
    """Text that matches all of `pattern`; `allowed` says what that means."""
    return pydantic.BeforeValidator(lambda value: full_match(pattern, value, allowed), _matching(pattern))


def full_match(pattern: str, value: str, allowed: str) -> str:
    """The value, if all of it matches the ASCII pattern; else a ValueError that says what is `allowed`."""
    if not re.fullmatch(pattern, value, re.ASCII):
        raise ValueError(f"must be {allowed}")
    return value


def port(value: str) -> str:
    """The number of a port, or a port's name (IANA_SVC_NAME in Kubernetes' API)."""
    is_name = re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", value, re.ASCII) and len(value) <= 15 and not value.isdecimal()
    if not is_name and not (_WHOLE.fullmatch(value) and 1 <= int(value) <= 65535):
        raise ValueError("must be a port from 1 to 65535 or a port's name")
    return value


OFF = ("off", "0")
"""Words for no port."""


port_or_off = _or_word(port, *OFF)


def checked(check: Callable[[str], str]) -> pydantic.BeforeValidator:
    """Text that `check` lets through or refuses with a ValueError."""
    return pydantic.BeforeValidator(check, str)


def quantity(check: Callable[[str], str] = check_quantity, *words: str) -> pydantic.BeforeValidator:
    """A quantity, or one of some words, that `check` lets through or refuses likewise."""
    return pydantic.BeforeValidator(check, _matching("|".join([_FORM.pattern, *words])))


HEADERS = rf"({HEADER}(,{HEADER}){{0,31}})?"
FORWARDED = rf"({HEADER}=(first|joined)(,{HEADER}=(first|joined)){{0,31}})?"
STATUSES = r"(([45]xx|[45][0-9]{2})(,([45]xx|[45][0-9]{2})){0,31})?"
SIZES = r"([0-9]{1,6}(,[0-9]{1,6}){0,63})?"
TENSOR = r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}"
PATH = r"/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]{0,255}"
DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_COMPONENT = "(predictor|transformer|explainer)"
COMPONENTS = rf"{_COMPONENT}(,{_COMPONENT}){{0,2}}"
