"""OpenAI's embeddings before a home-made server on MiniLM: OpenAI's own client, LangChain, LlamaIndex, plain HTTP."""

from __future__ import annotations

import base64
import collections
import itertools
import json
import random
from collections.abc import Iterable
from typing import Any

from e2e.lists import answers, callers, conftest, peers
from e2e.triton import servers
from e2e.triton import sidecar as sidecar_

Target = servers.Server | sidecar_.Sidecar
RULES = "openai-embeddings"
TEXTS = ["a cat", "two cats sat on a mat", 'Schrödinger\'s 猫 \n\t"quoted" \\ \u2028', "word " * 60, "!"]
IDS = [[15339], [15339, 1917], [64, 8415, 11, 1403, 19987]]  # of cl100k_base
LONG = "word " * 300


def _inputs() -> list[Any]:
    """Every form of `input`, each from several callers."""
    return [*TEXTS, TEXTS[:2], TEXTS[1:], [TEXTS[2]], *IDS, IDS, IDS[:1], [IDS[2], IDS[0]]]


def _asked(value: Any, key: str = peers.KEY, **more: Any) -> callers.Question:
    body = {"input": value, "model": peers.MODEL, **more}
    return callers.question("/v1/embeddings", body, authorization=f"Bearer {key}")


def _all_kinds() -> list[callers.Question]:
    options: list[dict[str, Any]] = [
        {},
        {"encoding_format": "float"},
        {"encoding_format": "base64"},
        {"dimensions": 64},
    ]
    return [_asked(value, **each) for value in _inputs() for each in options]


# What the server refuses, and the class of OpenAI's client for it.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": LONG}, "openai.BadRequestError"),
    ({"input": ["fine", LONG]}, "openai.BadRequestError"),
    ({"input": ""}, "openai.BadRequestError"),
    ({"input": ["fine", ""]}, "openai.BadRequestError"),
    ({"input": []}, "openai.BadRequestError"),
    ({"input": [10**9]}, "openai.BadRequestError"),
    ({"input": [[15339], [10**9]]}, "openai.BadRequestError"),
    ({"input": ["fine", 5]}, "openai.BadRequestError"),
    ({"input": "fine", "dimensions": 1000}, "openai.BadRequestError"),
    ({"input": "fine", "model": "nobody"}, "openai.NotFoundError"),
    ({"input": "fine", "extra_headers": {"Authorization": "Bearer sk-wrong"}}, "openai.AuthenticationError"),
]


async def test_each_of_many_gets_what_it_gets_alone(embedder: servers.Server, before: conftest.Starts) -> None:
    front = before(embedder, RULES)
    asked = _all_kinds()
    alone = await callers.one_by_one(embedder.http, asked)
    assert {answer.status for answer in alone} == {200}
    changes = sidecar_.Changes(front)
    for round_ in range(3):
        order = random.Random(round_).sample(range(len(asked)), len(asked))
        found = await callers.at_once(front.http, [asked[number] for number in order])
        for number, answer in zip(order, found, strict=True):
            answers.assert_same(answer, alone[number], asked[number])
        assert max(callers.batches(found)) > 3
    assert changes.mean_batch > 3
    assert changes.of("carpool_unbatched_total") == 0


async def test_shares_of_the_counted_tokens_add_up_and_say_that_they_are_shares(
    embedder: servers.Server, before: conftest.Starts
) -> None:
    front = before(embedder, RULES)
    asked = [_asked(each) for each in [*TEXTS, TEXTS[:2]]]
    alone = await callers.one_by_one(embedder.http, asked)
    found = await callers.at_once(front.http, asked)
    assert callers.batches(found) == [len(asked)]
    assert all(answer.is_prorated for answer in found)
    assert sum(answer.tokens for answer in found) == sum(answer.tokens for answer in alone)
    for answer in found:
        usage = json.loads(answer.body)["usage"]
        assert usage["prompt_tokens"] == usage["total_tokens"]


async def test_a_request_alone_in_its_batch_gets_the_servers_own_count(
    embedder: servers.Server, before: conftest.Starts
) -> None:
    front = before(embedder, RULES)
    for each in (TEXTS, TEXTS[0], IDS):
        (alone,) = await callers.one_by_one(embedder.http, [_asked(each)])
        (found,) = await callers.one_by_one(front.http, [_asked(each)])
        assert not found.is_prorated
        assert found.tokens == alone.tokens


class TestClients:
    """`direct` shows that a test is right; through the sidecar its outcome must be the same."""

    async def test_openais_client_reads_every_form(
        self, clients: peers.Environment, embedder: servers.Server, before: conftest.Starts
    ) -> None:
        calls = [
            {"client": client, "method": "create", "arguments": {"input": value, "model": peers.MODEL, **more}}
            for value in _inputs()
            for client, more in [
                ("openai", {}),  # which asks for base64 and decodes it
                ("openai", {"encoding_format": "float"}),
                ("openai", {"encoding_format": "base64", "user": "me"}),
                ("openai_blocking", {"dimensions": 16}),
            ]
        ]
        front = before(embedder, RULES)
        changes = sidecar_.Changes(front)
        alone, found = await _run(clients, (embedder, front), calls)
        for call, one, other in zip(calls, found, alone, strict=True):
            assert "error" not in other, (call, other)
            answers.assert_same(_answer(one), _answer(other), call)
            _assert_alike(one["value"], other["value"], call)
        assert changes.mean_batch > 2
        assert max(callers.batches(map(_answer, found))) > 2

    async def test_what_the_server_refuses_is_the_clients_own_exception_and_hurts_nobody_else(
        self, clients: peers.Environment, embedder: servers.Server, before: conftest.Starts
    ) -> None:
        wrong = [
            {"client": "openai", "method": "create", "arguments": {"model": peers.MODEL, **arguments}}
            for arguments, _ in REFUSED
        ]
        right = [
            {"client": "openai", "method": "create", "arguments": {"input": value, "model": peers.MODEL}}
            for value in _inputs()
        ]
        calls = list(itertools.chain.from_iterable(itertools.zip_longest(right, wrong)))
        calls = [call for call in calls if call is not None]
        alone, found = await _run(clients, (embedder, before(embedder, RULES)), calls)
        for call, one, other in zip(calls, found, alone, strict=True):
            if call in right:
                answers.assert_same(_answer(one), _answer(other), call)
            else:
                assert one["error"] == other["error"], call
        raised = [result["error"]["class"] for call, result in zip(calls, found, strict=True) if call not in right]
        assert raised == [kind for _, kind in REFUSED]

    async def test_langchain_embeds_documents_and_queries_as_tokens_and_as_texts(
        self, clients: peers.Environment, embedder: servers.Server, before: conftest.Starts
    ) -> None:
        as_tokens = {"model": peers.MODEL}
        as_texts = {"model": peers.MODEL, "check_embedding_ctx_length": False}
        calls = [
            {"client": "langchain", "method": method, "arguments": arguments, "options": options}
            for options in (as_tokens, as_texts, {**as_texts, "dimensions": 32}, {**as_tokens, "chunk_size": 2})
            for method, arguments in [
                ("aembed_documents", {"texts": TEXTS}),
                ("aembed_documents", {"texts": TEXTS[:1]}),
                ("aembed_query", {"text": TEXTS[1]}),
                ("aembed_query", {"text": TEXTS[3]}),
            ]
        ]
        await _assert_same_vectors(clients, embedder, before(embedder, RULES), calls)

    async def test_llama_index_embeds_texts_and_queries(
        self, clients: peers.Environment, embedder: servers.Server, before: conftest.Starts
    ) -> None:
        calls = [
            {"client": "llama_index", "method": method, "arguments": arguments, "options": {"model_name": peers.MODEL}}
            for method, arguments in [
                ("aget_text_embedding_batch", {"texts": TEXTS}),
                ("aget_text_embedding_batch", {"texts": TEXTS[2:]}),
                ("aget_text_embedding", {"text": TEXTS[0]}),
                ("aget_query_embedding", {"query": TEXTS[1]}),
                ("aget_query_embedding", {"query": TEXTS[2]}),
            ]
        ]
        await _assert_same_vectors(clients, embedder, before(embedder, RULES), calls)


async def test_bodies_of_both_encodings_are_never_in_one_batch(
    embedder: servers.Server, before: conftest.Starts
) -> None:
    front = before(embedder, RULES)
    forms = ["float", "base64"] * 8
    found = await callers.at_once(front.http, [_asked(TEXTS[0], encoding_format=form) for form in forms])
    by_batch = collections.defaultdict(set)
    for form, answer in zip(forms, found, strict=True):
        by_batch[answer.batch].add(form)
        embedding = json.loads(answer.body)["data"][0]["embedding"]
        assert isinstance(embedding, str) == (form == "base64")
    assert sorted(map(len, by_batch.values())) == [1, 1]


async def test_keys_of_callers_never_meet(embedder: servers.Server, before: conftest.Starts) -> None:
    """One key is wrong: its callers are refused, and nobody else is."""
    front = before(embedder, RULES)
    keys = [peers.KEY, "sk-wrong"] * 8
    found = await callers.at_once(front.http, [_asked("a cat", key) for key in keys])
    assert [answer.status for answer in found] == [200, 401] * 8
    batches = {key: {answer.batch for answer, given in zip(found, keys, strict=True) if given == key} for key in keys}
    assert not batches[peers.KEY] & batches["sk-wrong"]


async def test_users_share_batches_where_the_owner_says_that_they_may(
    embedder: servers.Server, before: conftest.Starts
) -> None:
    asked = [_asked(f"text {number}", user=f"user-{number}") for number in range(12)]
    alone = await callers.one_by_one(embedder.http, asked)
    apart = await callers.at_once(before(embedder, RULES).http, asked)
    together = await callers.at_once(before(embedder, _USERS_TOGETHER).http, asked)
    assert set(callers.batches(apart)) <= {1}
    assert callers.batches(together) == [12]
    for question, one, other, third in zip(asked, alone, apart, together, strict=True):
        answers.assert_same(other, one, question)
        answers.assert_same(third, one, question)


_USERS_TOGETHER = """
    of-all-users:
      extends: openai-embeddings
      ignore: [user]
    """


async def test_base64_is_the_bytes_that_the_server_wrote(embedder: servers.Server, before: conftest.Starts) -> None:
    front = before(embedder, RULES)
    found = await callers.at_once(front.http, [_asked(text, encoding_format="base64") for text in TEXTS])
    assert callers.batches(found) == [len(TEXTS)]
    for answer in found:
        (row,) = json.loads(answer.body)["data"]
        assert row["index"] == 0
        assert len(base64.b64decode(row["embedding"], validate=True)) == 4 * 384


async def _run(
    environment: peers.Environment, targets: Iterable[Target], calls: list[dict[str, Any]]
) -> list[callers.Results]:
    base_urls = [f"http://{target.http}/v1" for target in targets]
    asked = {"base_urls": base_urls, "api_key": peers.KEY, "calls": calls}
    return await callers.run_program(environment, "openai_calls.py", asked, peers.openai_tokens())


async def _assert_same_vectors(
    clients: peers.Environment, server: servers.Server, front: sidecar_.Sidecar, calls: list[dict[str, Any]]
) -> None:
    changes = sidecar_.Changes(front)
    alone, found = await _run(clients, (server, front), calls)
    for call, one, other in zip(calls, found, alone, strict=True):
        assert "error" not in other, (call, other)
        assert "error" not in one, (call, one)
        answers.assert_close(one["value"], other["value"], call)
    assert changes.mean_batch > 2
    assert changes.of("carpool_unbatched_total") == 0


def _answer(result: dict[str, Any]) -> answers.Answer:
    assert "error" not in result, result
    return answers.Answer(200, result["headers"], base64.b64decode(result["body"]))


def _assert_alike(found: dict[str, Any], alone: dict[str, Any], what: object) -> None:
    """What the client made of an answer, less what is new in each and less the shares."""
    for one, other in zip(found["data"], alone["data"], strict=True):
        assert one.keys() == other.keys(), what
        assert (one["index"], one["object"]) == (other["index"], other["object"]), what
        if isinstance(other["embedding"], list):
            answers.assert_close(one["embedding"], other["embedding"], what)
        else:
            assert len(one["embedding"]) == len(other["embedding"]), what
    assert found.keys() == alone.keys(), what
    assert (found["model"], found["object"]) == (alone["model"], alone["object"]), what


async def test_a_list_that_is_too_long_for_the_server_is_split_and_joined(
    embedder: servers.Server, before: conftest.Starts
) -> None:
    front = before(embedder, RULES)
    asked = [_asked(["a"] * count, encoding_format="base64") for count in (256, 257)]
    alone = await callers.one_by_one(embedder.http, asked)
    assert [answer.status for answer in alone] == [200, 400]
    found = await callers.one_by_one(front.http, asked)
    answers.assert_same(found[0], alone[0], "256 entries")
    read = json.loads(found[1].body)
    assert [row["index"] for row in read["data"]] == [*range(257)]
    assert read["usage"] == {"prompt_tokens": 3 * 257, "total_tokens": 3 * 257}
    assert not found[1].is_prorated
