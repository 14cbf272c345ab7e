"""Calls of OpenAI's own Python client, and of LangChain and LlamaIndex, which use it; all at the same time.

Standard input is a JSON object: `base_urls`, which are called one after another, `api_key`, and `calls`, a list of
objects with `client` (a method of Calls), `method`, `arguments` and, for those that are made with some, `options`.
Standard output has for each address a list with one object for each call, in their order: `value` and for OpenAI's own
also `body` and `headers`, or `error` with what the client raised.

It runs in the environment `clients`; the tests read its output (`e2e/lists/callers.py`). LangChain and LlamaIndex take
seconds to import, so they are imported where they are called.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import warnings
from typing import Any

import openai

# A retry would hide what the first answer was.
_RETRIES = {"max_retries": 0}


class Calls:
    """The clients of one address; `shared` is for all calls of the asynchronous one."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self._where = {"base_url": base_url, "api_key": api_key}
        self.shared = openai.AsyncOpenAI(**self._where, **_RETRIES)  # type: ignore[arg-type]

    async def openai(self, method: str, arguments: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """The asynchronous client; one for all, unless it has options."""
        client = self.shared.with_options(**options) if options else self.shared
        raw = await getattr(client.embeddings.with_raw_response, method)(**arguments)
        return _exchange(raw)

    async def openai_blocking(self, method: str, arguments: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """The other client, in a thread of its own."""
        client = openai.OpenAI(**self._where, **_RETRIES, **options)  # type: ignore[arg-type]
        create = getattr(client.embeddings.with_raw_response, method)
        return _exchange(await asyncio.to_thread(create, **arguments))

    async def langchain(self, method: str, arguments: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """LangChain's embedder: `aembed_documents`, `aembed_query`."""
        import langchain_openai

        client = langchain_openai.OpenAIEmbeddings(**self._where, **_RETRIES, **options)  # type: ignore[arg-type]
        return {"value": await getattr(client, method)(**arguments)}

    async def llama_index(self, method: str, arguments: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """LlamaIndex's embedder: `aget_text_embedding_batch`, `aget_query_embedding`."""
        from llama_index.embeddings import openai as llama_index_openai

        where = {"api_base": self._where["base_url"], "api_key": self._where["api_key"]}
        client = llama_index_openai.OpenAIEmbedding(**where, **_RETRIES, **options)  # type: ignore[arg-type]
        return {"value": await getattr(client, method)(**arguments)}


def _exchange(raw: Any) -> dict[str, Any]:
    parsed = raw.parse()
    return {
        "value": parsed.model_dump(),
        "body": base64.b64encode(raw.http_response.content).decode(),
        "headers": dict(raw.headers),
    }


def _error(error: Exception) -> dict[str, Any]:
    told = {name: getattr(error, name, None) for name in ("status_code", "code", "param", "type", "body")}
    return {"class": f"{type(error).__module__}.{type(error).__qualname__}", "message": str(error), **told}


async def _call_all(base_url: str, api_key: str, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls = Calls(base_url, api_key)

    async def one(call: dict[str, Any]) -> dict[str, Any]:
        try:
            client = getattr(calls, call["client"])
            result: dict[str, Any] = await client(call["method"], call["arguments"], call.get("options", {}))
        except Exception as error:  # whatever a client raises is the result
            return {"error": _error(error)}
        return result

    async with calls.shared:
        return await asyncio.gather(*map(one, asked))


def _run(asked: dict[str, Any]) -> list[list[dict[str, Any]]]:
    # A loop for each address: connections that a client left behind in one cannot take the other's events.
    return [asyncio.run(_call_all(base_url, asked["api_key"], asked["calls"])) for base_url in asked["base_urls"]]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    json.dump(_run(json.load(sys.stdin)), sys.stdout)
