"""text-embeddings-inference's shapes, by a stand-in for two of its generations; its numbers are exact."""

from __future__ import annotations

import json

from e2e.lists import alike, answers, callers, conftest
from e2e.triton import servers
from e2e.triton import sidecar as sidecar_

RULES = "tei-embed,openai-embeddings"
TEXTS = ["a cat", "two cats sat on a mat", '猫 \n\t"quoted" \\', "word " * 60]
TOO_LONG = "word " * 600

RIGHT = [
    *[callers.question("/embed", {"inputs": text}) for text in TEXTS],
    *[callers.question("/embed", {"inputs": [text]}) for text in TEXTS],
    callers.question("/embed", {"inputs": TEXTS}),
    callers.question("/embed", {"inputs": [1, 2, 3]}),
    callers.question("/embed", {"inputs": [[1, 2, 3], [4]]}),
    callers.question("/embed", {"inputs": TEXTS, "normalize": False}),
    callers.question("/embed", {"inputs": [TOO_LONG], "truncate": True}),
    callers.question("/embed", {"inputs": ["text"] * 32}),
    callers.question("/embed_all", {"inputs": TEXTS[0]}),
    callers.question("/embed_all", {"inputs": TEXTS[:2]}),
    callers.question("/embed_sparse", {"inputs": TEXTS[0]}),
    callers.question("/embed_sparse", {"inputs": TEXTS[1:3]}),
    callers.question("/v1/embeddings", {"input": TEXTS[0]}),
    callers.question("/v1/embeddings", {"input": TEXTS, "model": "any"}),
    callers.question("/v1/embeddings", {"input": TEXTS, "model": "any", "encoding_format": "base64"}),
    callers.question("/embeddings", {"input": TEXTS}),
]
WRONG = [
    callers.question("/embed", {"inputs": []}),
    callers.question("/embed", {"inputs": ""}),
    callers.question("/embed", {"inputs": ["fine", ""]}),
    callers.question("/embed", {"inputs": [TOO_LONG], "truncate": False}),
    callers.question("/embed", {"inputs": ["fine"], "truncate": False}),
    callers.question("/embed", {"inputs": [[]]}),
    callers.question("/embed", {"inputs": [-1]}),
    callers.question("/embed", {"inputs": ["fine", 5]}),
    callers.question("/embed", {"inputs": {"a": "b"}}),
    callers.question("/embed", {"input": ["fine"]}),
    callers.question("/embed", {"inputs": ["make the backend fail"]}),
    callers.question("/v1/embeddings", {"input": ["make the backend fail"]}),
    callers.question("/v1/embeddings", {"input": ["fine", ""]}),
    callers.question("/v1/embeddings", {"input": []}),
    callers.Question("/embed", b'{"inputs": ["fine"'),
    callers.Question("/embed", b'{"inputs": ["fine"]}', {"content-type": "text/plain"}),
    callers.question("/rerank", {"query": "what", "texts": TEXTS}),
]
# What the server refuses and the sidecar makes possible.
POSSIBLE = [
    callers.question("/embed", {"inputs": ["text"] * 33}),
    callers.question("/embed", {"inputs": [f"text {number}" for number in range(100)]}),
    callers.question("/v1/embeddings", {"input": ["text"] * 33}),
]


async def test_each_of_many_gets_what_it_gets_alone(tei: servers.Server, before: conftest.Starts) -> None:
    front = before(tei, RULES)
    changes = await alike.in_batches(tei, front, RIGHT, 6, more_than=5)
    assert changes.of("carpool_unbatched_total") == 0


async def test_right_and_wrong_requests_at_once_get_what_they_get_alone(
    tei: servers.Server, before: conftest.Starts
) -> None:
    front = before(tei, RULES, "--retry-statuses", "400,413,422,424")
    await alike.mixed(tei, front, [*RIGHT, *WRONG], 3)


async def test_the_same_holds_with_default_retry_statuses(tei: servers.Server, before: conftest.Starts) -> None:
    """Of wrong requests whose refusals are about their content: 400, 413 and 422, not a backend that fails."""
    front = before(tei, RULES)
    wrong = [question for question in WRONG if b"make the backend fail" not in question.body]
    asked = [*RIGHT, *wrong]
    alone = await callers.one_by_one(tei.http, asked)
    found = await callers.at_once(front.http, asked)
    for question, one, other in zip(asked, found, alone, strict=True):
        answers.assert_same(one, other, question)


async def test_no_call_has_more_rows_than_the_server_takes(tei: servers.Server, before: conftest.Starts) -> None:
    front = before(tei, RULES, "--max-batch-size", "64")
    asked = [callers.question("/embed", {"inputs": [f"text {number}"] * 7}) for number in range(40)]
    alone = await callers.one_by_one(tei.http, asked)
    found = await callers.at_once(front.http, asked)
    for question, one, other in zip(asked, found, alone, strict=True):
        answers.assert_same(one, other, question)


async def test_longer_lists_than_the_server_takes_are_answered(tei: servers.Server, before: conftest.Starts) -> None:
    front = before(tei, RULES)
    alone = await callers.one_by_one(tei.http, POSSIBLE)
    assert {answer.status for answer in alone} <= {413, 422}
    for question, answer in zip(POSSIBLE, await callers.at_once(front.http, POSSIBLE), strict=True):
        assert answer.status == 200, (question, answer)


async def test_one_query_for_many_texts_is_passed_on_and_counted(tei: servers.Server, before: conftest.Starts) -> None:
    front = before(tei, RULES)
    changes = sidecar_.Changes(front)
    asked = [callers.question("/rerank", {"query": f"what {number}", "texts": TEXTS}) for number in range(8)]
    alone = await callers.one_by_one(tei.http, asked)
    found = await callers.at_once(front.http, asked)
    for question, one, other in zip(asked, found, alone, strict=True):
        answers.assert_same(one, other, question)
        assert one.batch is None
    assert changes.of('carpool_unbatched_total{reason="one_query"}') == 8


async def test_longer_lists_to_rank_than_the_server_takes_get_what_all_their_parts_say(
    tei: servers.Server, before: conftest.Starts
) -> None:
    front = before(tei, f"{RULES},tei-rerank")
    texts = [f"text {number}" for number in range(100)]
    (refused,) = await callers.one_by_one(tei.http, [callers.question("/rerank", {"query": "what", "texts": texts})])
    assert refused.status in (413, 422)
    each = await callers.one_by_one(
        tei.http, [callers.question("/rerank", {"query": "what", "texts": [t]}) for t in texts]
    )
    scores = [json.loads(answer.body)[0]["score"] for answer in each]
    best = sorted(range(100), key=lambda place: -scores[place])
    (found,) = await callers.at_once(front.http, [callers.question("/rerank", {"query": "what", "texts": texts})])
    assert found.status == 200
    assert json.loads(found.body) == [{"index": place, "score": scores[place]} for place in best]
