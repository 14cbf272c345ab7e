"""Predictors that take pairs, by functions: each answers a call as its kind does, by a score that anybody can check."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

TEI = "https://github.com/huggingface/text-embeddings-inference/blob/0d124dc9773b/router/src/http/server.rs"
VLLM = "https://github.com/vllm-project/vllm/blob/004706d84ceb/vllm/entrypoints/pooling/scoring/protocol.py"


def score(query: str, document: str) -> float:
    """A number that depends on both texts alone; few enough that some documents have the same."""
    return zlib.crc32(f"{query}|{document}".encode(errors="surrogatepass")) % 17 / 16


def tei(body: Mapping[str, Any]) -> Any:
    """text-embeddings-inference's /predict."""
    return [[{"score": score(*pair), "label": "LABEL_0"}] for pair in body["inputs"]]


def vllm(body: Mapping[str, Any]) -> Any:
    """vLLM's /score, whose rows say which they are."""
    pairs = list(zip(body["text_1"], body["text_2"], strict=True))
    rows = [{"index": place, "object": "score", "score": score(*pair)} for place, pair in enumerate(pairs)]
    usage = {"prompt_tokens": 3 * len(pairs), "total_tokens": 3 * len(pairs), "completion_tokens": 0}
    return {"id": "score-1", "object": "list", "created": 1, "model": body.get("model"), "data": rows, "usage": usage}


def v1(body: Mapping[str, Any]) -> Any:
    """A cross-encoder behind v1, which answers each pair with a list of one logit."""
    return {"predictions": [[score(*pair)] for pair in body["instances"]]}


KINDS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {"tei-predict": tei, "vllm-score": vllm, "v1:ranker": v1}
"""By what --rerank-to says."""

PATHS = {"/predict": tei, "/score": vllm, "/v1/models/ranker:predict": v1}


def ranked(query: str, documents: Sequence[str], top: int | None = None) -> list[tuple[int, float]]:
    """What a reranker of these scores answers: places and scores, the best first, of equal ones the earlier."""
    found = [(place, score(query, document)) for place, document in enumerate(documents)]
    return sorted(found, key=lambda each: -each[1])[:top]


def answer(kind: str, body: bytes) -> bytes:
    """The answer to a call, as JSON."""
    return json.dumps(KINDS[kind](json.loads(body))).encode()
