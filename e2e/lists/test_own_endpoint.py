"""An endpoint of one's own, `{"texts": [...]}` to `{"vectors": [...]}`, by a rule of three lines."""

from __future__ import annotations

from e2e.lists import alike, answers, callers, conftest
from e2e.triton import servers

RULES = """
    own-embedder:
      path: "/embed"
      list: texts
      answers: vectors
    """
TEXTS = ["a cat", "two cats sat on a mat", "Schrödinger's 猫 \\u732b", "word " * 60, ""]

RIGHT = [
    *[callers.question("/embed", {"texts": [text]}) for text in TEXTS],
    callers.question("/embed", {"texts": TEXTS}),
    callers.question("/embed", {"texts": TEXTS[:2], "normalize": False}),
    callers.question("/embed", {"normalize": False, "texts": TEXTS[1:3]}),
    callers.Question("/embed", '{ "texts" :\n[ "猫" ,"b" ] }'.encode()),
    callers.question("/embed?trace=1", {"texts": TEXTS[:1]}),
]
# What the server refuses, and what is not batched: it says what it thinks of it.
WRONG = [
    callers.question("/embed", {"texts": []}),
    callers.question("/embed", {"texts": "a cat"}),
    callers.question("/embed", {"texts": None}),
    callers.question("/embed", {"texts": ["a cat", 5]}),
    callers.question("/embed", {"texts": [["a cat"]]}),
    callers.question("/embed", {"text": ["a cat"]}),
    callers.question("/embed", ["a cat"]),
    callers.Question("/embed", b'{"texts": ["a cat"}'),
    callers.Question("/embed", b'{"texts": ["a cat"]} {}'),
    callers.Question("/embed", b""),
    callers.question("/embed", {"texts": ["make the model fail"]}),
    callers.question("/nowhere", {"texts": ["a cat"]}),
]


async def test_each_of_many_gets_what_it_gets_alone(embedder: servers.Server, before: conftest.Starts) -> None:
    front = before(embedder, RULES)
    changes = await alike.in_batches(embedder, front, RIGHT, 6, more_than=5)
    assert changes.of("carpool_unbatched_total") == 0


async def test_right_and_wrong_requests_at_once_get_what_they_get_alone(
    embedder: servers.Server, before: conftest.Starts
) -> None:
    front = before(embedder, RULES)
    await alike.mixed(embedder, front, [*RIGHT, *WRONG], 3)


async def test_a_text_that_makes_the_model_fail_hurts_its_caller_only(
    embedder: servers.Server, before: conftest.Starts
) -> None:
    front = before(embedder, RULES, "--retry-statuses", "500")
    texts = [f"text {number}" for number in range(15)]
    asked = [callers.question("/embed", {"texts": [text]}) for text in [*texts[:7], "make the model fail", *texts[7:]]]
    alone = await callers.one_by_one(embedder.http, asked)
    for _ in range(3):
        found = await callers.at_once(front.http, asked)
        assert [answer.status for answer in found] == [200] * 7 + [500] + [200] * 8
        for question, one, other in zip(asked, found, alone, strict=True):
            answers.assert_same(one, other, question)
