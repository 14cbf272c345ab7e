"""What servers take and answer for a list, for each built-in rule: data, for any test that needs such an exchange.

Each is three requests of one key, the call they make together, the server's answer to that call, and what each caller
gets of it. Vectors have two numbers; everything else is as the server writes it, white space included.
"""

from __future__ import annotations

from tests.protocols.lists import embedders, model_servers, rankers
from tests.protocols.lists.servers import (
    MLFLOW,
    OLLAMA,
    OPENAI,
    PIPELINES,
    TEI,
    TFSERVING,
    TOOLKIT,
    VLLM,
    Alone,
    Apart,
    Exchange,
)

__all__ = ["ALONE", "APART", "ERRORS", "EXCHANGES", "NOT_THEIRS", "ONE_QUERY", "Alone", "Apart", "Exchange"]

EXCHANGES = (*embedders.EXCHANGES, *model_servers.EXCHANGES, *rankers.EXCHANGES)

ALONE = (
    *rankers.ALONE,
    Alone("openai-embeddings", "no text", "/v1/embeddings", OPENAI, b'{"input":"","model":"m"}', "no_rows"),
    Alone("openai-embeddings", "an empty list", "/v1/embeddings", OPENAI, b'{"input":[],"model":"m"}', "no_rows"),
    Alone("openai-embeddings", "nothing", "/v1/embeddings", OPENAI, b'{"input":null,"model":"m"}', "no_rows"),
    Alone(
        "openai-embeddings",
        "a conversation",
        "/v1/embeddings",
        VLLM,
        b'{"messages":[{"role":"user","content":"a"}],"model":"m"}',
        "no_rows",
    ),
    Alone(
        "openai-embeddings",
        "a conversation as input, which is one row though it is a list",
        "/v1/embeddings",
        VLLM,
        b'{"input":[{"role":"user","content":"a"},{"role":"user","content":"b"}],"model":"m"}',
        "no_rows",
    ),
    Alone("openai-embeddings", "Ollama's older API", "/api/embeddings", OLLAMA, b'{"prompt":"a"}', "no_rows"),
    Alone("openai-embeddings", "no JSON", "/v1/embeddings", OPENAI, b'{"input":["a"', "no_rows"),
    Alone("openai-embeddings", "a stream", "/v1/embeddings", OPENAI, b'{"input":["a"],"stream":true}', "streaming"),
    Alone("tei-embed", "an empty list", "/embed", TEI, b'{"inputs":[]}', "no_rows"),
    Alone(
        "hf-toolkit",
        "a question: lists of them are refused",
        "/",
        TOOLKIT,
        b'{"inputs":{"question":"who?","context":"anna lives in paris"}}',
        "no_rows",
    ),
    Alone(
        "hf-toolkit",
        "one text and labels: answered with the bare object",
        "/",
        PIPELINES,
        b'{"inputs":"anna lives in paris","parameters":{"candidate_labels":["sport","politics"]}}',
        "no_rows",
    ),
    Alone(
        "hf-toolkit",
        "one text and all scores: answered with a list of lists",
        "/",
        PIPELINES,
        b'{"inputs":"anna lives in paris","parameters":{"return_all_scores":true}}',
        "no_rows",
    ),
    Alone(
        "hf-toolkit",
        "a conversation, which is one row though it is a list",
        "/",
        TOOLKIT,
        b'{"inputs":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}',
        "no_rows",
    ),
    Alone(
        "mlflow",
        "inputs by column: they may be a conversation",
        "/invocations",
        MLFLOW,
        b'{"inputs":{"messages":[{"role":"user","content":"a"}]}}',
        "no_rows",
    ),
    Alone("mlflow", "one value for each column", "/invocations", MLFLOW, b'{"inputs":{"a":1.0,"b":2.0}}', "no_rows"),
    Alone("mlflow", "a chat model", "/invocations", MLFLOW, b'{"messages":[{"role":"user","content":"a"}]}', "no_rows"),
    Alone("mlflow", "a model of embeddings", "/invocations", MLFLOW, b'{"input":["a"]}', "no_rows"),
    Alone(
        "tfserving-columns", "no batch dimension", "/v1/models/m:predict", TFSERVING, b'{"inputs":{"x":1}}', "no_rows"
    ),
    Alone(
        "tfserving-columns",
        "columns of different lengths",
        "/v1/models/m:predict",
        TFSERVING,
        b'{"inputs":{"x":[1,2],"y":[1]}}',
        "shape",
    ),
    Alone("tfserving-classify", "no examples", "/v1/models/m:classify", TFSERVING, b'{"examples":[]}', "no_rows"),
    Alone("ollama-embed", "no text: no vector", "/api/embed", OLLAMA, b'{"model":"m","input":""}', "no_rows"),
)

APART = (
    Apart("openai-embeddings", "models", b'{"input":"a","model":"m"}', b'{"input":"a","model":"n"}'),
    Apart("openai-embeddings", "users", b'{"input":"a","user":"1"}', b'{"input":"a","user":"2"}'),
    Apart("openai-embeddings", "texts and tokens", b'{"input":"a"}', b'{"input":[1]}'),
    Apart("tei-embed", "truncation", b'{"inputs":"a"}', b'{"inputs":"a","truncate":true}'),
    Apart("hf-toolkit", "parameters", b'{"inputs":"a"}', b'{"inputs":"a","parameters":{"top_k":2}}'),
    # Of records that differ pandas makes one table with the members of all, and fills the gaps.
    Apart("mlflow", "records", b'{"dataframe_records":[{"a":1}]}', b'{"dataframe_records":[{"a":1,"b":2}]}'),
    Apart("mlflow", "the members' order", b'{"instances":[{"a":1,"b":2}]}', b'{"instances":[{"b":1,"a":2}]}'),
    Apart(
        "mlflow",
        "columns",
        b'{"dataframe_split":{"columns":["a","b"],"data":[[1,2]]}}',
        b'{"dataframe_split":{"columns":["b","a"],"data":[[1,2]]}}',
    ),
    Apart("mlflow", "parameters", b'{"inputs":[[1]],"params":{"x":1}}', b'{"inputs":[[1]],"params":{"x":2}}'),
    Apart(
        "mlflow",
        "an index and none",
        b'{"dataframe_split":{"index":[0],"data":[[1]]}}',
        b'{"dataframe_split":{"data":[[1]]}}',
    ),
    Apart("tfserving-columns", "columns", b'{"inputs":{"x":[1]}}', b'{"inputs":{"y":[1]}}'),
    Apart(
        "tfserving-columns", "one value for all rows", b'{"inputs":{"x":[1],"p":0.5}}', b'{"inputs":{"x":[1],"p":1}}'
    ),
    Apart(
        "tfserving-classify",
        "contexts",
        b'{"context":{"lang":"en"},"examples":[{"x":1}]}',
        b'{"context":{"lang":"de"},"examples":[{"x":1}]}',
    ),
    Apart("ollama-embed", "options", b'{"input":"a","options":{}}', b'{"input":"a","options":{"num_ctx":512}}'),
)

ERRORS = (
    ("openai-embeddings", OPENAI, b'{"error":{"message":"m","type":"t","param":null,"code":null}}'),
    ("tei-embed", TEI, b'{"error":"Model is overloaded","error_type":"overloaded"}'),
    ("hf-toolkit", TOOLKIT.replace("handler.py", "webservice_starlette.py"), b'{"error":"m"}'),
    ("mlflow", MLFLOW, b'{"error_code":"BAD_REQUEST","message":"m"}'),
    ("tfserving-columns", TFSERVING, b'{"error":"m"}'),
    ("tfserving-classify", TFSERVING, b'{"error":"m"}'),
    ("ollama-embed", OLLAMA, b'{"error":"m"}'),
    *rankers.ERRORS,
)
"""Errors as these servers write them, by rule and source."""

ONE_QUERY = (
    ("openai-embeddings", "/v1/rerank"),
    ("openai-embeddings", "/openai/v1/rerank"),
    ("openai-embeddings", "/score"),
    ("tei-embed", "/rerank"),
    ("tei-embed", "/similarity"),
)
"""Paths at which one query goes with many texts, by rule."""

NOT_THEIRS = (
    ("tei-embed", "/predict"),  # a list of two texts is one pair there
    ("rerank", "/v1/ranking"),
    ("vllm-pooling", "/v1/embeddings"),
    ("ollama-embed", "/api/embeddings"),  # one text, and no list
    ("openai-embeddings", "/v1/embeddings/"),
    ("tfserving-classify", "/v1/models/m:predict"),
    ("tfserving-columns", "/v1/models/m/metadata"),
)
"""Paths that a rule leaves alone."""
