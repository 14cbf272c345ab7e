"""What all servers of lists are held to: each of many callers gets what it gets alone, beside wrong ones, too."""

from __future__ import annotations

import random
from collections.abc import Sequence

from e2e.lists import answers, callers
from e2e.triton import servers
from e2e.triton import sidecar as sidecar_


async def in_batches(
    server: servers.Server, front: sidecar_.Sidecar, right: Sequence[callers.Question], each: int, *, more_than: int
) -> sidecar_.Changes:
    """Send each of the questions so many times at once, three times; they travel in batches of more than so many.

    Returns what changed in the sidecar's metrics.
    """
    alone = await callers.one_by_one(server.http, right)
    assert {answer.status for answer in alone} == {200}
    asked = [*range(len(right))] * each
    changes = sidecar_.Changes(front)
    for round_ in range(3):
        random.Random(round_).shuffle(asked)
        found = await callers.at_once(front.http, [right[number] for number in asked])
        for number, answer in zip(asked, found, strict=True):
            answers.assert_same(answer, alone[number], right[number])
        assert max(callers.batches(found)) > more_than
    assert changes.mean_batch > more_than
    return changes


async def mixed(
    server: servers.Server, front: sidecar_.Sidecar, asked: Sequence[callers.Question], rounds: int
) -> None:
    """Send questions, right ones and wrong ones, all at once in some other order each round."""
    alone = await callers.one_by_one(server.http, asked)
    for round_ in range(rounds):
        order = random.Random(round_).sample(range(len(asked)), len(asked))
        found = await callers.at_once(front.http, [asked[number] for number in order])
        for number, answer in zip(order, found, strict=True):
            answers.assert_same(answer, alone[number], asked[number])
