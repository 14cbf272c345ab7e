"""What clients of each dialect send, the call that becomes of it, what the predictor answers, and what they read."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from carpool.scheduling import messages
from carpool_sidecar.protocols import interface
from carpool_sidecar.protocols.lists import rules
from carpool_sidecar.protocols.pairs import codec, destinations
from tests.protocols.lists import rankers
from tests.protocols.pairs import stand_ins

INFINITY = "{infinity: {extends: rerank, return_as: document}}"
VOYAGE = "{voyage: {extends: rerank, answers: data, return_as: document, error: {detail: $message}}}"
JINA = "https://api.jina.ai/docs#/Search%20Foundation%20Models/rerank_v1_rerank_post"
COHERE_V1 = rankers.COHERE.replace("types/api_meta.py", "base_client.py")
COHERE_V2 = rankers.COHERE.replace("types/api_meta.py", "v2/client.py")


class Exchange(NamedTuple):
    """`answer` is the predictor's, to `call` at `target`; `expected` is what the caller gets. `sources` say so."""

    name: str
    rule: str
    to: str
    sources: tuple[str, ...]
    request: bytes
    target: str
    call: bytes
    answer: bytes
    expected: bytes


EXCHANGES = (
    Exchange(
        "Cohere v1, with objects", "rerank", "tei-predict", (COHERE_V1, stand_ins.TEI),
        b'{"model":"m","query":"q","documents":[{"text":"a","title":"x"},{"text":"b"}],"top_n":1,"return_documents":true}',
        "/predict", b'{"inputs":[["q","a"],["q","b"]]}',
        b'[[{"score":0.25,"label":"LABEL_0"}],[{"score":0.99887,"label":"LABEL_0"}]]',
        b'{"id":"b","model":"m","results":[{"index":1,"relevance_score":0.99887,"document":{"text":"b"}}],'
        b'"usage":{"prompt_tokens":0,"total_tokens":0}}',
    ),
    Exchange(
        "Cohere v2", "rerank", "vllm-score", (COHERE_V2, stand_ins.VLLM),
        b'{"model":"m","query":"q","documents":["a","b"],"top_n":2,"priority":1}',
        "/score", b'{"text_1":["q","q"],"text_2":["a","b"],"priority":1,"model":"m"}',
        b'{"id":"score-1","object":"list","created":1,"model":"m","data":[{"index":0,"object":"score","score":0.25},'
        b'{"index":1,"object":"score","score":0.75}],"usage":{"prompt_tokens":8,"total_tokens":8}}',
        b'{"id":"b","model":"m","results":[{"index":1,"relevance_score":0.75},{"index":0,"relevance_score":0.25}],'
        b'"usage":{"prompt_tokens":8,"total_tokens":8}}',
    ),
    Exchange(
        "Jina", "rerank", "v1", (JINA,),
        b'{"model":"jina-reranker-v2","query":"q","documents":["a","b"],"top_n":3,"return_documents":true}',
        "/v1/models/jina-reranker-v2:predict", b'{"instances":[["q","a"],["q","b"]]}',
        b'{"predictions":[[0.25],[0.5]]}',
        b'{"id":"b","model":"jina-reranker-v2","results":[{"index":1,"relevance_score":0.5,"document":{"text":"b"}},'
        b'{"index":0,"relevance_score":0.25,"document":{"text":"a"}}],"usage":{"prompt_tokens":0,"total_tokens":0}}',
    ),
    Exchange(
        "vLLM", "rerank", "vllm-score", (stand_ins.VLLM,),
        b'{"query":"q","documents":["a"],"truncate_prompt_tokens":-1,"return_documents":true}',
        "/score", b'{"text_1":["q"],"text_2":["a"],"truncate_prompt_tokens":-1}',
        b'{"id":"score-1","object":"list","created":1,"model":"m","data":[{"index":0,"object":"score","score":1e-05}],'
        b'"usage":{"prompt_tokens":4,"total_tokens":4,"completion_tokens":0,"prompt_tokens_details":null}}',
        b'{"id":"b","results":[{"index":0,"relevance_score":1e-05,"document":{"text":"a"}}],'
        b'"usage":{"prompt_tokens":4,"total_tokens":4,"completion_tokens":0}}',
    ),
    Exchange(
        "Infinity, whose documents are texts", INFINITY, "v1:ranker", (rankers.INFINITY,),
        b'{"model":"m","query":"q","documents":["a"],"return_documents":true,"raw_scores":false}',
        "/v1/models/ranker:predict", b'{"instances":[["q","a"]],"raw_scores":false}',
        b'{"predictions":[0.5]}',
        b'{"id":"b","model":"m","results":[{"index":0,"relevance_score":0.5,"document":"a"}],'
        b'"usage":{"prompt_tokens":0,"total_tokens":0}}',
    ),
    Exchange(
        "Voyage", VOYAGE, "tei-predict", (rankers.VOYAGE,),
        b'{"query":"q","documents":["a","b"],"model":"rerank-2","top_k":1,"return_documents":true}',
        "/predict", b'{"inputs":[["q","a"],["q","b"]]}',
        b'[[{"score":0.5,"label":"LABEL_0"}],[{"score":0.5,"label":"LABEL_0"}]]',
        b'{"id":"b","model":"rerank-2","data":[{"index":0,"relevance_score":0.5,"document":"a"}],'
        b'"usage":{"prompt_tokens":0,"total_tokens":0}}',
    ),
    Exchange(
        "text-embeddings-inference", "tei-rerank", "tei-predict", (stand_ins.TEI,),
        b'{"query":"q","texts":["a","b"],"raw_scores":true,"return_text":true,"truncate":false}',
        "/predict", b'{"inputs":[["q","a"],["q","b"]],"raw_scores":true,"truncate":false}',
        b'[[{"score":-7.5,"label":"LABEL_0"}],[{"score":2.25,"label":"LABEL_0"}]]',
        b'[{"index":1,"score":2.25,"text":"b"},{"index":0,"score":-7.5,"text":"a"}]',
    ),
    Exchange(
        "NIM", "nim-ranking", "vllm-score", (rankers.NIM,),
        b'{"model":"m","query":{"text":"q"},"passages":[{"text":"a"},{"text":"b"}]}',
        "/score", b'{"text_1":["q","q"],"text_2":["a","b"],"model":"m"}',
        b'{"data":[{"index":0,"score":-1.5},{"index":1,"score":-0.5}],"usage":{"prompt_tokens":8,"total_tokens":8}}',
        b'{"id":"b","model":"m","rankings":[{"index":1,"logit":-0.5},{"index":0,"logit":-1.5}],'
        b'"usage":{"prompt_tokens":8,"total_tokens":8}}',
    ),
)  # fmt: skip


@pytest.mark.parametrize("exchange", EXCHANGES, ids=[each.name for each in EXCHANGES])
def test_a_caller_alone_is_translated_and_answered_in_its_own_words(exchange: Exchange) -> None:
    by = codec.Codec(rules.load([exchange.rule]), destinations.Destination.parse(exchange.to))
    payload = by.parse(exchange.request, 10)
    request = messages.Request(payload.key, payload.row_count, payload=payload)
    call = by.merge("b", "/rerank", [messages.Part(request, 0, payload.row_count)])
    assert (call.target, b"".join(call.body)) == (exchange.target, exchange.call)
    kind = {b"content-type": b"application/json"}
    rows: Any = call.read(interface.UpstreamResponse(exchange.answer, kind)).rows
    assert payload.response_format is not None
    answer = payload.response_format.render([messages.Piece(0, "b", rows[0 : payload.row_count])])
    assert b"".join(answer.body) == exchange.expected
    assert answer.headers == (("Content-Type", "application/json"),)
