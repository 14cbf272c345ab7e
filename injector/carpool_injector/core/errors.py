"""All errors of the injector's pure part, each one a decision somebody makes about it."""

from __future__ import annotations

from collections.abc import Sequence


class Refusal(Exception):
    """This pod cannot get the sidecar. `code` is a slug for metrics, `fix` the next step for the pod's owner."""

    def __init__(self, code: str, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message


class BadSettings(Refusal):
    """Annotations that cannot be used. Each problem names key, value and what is allowed."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("bad-annotation", "; ".join(problems))
        self.problems = tuple(problems)


class Malformed(ValueError):
    """What should be a Kubernetes object is none. The text says where and what is expected there."""


class BadConfig(ValueError):
    """The admin's configuration cannot be used. The text names each field, its value and what is allowed."""
