"""What the batcher asks of a `merge` of any type, and what a type of one's own may leave out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest

from carpool.functions import errors, merging
from carpool.functions.arrays import arrays


class Words:
    """Texts whose rows are words. It has no more than it must."""

    def rows(self, item: str) -> int:
        return len(item.split())

    def join(self, items: Sequence[str]) -> str:
        return " ".join(items)

    def split(self, output: str, counts: Sequence[int]) -> list[str]:
        words = iter(output.split())
        return [" ".join(next(words) for _ in range(count)) for count in counts]


class Lengths:
    """Texts whose function returns the number of letters, for all: as long as the texts say themselves."""

    def rows(self, item: str) -> int:
        return 1

    def key(self, item: str) -> Hashable:
        return item[:1]

    def keep(self, item: str) -> str:
        return item.upper()

    def join(self, items: Sequence[str]) -> list[str]:
        return list(items)

    def split(self, output: int, counts: Sequence[int]) -> list[int]:
        raise NotImplementedError

    def split_for(self, output: int, counts: Sequence[int], items: Sequence[str]) -> list[int]:
        return [len(item) for item in items]

    def rejoin(self, results: Sequence[int]) -> int:
        return sum(results)


class Gives(Words):
    """Gives what a test says, right or wrong."""

    def __init__(self, rows: Any = 1, key: Any = None, shares: Any = ()) -> None:
        self.given = rows, key, shares

    def rows(self, item: Any) -> Any:
        return self.given[0]

    def key(self, item: Any) -> Any:
        return self.given[1]

    def split(self, output: Any, counts: Sequence[int]) -> Any:
        return self.given[2]


def test_a_type_with_three_methods_is_enough() -> None:
    merge: merging.Merge[str, str, str, str] = Words()
    assert merging.taken(merge, "one two") == (2, None, "one two")
    assert merging.split(merge, "ONE TWO THREE", [2, 1], ["one two", "three"]) == ["ONE TWO", "THREE"]
    assert merging.rejoin(merge, ["ONE", "TWO"]) == "ONE TWO"


def test_what_a_type_offers_beyond_that_is_used() -> None:
    merge: merging.Merge[str, list[str], int, int] = Lengths()
    assert merging.taken(merge, "abc") == (1, "a", "ABC")
    assert merging.split(merge, 5, [1, 1], ["abc", "ad"]) == [3, 2]
    assert merging.rejoin(merge, [3, 2]) == 5


def test_arrays_are_merged_by_the_same_protocol() -> None:
    merge: merging.Merge[Any, Any, Any, Any] = arrays()
    assert merging.rows(merge, np.ones((2, 3))) == 2


@pytest.mark.parametrize(("rows", "error"), [("2", TypeError), (1.0, TypeError), (None, TypeError), (0, ValueError)])
def test_rows_that_are_no_number_from_1_are_refused(rows: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"rows|row"):
        merging.rows(Gives(rows), "item")


def test_a_key_without_a_hash_is_refused() -> None:
    with pytest.raises(TypeError, match=r"key of Gives must give something hashable, not \[1\]"):
        merging.taken(Gives(key=[1]), "item")


def test_a_split_into_too_few_shares_is_a_wrong_length() -> None:
    with pytest.raises(errors.WrongLength, match="Gives made 1 shares of an output for 2 items"):
        merging.split(Gives(shares=["one"]), "one two", [1, 1], ["a", "b"])
