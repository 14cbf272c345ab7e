"""Kubernetes resource quantities (`250m`, `1Gi`), read strictly: a crafted one must never reach a pod.

The grammar is that of k8s.io/apimachinery/pkg/api/resource/quantity.go, less its exponents (`1e3`), which nobody
writes and which would let a few characters stand for any number.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

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


def check(text: str) -> str:
    """The text, if it is a quantity above 0; else a ValueError that says what is allowed."""
    if amount(text) <= 0:
        raise ValueError("must be a quantity above 0")
    return text


Quantity = Annotated[str, pydantic.AfterValidator(check)]
"""A positive quantity, kept as it was written."""
