"""What servers take and answer for a list, for each built-in rule: data, for any test that needs such an exchange.

Each is three requests of one key, the call they make together, the server's answer to that call, and what each caller
gets of it. Vectors have two numbers; everything else is as the server writes it, white space included.
"""

from __future__ import annotations

from typing import NamedTuple


class Exchange(NamedTuple):
    """Requests that share a batch: `merged` is the call's body, `answer` the server's, `shares` the callers'.

    `source` says where the shapes are from. `is_prorated` says that callers are told of shared numbers.
    """

    rule: str
    name: str
    path: str
    source: str
    requests: tuple[bytes, ...]
    merged: bytes
    answer: bytes
    shares: tuple[bytes, ...]
    is_prorated: bool = False


class Alone(NamedTuple):
    """A request that no batch may have, and the reason by which it is counted."""

    rule: str
    name: str
    path: str
    source: str
    body: bytes
    reason: str


class Apart(NamedTuple):
    """Two requests to the same path that no batch may have together."""

    rule: str
    name: str
    one: bytes
    other: bytes


_OPENAI = "https://github.com/openai/openai-openapi/blob/f85dbe223d40/openapi.yaml"
_VLLM = "https://github.com/vllm-project/vllm/blob/055e47c28003/vllm/frontend/entrypoints/pooling/embed/protocol.py"
_KSERVE = (
    "https://github.com/kserve/kserve/blob/aaac4e294dae/python/huggingfaceserver/huggingfaceserver/encoder_model.py"
)
_OVMS = "https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/embeddings/embeddings_api.cpp"
_TEI = "https://github.com/huggingface/text-embeddings-inference/blob/0d124dc9773b/router/src/http/server.rs"
_TOOLKIT = (
    "https://github.com/huggingface/huggingface-inference-toolkit/blob/833b5a2efd70/"
    "src/huggingface_inference_toolkit/handler.py"
)
_SENTENCES = _TOOLKIT.replace("handler.py", "sentence_transformers_utils.py")
_PIPELINES = f"{_TOOLKIT}; recorded from pipelines of transformers 4.57.6 around models of random weights"
_MLFLOW = (
    "https://github.com/mlflow/mlflow/blob/master/mlflow/pyfunc/scoring_server/__init__.py; recorded from the scoring "
    "server of mlflow 3.17.2 with a model that adds its columns up"
)
_TFSERVING = "https://github.com/tensorflow/serving/blob/9d981c5c2708/tensorflow_serving/util/json_tensor.cc"
_OLLAMA = "https://github.com/ollama/ollama/blob/fb3076099687/server/routes.go"

EXCHANGES = (
    Exchange(
        "openai-embeddings",
        "a text, a list of one and a list of two",
        "/v1/embeddings",
        _OPENAI,
        (
            b'{"input": "The food was delicious", "model": "text-embedding-3-small", "encoding_format": "float"}',
            b'{"input": ["Where is it?"], "model": "text-embedding-3-small", "encoding_format": "float"}',
            b'{"input": ["Caf\\u00e9", "Bistro"], "model": "text-embedding-3-small", "encoding_format": "float"}',
        ),
        b'{"input": ["The food was delicious","Where is it?","Caf\\u00e9", "Bistro"], '
        b'"model": "text-embedding-3-small", "encoding_format": "float"}',
        b'{\n  "object": "list",\n  "data": [\n'
        b'    {\n      "object": "embedding",\n      "index": 0,\n      "embedding": [-0.1, 0.10]\n    },\n'
        b'    {\n      "object": "embedding",\n      "index": 1,\n      "embedding": [-0.2, 0.20]\n    },\n'
        b'    {\n      "object": "embedding",\n      "index": 2,\n      "embedding": [-0.3, 0.30]\n    },\n'
        b'    {\n      "object": "embedding",\n      "index": 3,\n      "embedding": [-4e-1, 0.4]\n    }\n'
        b'  ],\n  "model": "text-embedding-3-small",\n'
        b'  "usage": {\n    "prompt_tokens": 12,\n    "total_tokens": 12\n  }\n}\n',
        # The rows have 24, 14, and 11 + 8 bytes, so that 12 tokens are 5.05, 2.95 and 4.0 of them.
        (
            (
                b"{\n"
                b'  "object": "list",\n'
                b'  "data": [\n'
                b"    {\n"
                b'      "object": "embedding",\n'
                b'      "index": 0,\n'
                b'      "embedding": [-0.1, 0.10]\n'
                b"    }\n"
                b"  ],\n"
                b'  "model": "text-embedding-3-small",\n'
                b'  "usage": {\n'
                b'    "prompt_tokens": 5,\n'
                b'    "total_tokens": 5\n'
                b"  }\n"
                b"}\n"
            ),
            (
                b"{\n"
                b'  "object": "list",\n'
                b'  "data": [\n'
                b"    {\n"
                b'      "object": "embedding",\n'
                b'      "index": 0,\n'
                b'      "embedding": [-0.2, 0.20]\n'
                b"    }\n"
                b"  ],\n"
                b'  "model": "text-embedding-3-small",\n'
                b'  "usage": {\n'
                b'    "prompt_tokens": 3,\n'
                b'    "total_tokens": 3\n'
                b"  }\n"
                b"}\n"
            ),
            (
                b"{\n"
                b'  "object": "list",\n'
                b'  "data": [\n'
                b"    {\n"
                b'      "object": "embedding",\n'
                b'      "index": 0,\n'
                b'      "embedding": [-0.3, 0.30]\n'
                b"    },\n"
                b"    {\n"
                b'      "object": "embedding",\n'
                b'      "index": 1,\n'
                b'      "embedding": [-4e-1, 0.4]\n'
                b"    }\n"
                b"  ],\n"
                b'  "model": "text-embedding-3-small",\n'
                b'  "usage": {\n'
                b'    "prompt_tokens": 4,\n'
                b'    "total_tokens": 4\n'
                b"  }\n"
                b"}\n"
            ),
        ),
        is_prorated=True,
    ),
    Exchange(
        "openai-embeddings",
        "texts as tokens, so that usage is exact",
        "/v1/embeddings",
        _OPENAI,
        (
            b'{"input":[1212,318,257],"model":"m"}',
            b'{"input":[[1332]],"model":"m"}',
            b'{"input":[[13,1212],[318,257,1332]],"model":"m"}',
        ),
        b'{"input":[[1212,318,257],[1332],[13,1212],[318,257,1332]],"model":"m"}',
        b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,0.1]},'
        b'{"object":"embedding","index":1,"embedding":[0.2,0.2]},{"object":"embedding","index":2,"embedding":[0.3,0.3]},'
        b'{"object":"embedding","index":3,"embedding":[0.4,0.4]}],"model":"m",'
        b'"usage":{"prompt_tokens":9,"total_tokens":9}}',
        (
            b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,0.1]}],"model":"m",'
            b'"usage":{"prompt_tokens":3,"total_tokens":3}}',
            b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.2,0.2]}],"model":"m",'
            b'"usage":{"prompt_tokens":1,"total_tokens":1}}',
            b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.3,0.3]},'
            b'{"object":"embedding","index":1,"embedding":[0.4,0.4]}],"model":"m",'
            b'"usage":{"prompt_tokens":5,"total_tokens":5}}',
        ),
    ),
    Exchange(
        "openai-embeddings",
        "vLLM: base64, in another order",
        "/v1/embeddings",
        _VLLM,
        (
            b'{"model":"m","input":["a"],"encoding_format":"base64"}',
            b'{"model":"m","input":["b"],"encoding_format":"base64"}',
            b'{"model":"m","input":["c"],"encoding_format":"base64"}',
        ),
        b'{"model":"m","input":["a","b","c"],"encoding_format":"base64"}',
        b'{"id":"embd-8c1d","object":"list","created":1795390000,"model":"m",'
        b'"data":[{"index":2,"object":"embedding","embedding":"zczMPpqZmT4="},'
        b'{"index":0,"object":"embedding","embedding":"zczMPc3MzL0="},'
        b'{"index":1,"object":"embedding","embedding":"zcxMPs3MTL4="}],'
        b'"usage":{"prompt_tokens":9,"total_tokens":9,"completion_tokens":0,"prompt_tokens_details":null}}',
        (
            b'{"id":"embd-8c1d","object":"list","created":1795390000,"model":"m",'
            b'"data":[{"index":0,"object":"embedding","embedding":"zczMPc3MzL0="}],'
            b'"usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0,"prompt_tokens_details":null}}',
            b'{"id":"embd-8c1d","object":"list","created":1795390000,"model":"m",'
            b'"data":[{"index":0,"object":"embedding","embedding":"zcxMPs3MTL4="}],'
            b'"usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0,"prompt_tokens_details":null}}',
            b'{"id":"embd-8c1d","object":"list","created":1795390000,"model":"m",'
            b'"data":[{"index":0,"object":"embedding","embedding":"zczMPpqZmT4="}],'
            b'"usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0,"prompt_tokens_details":null}}',
        ),
        is_prorated=True,
    ),
    Exchange(
        "openai-embeddings",
        "KServe's Hugging Face server",
        "/openai/v1/embeddings",
        _KSERVE,
        (
            b'{"model":"bge","input":"a"}',
            b'{"model":"bge","input":"bb"}',
            b'{"model":"bge","input":"ccc"}',
        ),
        b'{"model":"bge","input":["a","bb","ccc"]}',
        b'{"id":"5f0a","object":"embedding","created":1795390000,"model":"bge",'
        b'"data":[{"index":0,"object":"embedding","embedding":[0.1,0.1]},'
        b'{"index":1,"object":"embedding","embedding":[0.2,0.2]},{"index":2,"object":"embedding","embedding":[0.3,0.3]}],'
        b'"usage":{"prompt_tokens":10,"total_tokens":10}}',
        # 3, 4 and 5 bytes with the quotes: 2.5, 3.33 and 4.17 tokens.
        (
            b'{"id":"5f0a","object":"embedding","created":1795390000,"model":"bge",'
            b'"data":[{"index":0,"object":"embedding","embedding":[0.1,0.1]}],'
            b'"usage":{"prompt_tokens":3,"total_tokens":3}}',
            b'{"id":"5f0a","object":"embedding","created":1795390000,"model":"bge",'
            b'"data":[{"index":0,"object":"embedding","embedding":[0.2,0.2]}],'
            b'"usage":{"prompt_tokens":3,"total_tokens":3}}',
            b'{"id":"5f0a","object":"embedding","created":1795390000,"model":"bge",'
            b'"data":[{"index":0,"object":"embedding","embedding":[0.3,0.3]}],'
            b'"usage":{"prompt_tokens":4,"total_tokens":4}}',
        ),
        is_prorated=True,
    ),
    Exchange(
        "openai-embeddings",
        "OpenVINO: the number is last",
        "/v3/embeddings",
        _OVMS,
        (
            b'{"model": "gte-large", "input": ["a"]}',
            b'{"model": "gte-large", "input": ["b", "c"]}',
            b'{"model": "gte-large", "input": "d"}',
        ),
        b'{"model": "gte-large", "input": ["a","b", "c","d"]}',
        b'{"object":"list","data":[{"object":"embedding","embedding":[0.1,-0.1],"index":0},'
        b'{"object":"embedding","embedding":[0.2,-0.2],"index":1},{"object":"embedding","embedding":[0.3,-0.3],"index":2},'
        b'{"object":"embedding","embedding":[0.4,-0.4],"index":3}],"usage":{"prompt_tokens":12,"total_tokens":12}}',
        (
            b'{"object":"list","data":[{"object":"embedding","embedding":[0.1,-0.1],"index":0}],'
            b'"usage":{"prompt_tokens":3,"total_tokens":3}}',
            b'{"object":"list","data":[{"object":"embedding","embedding":[0.2,-0.2],"index":0},'
            b'{"object":"embedding","embedding":[0.3,-0.3],"index":1}],"usage":{"prompt_tokens":6,"total_tokens":6}}',
            b'{"object":"list","data":[{"object":"embedding","embedding":[0.4,-0.4],"index":0}],'
            b'"usage":{"prompt_tokens":3,"total_tokens":3}}',
        ),
        is_prorated=True,
    ),
    Exchange(
        "tei-embed",
        "texts",
        "/embed",
        _TEI,
        (
            b'{"inputs":"What is Deep Learning?","normalize":false}',
            b'{"inputs":["What is Deep Learning?","Nothing."],"normalize":false}',
            b'{"inputs":["\xf0\x9f\xa6\x80"],"normalize":false}',
        ),
        b'{"inputs":["What is Deep Learning?","What is Deep Learning?","Nothing.",'
        b'"\xf0\x9f\xa6\x80"],"normalize":false}',
        b"[[0.1,0.25],[0.1,0.25],[-0.0,1e-7],[0.5,0.5]]",
        (b"[[0.1,0.25]]", b"[[0.1,0.25],[-0.0,1e-7]]", b"[[0.5,0.5]]"),
    ),
    Exchange(
        "tei-embed",
        "texts as tokens",
        "/embed",
        _TEI,
        (b'{"inputs":[101,102]}', b'{"inputs":[[101,7592,102],[101,102]]}', b'{"inputs":[[101]]}'),
        b'{"inputs":[[101,102],[101,7592,102],[101,102],[101]]}',
        b"[[0.1],[0.2],[0.1],[0.3]]",
        (b"[[0.1]]", b"[[0.2],[0.1]]", b"[[0.3]]"),
    ),
    Exchange(
        "tei-embed",
        "a vector for each token",
        "/embed_all",
        _TEI,
        (b'{"inputs":"a b"}', b'{"inputs":"c"}', b'{"inputs":["d e"]}'),
        b'{"inputs":["a b","c","d e"]}',
        b"[[[0.1,0.2],[0.3,0.4]],[[0.5,0.6]],[[0.7,0.8],[0.9,1.0]]]",
        (b"[[[0.1,0.2],[0.3,0.4]]]", b"[[[0.5,0.6]]]", b"[[[0.7,0.8],[0.9,1.0]]]"),
    ),
    Exchange(
        "tei-embed",
        "sparse vectors, whose `index` is a dimension",
        "/embed_sparse",
        _TEI,
        (b'{"inputs":"a"}', b'{"inputs":"b"}', b'{"inputs":"c"}'),
        b'{"inputs":["a","b","c"]}',
        b'[[{"index":1045,"value":0.5}],[],[{"index":7,"value":1.5},{"index":2293,"value":0.25}]]',
        (
            b'[[{"index":1045,"value":0.5}]]',
            b"[[]]",
            b'[[{"index":7,"value":1.5},{"index":2293,"value":0.25}]]',
        ),
    ),
    Exchange(
        "hf-toolkit",
        "one label each: a row is an object, and one text is answered with a list of it",
        "/",
        _PIPELINES,
        (
            b'{"inputs": "anna lives in paris"}',
            b'{"inputs": ["carpool is a sidecar"]}',
            b'{"inputs": "where is london ?"}',
        ),
        b'{"inputs": ["anna lives in paris","carpool is a sidecar","where is london ?"]}',
        b'[{"label":"neutral","score":0.5916410088539124},{"label":"neutral","score":0.609558641910553},'
        b'{"label":"neutral","score":0.5962061882019043}]',
        (
            b'[{"label":"neutral","score":0.5916410088539124}]',
            b'[{"label":"neutral","score":0.609558641910553}]',
            b'[{"label":"neutral","score":0.5962061882019043}]',
        ),
    ),
    Exchange(
        "hf-toolkit",
        "several labels each: a row is a list, and one text is answered with the row",
        "/predict",
        _PIPELINES,
        (
            b'{"inputs": "anna lives in paris", "parameters": {"top_k": 2}}',
            b'{"inputs": ["carpool is a sidecar"], "parameters": {"top_k": 2}}',
            b'{"inputs": "where is london ?", "parameters": {"top_k": 2}}',
        ),
        b'{"inputs": ["anna lives in paris","carpool is a sidecar","where is london ?"], "parameters": {"top_k": 2}}',
        b'[[{"label":"neutral","score":0.5916410088539124},{"label":"contradiction","score":0.2389063537120819}],'
        b'[{"label":"neutral","score":0.609558641910553},{"label":"contradiction","score":0.24380114674568176}],'
        b'[{"label":"neutral","score":0.5962061882019043},{"label":"entailment","score":0.20515279471874237}]]',
        (
            b'[{"label":"neutral","score":0.5916410088539124},{"label":"contradiction","score":0.2389063537120819}]',
            b'[[{"label":"neutral","score":0.609558641910553},{"label":"contradiction","score":0.24380114674568176}]]',
            b'[{"label":"neutral","score":0.5962061882019043},{"label":"entailment","score":0.20515279471874237}]',
        ),
    ),
    Exchange(
        "hf-toolkit",
        "entities: as many for each text as it has, or none",
        "/",
        f"{_PIPELINES}, the last row in another run",
        (
            b'{"inputs":"anna lives in paris","parameters":{"aggregation_strategy":"simple"}}',
            b'{"inputs":["carpool is a sidecar","where is london ?"],"parameters":{"aggregation_strategy":"simple"}}',
            b'{"inputs":"?","parameters":{"aggregation_strategy":"simple"}}',
        ),
        b'{"inputs":["anna lives in paris","carpool is a sidecar","where is london ?","?"],'
        b'"parameters":{"aggregation_strategy":"simple"}}',
        b'[[{"entity_group":"LABEL_1","score":0.8239963,"word":"anna","start":0,"end":4},'
        b'{"entity_group":"LABEL_0","score":0.8343802,"word":"lives in paris","start":5,"end":19}],'
        b'[{"entity_group":"LABEL_0","score":0.99813324,"word":"carpool is a sidecar","start":0,"end":20}],'
        b'[{"entity_group":"LABEL_0","score":0.99886286,"word":"where is london?","start":0,"end":17}],[]]',
        (
            b'[{"entity_group":"LABEL_1","score":0.8239963,"word":"anna","start":0,"end":4},'
            b'{"entity_group":"LABEL_0","score":0.8343802,"word":"lives in paris","start":5,"end":19}]',
            b'[[{"entity_group":"LABEL_0","score":0.99813324,"word":"carpool is a sidecar","start":0,"end":20}],'
            b'[{"entity_group":"LABEL_0","score":0.99886286,"word":"where is london?","start":0,"end":17}]]',
            b"[]",
        ),
    ),
    Exchange(
        "hf-toolkit",
        "zero-shot: lists are batched",
        "/",
        _PIPELINES,
        (
            b'{"inputs":["anna lives in paris"],"parameters":{"candidate_labels":["sport","politics"]}}',
            b'{"inputs":["carpool is a sidecar"],"parameters":{"candidate_labels":["sport","politics"]}}',
            b'{"inputs":["where is london ?"],"parameters":{"candidate_labels":["sport","politics"]}}',
        ),
        b'{"inputs":["anna lives in paris","carpool is a sidecar","where is london ?"],'
        b'"parameters":{"candidate_labels":["sport","politics"]}}',
        b'[{"sequence":"anna lives in paris","labels":["politics","sport"],"scores":[0.5143187046051025,'
        b'0.48568129539489746]},{"sequence":"carpool is a sidecar","labels":["politics","sport"],'
        b'"scores":[0.5140796899795532,0.48592033982276917]},{"sequence":"where is london ?",'
        b'"labels":["politics","sport"],"scores":[0.5128105282783508,0.48718953132629395]}]',
        (
            b'[{"sequence":"anna lives in paris","labels":["politics","sport"],"scores":[0.5143187046051025,'
            b"0.48568129539489746]}]",
            b'[{"sequence":"carpool is a sidecar","labels":["politics","sport"],'
            b'"scores":[0.5140796899795532,0.48592033982276917]}]',
            b'[{"sequence":"where is london ?","labels":["politics","sport"],'
            b'"scores":[0.5128105282783508,0.48718953132629395]}]',
        ),
    ),
    Exchange(
        "hf-toolkit",
        "sentence-transformers: the answer's list has a name",
        "/",
        _SENTENCES,
        (b'{"inputs":"a"}', b'{"inputs":["b","c"]}', b'{"inputs":["d"]}'),
        b'{"inputs":["a","b","c","d"]}',
        b'{"embeddings":[[0.1,0.1],[0.2,0.2],[0.3,0.3],[0.4,0.4]]}',
        (
            b'{"embeddings":[0.1,0.1]}',
            b'{"embeddings":[[0.2,0.2],[0.3,0.3]]}',
            b'{"embeddings":[[0.4,0.4]]}',
        ),
    ),
    Exchange(
        "mlflow",
        "a table with its columns' names apart",
        "/invocations",
        _MLFLOW,
        (
            b'{"dataframe_split": {"columns": ["a", "b"], "data": [[1, 2]]}}',
            b'{"dataframe_split": {"columns": ["a", "b"], "data": [[3, 4]]}}',
            b'{"dataframe_split": {"columns": ["a", "b"], "data": [[5, 6]]}}',
        ),
        b'{"dataframe_split": {"columns": ["a", "b"], "data": [[1, 2],[3, 4],[5, 6]]}}',
        b'{"predictions": [3.0, 7.0, 11.0]}',
        (b'{"predictions": [3.0]}', b'{"predictions": [7.0]}', b'{"predictions": [11.0]}'),
    ),
    Exchange(
        "mlflow",
        "the same with an index, as the client of mlflow writes it",
        "/invocations",
        _MLFLOW,
        (
            b'{"dataframe_split": {"index": [0, 1], "columns": ["a", "b"], "data": [[1, 2], [3, 4]]}}',
            b'{"dataframe_split": {"index": [0], "columns": ["a", "b"], "data": [[5, 6]]}}',
            b'{"dataframe_split": {"index": [7], "columns": ["a", "b"], "data": [[7, 8]]}}',
        ),
        b'{"dataframe_split": {"index": [0, 1,0,7], "columns": ["a", "b"], "data": [[1, 2], [3, 4],[5, 6],[7, 8]]}}',
        b'{"predictions": [3.0, 7.0, 11.0, 15.0]}',
        (b'{"predictions": [3.0, 7.0]}', b'{"predictions": [11.0]}', b'{"predictions": [15.0]}'),
    ),
    Exchange(
        "mlflow",
        "a table as a list of objects, with parameters",
        "/invocations",
        _MLFLOW,
        (
            b'{"dataframe_records": [{"a": 1, "b": 2}], "params": {"x": 1}}',
            b'{"dataframe_records": [{"a": 3, "b": 4}], "params": {"x": 1}}',
            b'{"dataframe_records": [{"a": 5, "b": 6}], "params": {"x": 1}}',
        ),
        b'{"dataframe_records": [{"a": 1, "b": 2},{"a": 3, "b": 4},{"a": 5, "b": 6}], "params": {"x": 1}}',
        b'{"predictions": [3.0, 7.0, 11.0]}',
        (b'{"predictions": [3.0]}', b'{"predictions": [7.0]}', b'{"predictions": [11.0]}'),
    ),
    Exchange(
        "mlflow",
        "instances",
        "/serving-endpoints/adder/invocations",
        _MLFLOW,
        (b'{"instances": [[1, 2]]}', b'{"instances": [[3, 4]]}', b'{"instances": [[5, 6]]}'),
        b'{"instances": [[1, 2],[3, 4],[5, 6]]}',
        b'{"predictions": [3, 7, 11]}',
        (b'{"predictions": [3]}', b'{"predictions": [7]}', b'{"predictions": [11]}'),
    ),
    Exchange(
        "mlflow",
        "inputs",
        "/invocations",
        _MLFLOW,
        (b'{"inputs": [[1, 2]]}', b'{"inputs": [[3, 4], [5, 6]]}', b'{"inputs": [[7, 8]]}'),
        b'{"inputs": [[1, 2],[3, 4], [5, 6],[7, 8]]}',
        b'{"predictions": [3, 7, 11, 15]}',
        (b'{"predictions": [3]}', b'{"predictions": [7, 11]}', b'{"predictions": [15]}'),
    ),
    Exchange(
        "tfserving-columns",
        "two inputs, two outputs",
        "/v1/models/m/versions/3:predict",
        _TFSERVING,
        (
            b'{"inputs": {"tag": ["foo"], "signal": [[1, 2]]}}',
            b'{"inputs": {"tag": ["bar", "qux"], "signal": [[3, 4], [5, 6]]}}',
            b'{"inputs": {"tag": ["baz"], "signal": [[7, 8]]}}',
        ),
        b'{"inputs": {"tag": ["foo","bar", "qux","baz"], "signal": [[1, 2],[3, 4], [5, 6],[7, 8]]}}',
        b'{\n    "outputs": {\n        "label": [\n            "a",\n            "b",\n            "c",\n'
        b'            "d"\n        ],\n        "score": [\n            [\n                0.5\n'
        b"            ],\n            [\n"
        b"                1e-05\n            ],\n            [\n                3.0\n            ],\n            [\n"
        b"                4.0\n            ]\n        ]\n    }\n}",
        (
            (
                b"{\n"
                b'    "outputs": {\n'
                b'        "label": [\n'
                b'            "a"\n'
                b"        ],\n"
                b'        "score": [\n'
                b"            [\n"
                b"                0.5\n"
                b"            ]\n"
                b"        ]\n"
                b"    }\n"
                b"}"
            ),
            (
                b"{\n"
                b'    "outputs": {\n'
                b'        "label": [\n'
                b'            "b",\n'
                b'            "c"\n'
                b"        ],\n"
                b'        "score": [\n'
                b"            [\n"
                b"                1e-05\n"
                b"            ],\n"
                b"            [\n"
                b"                3.0\n"
                b"            ]\n"
                b"        ]\n"
                b"    }\n"
                b"}"
            ),
            (
                b"{\n"
                b'    "outputs": {\n'
                b'        "label": [\n'
                b'            "d"\n'
                b"        ],\n"
                b'        "score": [\n'
                b"            [\n"
                b"                4.0\n"
                b"            ]\n"
                b"        ]\n"
                b"    }\n"
                b"}"
            ),
        ),
    ),
    Exchange(
        "tfserving-columns",
        "one output, which has no name in the answer",
        "/v1/models/m/labels/stable:predict",
        _TFSERVING,
        (
            b'{"signature_name":"s","inputs":{"x":[1.0]}}',
            b'{"signature_name":"s","inputs":{"x":[2.0]}}',
            b'{"signature_name":"s","inputs":{"x":[5.0]}}',
        ),
        b'{"signature_name":"s","inputs":{"x":[1.0,2.0,5.0]}}',
        b'{\n    "outputs": [\n        3.5,\n        4.0,\n        5.5\n    ]\n}',
        (
            b'{\n    "outputs": [\n        3.5\n    ]\n}',
            b'{\n    "outputs": [\n        4.0\n    ]\n}',
            b'{\n    "outputs": [\n        5.5\n    ]\n}',
        ),
    ),
    Exchange(
        "tfserving-classify",
        "classify, with a common context",
        "/v1/models/m:classify",
        _TFSERVING,
        (
            b'{"context": {"lang": "en"}, "examples": [{"x": 1.0}]}',
            b'{"context": {"lang": "en"}, "examples": [{"x": 2.0}, {"x": [3.0, 4.0]}]}',
            b'{"context": {"lang": "en"}, "examples": [{}]}',
        ),
        b'{"context": {"lang": "en"}, "examples": [{"x": 1.0},{"x": 2.0}, {"x": [3.0, 4.0]},{}]}',
        b'{\n    "results": [[["no", 0.25], ["yes", 0.75]], [["no", 0.5], ["yes", 0.5]], [["", 7.0]], []\n    ]\n}',
        (
            b'{\n    "results": [[["no", 0.25], ["yes", 0.75]]\n    ]\n}',
            b'{\n    "results": [[["no", 0.5], ["yes", 0.5]], [["", 7.0]]\n    ]\n}',
            b'{\n    "results": [[]\n    ]\n}',
        ),
    ),
    Exchange(
        "tfserving-classify",
        "regress",
        "/v1/models/half_plus_three:regress",
        _TFSERVING,
        (
            b'{"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0}]}',
            b'{"signature_name": "tensorflow/serving/regress", "examples": [{"x": 2.0}]}',
            b'{"signature_name": "tensorflow/serving/regress", "examples": [{"x": 5.0}]}',
        ),
        b'{"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0},{"x": 2.0},{"x": 5.0}]}',
        b'{\n    "results": [3.5, 4.0, 5.5]\n}',
        (b'{\n    "results": [3.5]\n}', b'{\n    "results": [4.0]\n}', b'{\n    "results": [5.5]\n}'),
    ),
    Exchange(
        "ollama-embed",
        "texts",
        "/api/embed",
        _OLLAMA,
        (
            b'{"model": "all-minilm", "input": "Why is the sky blue?"}',
            b'{"model": "all-minilm", "input": ["Why is the grass green?"]}',
            b'{"model": "all-minilm", "input": ["Hm.", ""]}',
        ),
        b'{"model": "all-minilm", "input": ["Why is the sky blue?","Why is the grass green?","Hm.", ""]}',
        b'{"model":"all-minilm","embeddings":[[0.010071029,-0.0017594862],[-0.0098027075,0.06042469],[0.5,0.5],[1,0]],'
        b'"total_duration":14143917,"load_duration":1019500,"prompt_eval_count":20}',
        # 22, 25 and 5 + 2 bytes: 8.15, 9.26 and 2.59 tokens.
        (
            b'{"model":"all-minilm","embeddings":[[0.010071029,-0.0017594862]],'
            b'"total_duration":14143917,"load_duration":1019500,"prompt_eval_count":8}',
            b'{"model":"all-minilm","embeddings":[[-0.0098027075,0.06042469]],'
            b'"total_duration":14143917,"load_duration":1019500,"prompt_eval_count":9}',
            b'{"model":"all-minilm","embeddings":[[0.5,0.5],[1,0]],'
            b'"total_duration":14143917,"load_duration":1019500,"prompt_eval_count":3}',
        ),
        is_prorated=True,
    ),
)

ALONE = (
    Alone("openai-embeddings", "no text", "/v1/embeddings", _OPENAI, b'{"input":"","model":"m"}', "no_rows"),
    Alone("openai-embeddings", "an empty list", "/v1/embeddings", _OPENAI, b'{"input":[],"model":"m"}', "no_rows"),
    Alone("openai-embeddings", "nothing", "/v1/embeddings", _OPENAI, b'{"input":null,"model":"m"}', "no_rows"),
    Alone(
        "openai-embeddings",
        "a conversation",
        "/v1/embeddings",
        _VLLM,
        b'{"messages":[{"role":"user","content":"a"}],"model":"m"}',
        "no_rows",
    ),
    Alone(
        "openai-embeddings",
        "a conversation as input, which is one row though it is a list",
        "/v1/embeddings",
        _VLLM,
        b'{"input":[{"role":"user","content":"a"},{"role":"user","content":"b"}],"model":"m"}',
        "no_rows",
    ),
    Alone("openai-embeddings", "Ollama's older API", "/api/embeddings", _OLLAMA, b'{"prompt":"a"}', "no_rows"),
    Alone("openai-embeddings", "no JSON", "/v1/embeddings", _OPENAI, b'{"input":["a"', "no_rows"),
    Alone("openai-embeddings", "a stream", "/v1/embeddings", _OPENAI, b'{"input":["a"],"stream":true}', "streaming"),
    Alone("tei-embed", "an empty list", "/embed", _TEI, b'{"inputs":[]}', "no_rows"),
    Alone(
        "hf-toolkit",
        "a question: lists of them are refused",
        "/",
        _TOOLKIT,
        b'{"inputs":{"question":"who?","context":"anna lives in paris"}}',
        "no_rows",
    ),
    Alone(
        "hf-toolkit",
        "one text and labels: answered with the bare object",
        "/",
        _PIPELINES,
        b'{"inputs":"anna lives in paris","parameters":{"candidate_labels":["sport","politics"]}}',
        "no_rows",
    ),
    Alone(
        "hf-toolkit",
        "one text and all scores: answered with a list of lists",
        "/",
        _PIPELINES,
        b'{"inputs":"anna lives in paris","parameters":{"return_all_scores":true}}',
        "no_rows",
    ),
    Alone(
        "hf-toolkit",
        "a conversation, which is one row though it is a list",
        "/",
        _TOOLKIT,
        b'{"inputs":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}',
        "no_rows",
    ),
    Alone(
        "mlflow",
        "inputs by column: they may be a conversation",
        "/invocations",
        _MLFLOW,
        b'{"inputs":{"messages":[{"role":"user","content":"a"}]}}',
        "no_rows",
    ),
    Alone("mlflow", "one value for each column", "/invocations", _MLFLOW, b'{"inputs":{"a":1.0,"b":2.0}}', "no_rows"),
    Alone(
        "mlflow", "a chat model", "/invocations", _MLFLOW, b'{"messages":[{"role":"user","content":"a"}]}', "no_rows"
    ),
    Alone("mlflow", "a model of embeddings", "/invocations", _MLFLOW, b'{"input":["a"]}', "no_rows"),
    Alone(
        "tfserving-columns", "no batch dimension", "/v1/models/m:predict", _TFSERVING, b'{"inputs":{"x":1}}', "no_rows"
    ),
    Alone(
        "tfserving-columns",
        "columns of different lengths",
        "/v1/models/m:predict",
        _TFSERVING,
        b'{"inputs":{"x":[1,2],"y":[1]}}',
        "shape",
    ),
    Alone("tfserving-classify", "no examples", "/v1/models/m:classify", _TFSERVING, b'{"examples":[]}', "no_rows"),
    Alone("ollama-embed", "no text: no vector", "/api/embed", _OLLAMA, b'{"model":"m","input":""}', "no_rows"),
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
    ("openai-embeddings", _OPENAI, b'{"error":{"message":"m","type":"t","param":null,"code":null}}'),
    ("tei-embed", _TEI, b'{"error":"Model is overloaded","error_type":"overloaded"}'),
    ("hf-toolkit", _TOOLKIT.replace("handler.py", "webservice_starlette.py"), b'{"error":"m"}'),
    ("mlflow", _MLFLOW, b'{"error_code":"BAD_REQUEST","message":"m"}'),
    ("tfserving-columns", _TFSERVING, b'{"error":"m"}'),
    ("tfserving-classify", _TFSERVING, b'{"error":"m"}'),
    ("ollama-embed", _OLLAMA, b'{"error":"m"}'),
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
    ("ollama-embed", "/api/embeddings"),  # one text, and no list
    ("openai-embeddings", "/v1/embeddings/"),
    ("tfserving-classify", "/v1/models/m:predict"),
    ("tfserving-columns", "/v1/models/m/metadata"),
)
"""Paths that a rule leaves alone."""
