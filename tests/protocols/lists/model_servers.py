"""Exchanges with servers of any model: Hugging Face's toolkit, MLflow, and TensorFlow Serving beside v1."""

from __future__ import annotations

from tests.protocols.lists.servers import MLFLOW, PIPELINES, SENTENCES, TFSERVING, Exchange

EXCHANGES = (
    Exchange(
        "hf-toolkit",
        "one label each: a row is an object, and one text is answered with a list of it",
        "/",
        PIPELINES,
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
        PIPELINES,
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
        f"{PIPELINES}, the last row in another run",
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
        PIPELINES,
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
        SENTENCES,
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
        MLFLOW,
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
        MLFLOW,
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
        MLFLOW,
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
        MLFLOW,
        (b'{"instances": [[1, 2]]}', b'{"instances": [[3, 4]]}', b'{"instances": [[5, 6]]}'),
        b'{"instances": [[1, 2],[3, 4],[5, 6]]}',
        b'{"predictions": [3, 7, 11]}',
        (b'{"predictions": [3]}', b'{"predictions": [7]}', b'{"predictions": [11]}'),
    ),
    Exchange(
        "mlflow",
        "inputs",
        "/invocations",
        MLFLOW,
        (b'{"inputs": [[1, 2]]}', b'{"inputs": [[3, 4], [5, 6]]}', b'{"inputs": [[7, 8]]}'),
        b'{"inputs": [[1, 2],[3, 4], [5, 6],[7, 8]]}',
        b'{"predictions": [3, 7, 11, 15]}',
        (b'{"predictions": [3]}', b'{"predictions": [7, 11]}', b'{"predictions": [15]}'),
    ),
    Exchange(
        "tfserving-columns",
        "two inputs, two outputs",
        "/v1/models/m/versions/3:predict",
        TFSERVING,
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
        TFSERVING,
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
        TFSERVING,
        (
            b'{"context": {"lang": "en"}, "examples": [{"x": [1.0]}]}',
            b'{"context": {"lang": "en"}, "examples": [{"x": [2.0]}, {"x": [3.0, 4.0]}]}',
            b'{"context": {"lang": "en"}, "examples": [{"x": [5]}]}',
        ),
        b'{"context": {"lang": "en"}, "examples": [{"x": [1.0]},{"x": [2.0]}, {"x": [3.0, 4.0]},{"x": [5]}]}',
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
        TFSERVING,
        (
            b'{"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0}]}',
            b'{"signature_name": "tensorflow/serving/regress", "examples": [{"x": 2.0}]}',
            b'{"signature_name": "tensorflow/serving/regress", "examples": [{"x": 5.0}]}',
        ),
        b'{"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0},{"x": 2.0},{"x": 5.0}]}',
        b'{\n    "results": [3.5, 4.0, 5.5]\n}',
        (b'{\n    "results": [3.5]\n}', b'{\n    "results": [4.0]\n}', b'{\n    "results": [5.5]\n}'),
    ),
)
