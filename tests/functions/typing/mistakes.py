"""Mistakes that checkers find. A line that is marked and passes fails the test as one that is not marked and fails."""

from __future__ import annotations

from collections.abc import Iterator

import carpool


@carpool.batched
def embed(texts: list[str], *, normalize: bool = True) -> list[float]:
    return [0.0 for _ in texts]


@carpool.batched
async def embed_async(texts: list[str], language: str) -> list[float]:
    return [0.0 for _ in texts]


@carpool.batched
def words(prompts: list[str]) -> Iterator[list[str]]:
    yield prompts


class Model:
    @carpool.batched
    def double(self, numbers: list[int], *, times: int = 2) -> list[int]:
        return [times * number for number in numbers]


model = Model()

# Items of another type.
embed(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
embed(["a"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
embed.map([1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
embed.map(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
model.double("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

# Parameters that the function does not have, or not so.
embed("a", normalise=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
embed("a", normalize="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
embed("a", True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
embed.map(["a"], normalise=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
embed.using(timeout=1.0)("a", normalise=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
embed_async("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
embed()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
model.double(1, time=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
model.double.map([1], times="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

# Results taken for something else.
wrong: str = embed("a").result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
wrong_list: list[str] = embed.map(["a"]).result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
for word in words("a"):
    wrong_word: int = word  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
words("a") + 1  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue]

# Options that there are not, or not so.
carpool.batched(max_batch=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
carpool.batched(max_batch_size="3")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
embed.using(deadline=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
carpool.batched(max_batch_size=3)(name="b")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


# Functions that are none of a list.
@carpool.batched  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
def no_list(text: str) -> int:
    return len(text)
