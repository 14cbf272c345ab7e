"""KServe's Python server with an OpenAI embedding model behind `/openai/v1/embeddings`."""

from __future__ import annotations

from typing import Any

from e2e.lists import alike, answers, callers, conftest, peers
from e2e.triton import servers

RULES = "openai-embeddings"
TEXTS = ["a cat", "two cats sat on a mat", '猫 \n\t"quoted" \\', "word " * 60]
TALK = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]


def _asked(**body: Any) -> callers.Question:
    return callers.question("/openai/v1/embeddings", {"model": peers.MODEL, **body})


RIGHT = [
    *[_asked(input=text) for text in TEXTS],
    *[_asked(input=[text]) for text in TEXTS],
    _asked(input=TEXTS),
    _asked(input=TEXTS[0], encoding_format="base64"),
    _asked(input=TEXTS[1:], encoding_format="base64", user="me"),
]
WRONG = [
    _asked(input=[]),
    _asked(input=""),
    _asked(input=["fine", ""]),
    _asked(input=[1, 2, 3]),
    _asked(input=["make the model fail"]),
    _asked(input=TALK),
    _asked(input=[TALK]),
    _asked(messages=TALK),
    _asked(input=["fine"], encoding_format="nothing"),
    _asked(),
    callers.question("/openai/v1/embeddings", {"model": "nobody", "input": ["fine"]}),
    callers.Question("/openai/v1/embeddings", b'{"input": ['),
]


async def test_each_of_many_gets_what_it_gets_alone(kserve: servers.Server, before: conftest.Starts) -> None:
    front = before(kserve, RULES)
    changes = await alike.in_batches(kserve, front, RIGHT, 6, more_than=5)
    assert changes.of("carpool_unbatched_total") == 0


async def test_right_and_wrong_requests_at_once_get_what_they_get_alone(
    kserve: servers.Server, before: conftest.Starts
) -> None:
    front = before(kserve, RULES, "--retry-statuses", "400,422,500")
    await alike.mixed(kserve, front, [*RIGHT, *WRONG], 3)


async def test_openais_client_speaks_to_kserve(
    kserve: servers.Server, clients: peers.Environment, before: conftest.Starts
) -> None:
    front = before(kserve, RULES)
    calls: list[dict[str, Any]] = [
        {"client": "openai", "method": "create", "arguments": {"model": peers.MODEL, "input": given}}
        for given in [*TEXTS, TEXTS, TEXTS[:2], ""]
    ]

    base_urls = [f"http://{address}/openai/v1" for address in (kserve.http, front.http)]
    asked = {"base_urls": base_urls, "api_key": "none", "calls": calls}
    alone, found = await callers.run_program(clients, "openai_calls.py", asked, peers.openai_tokens())
    assert found[-1] == alone[-1]
    assert found[-1]["error"]["class"] == "openai.BadRequestError"
    for call, one, other in zip(calls[:-1], found, alone, strict=False):
        for row, expected in zip(one["value"]["data"], other["value"]["data"], strict=True):
            answers.assert_close(row["embedding"], expected["embedding"], call)
