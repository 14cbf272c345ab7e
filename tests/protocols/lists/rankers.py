"""Exchanges with servers that score and rank: requests with equal queries share calls, pairs share them with any."""

from __future__ import annotations

from tests.protocols.lists.servers import TEI, VLLM, Alone, Exchange

SCORING = VLLM.replace("embed/protocol.py", "scoring/protocol.py")
CLASSIFY = VLLM.replace("embed/protocol.py", "classify/protocol.py")
COHERE = "https://github.com/cohere-ai/cohere-python/blob/bc495daab781/src/cohere/types/api_meta.py"
COHERE_EMBED = COHERE.replace("types/api_meta.py", "v2/client.py")
COHERE_BY_VLLM = (
    "https://github.com/vllm-project/vllm/blob/4f4c27feea26/vllm/entrypoints/pooling/embed/cohere/serving.py"
)
VOYAGE = "https://github.com/voyage-ai/voyageai-python/blob/452bbac081ac/voyageai/api_resources/api_requestor.py"
INFINITY = (
    "https://github.com/michaelfeil/infinity/blob/fcb951cb679d/libs/infinity_emb/infinity_emb/fastapi_schemas/"
    "pymodels.py"
)
NIM = "https://docs.nvidia.com/nim/nemo-retriever/text-reranking/2.3/using-reranking.html"


def _vllm(results: bytes, tokens: int) -> bytes:
    usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
    return b'{"id":"score-1","model":"m","usage":' + usage + b',"results":[' + results + b"]}"


def _cohere(floats: bytes, whole: bytes, texts: bytes, tokens: int) -> bytes:
    return (
        b'{"id":"1","embeddings":{"float":[%b],"int8":[%b]},"texts":[%b],"meta":{"api_version":{"version":"2"},'
        b'"billed_units":{"input_tokens":%d}},"response_type":"embeddings_by_type"}' % (floats, whole, texts, tokens)
    )


def _cohere_ranks(results: bytes, units: bytes, tokens: bytes) -> bytes:
    return (
        b'{"id":"1","results":[%b],"meta":{"api_version":{"version":"2"},"billed_units":{"search_units":%b},'
        b'"tokens":{"input_tokens":%b},"cached_tokens":0}}' % (results, units, tokens)
    )


def _infinity_classes(rows: bytes, tokens: int) -> bytes:
    return (
        b'{"object":"classify","data":[%b],"model":"m","usage":{"prompt_tokens":%d,"total_tokens":%d},'
        b'"id":"infinity-1","created":1}' % (rows, tokens, tokens)
    )


def _vllm_cohere(rows: bytes, tokens: int) -> bytes:
    return (
        b'{"id":"embd-1","embeddings":{"base64":[%b]},"meta":{"api_version":{"version":"2"},'
        b'"tokens":{"input_tokens":%d}}}' % (rows, tokens)
    )


EXCHANGES = (
    Exchange(
        "rerank",
        "Cohere's counts, which are its client's floats",
        "/v2/rerank",
        COHERE,
        tuple(b'{"model":"m","query":"q","documents":[%b]}' % documents for documents in (b'"a","b"', b'"c"', b'"d"')),
        b'{"model":"m","query":"q","documents":["a","b","c","d"]}',
        _cohere_ranks(
            b'{"index":2,"relevance_score":0.9},{"index":0,"relevance_score":0.8},{"index":1,"relevance_score":0.2},'
            b'{"index":3,"relevance_score":0.1}',
            b"1.0",
            b"8.0",
        ),
        (
            _cohere_ranks(b'{"index":0,"relevance_score":0.8},{"index":1,"relevance_score":0.2}', b"1", b"4"),
            _cohere_ranks(b'{"index":0,"relevance_score":0.9}', b"0", b"2"),
            _cohere_ranks(b'{"index":0,"relevance_score":0.1}', b"0", b"2"),
        ),
        is_prorated=True,
    ),
    Exchange(
        "vllm-pooling",
        "classes of Infinity, whose rows have no number",
        "/classify",
        INFINITY,
        tuple(b'{"input":[%b],"model":"m"}' % texts for texts in (b'"a","b"', b'"c"', b'"d"')),
        b'{"input":["a","b","c","d"],"model":"m"}',
        _infinity_classes(b",".join(b'[{"score":0.%d,"label":"x"}]' % place for place in range(1, 5)), 8),
        (
            _infinity_classes(b'[{"score":0.1,"label":"x"}],[{"score":0.2,"label":"x"}]', 4),
            _infinity_classes(b'[{"score":0.3,"label":"x"}]', 2),
            _infinity_classes(b'[{"score":0.4,"label":"x"}]', 2),
        ),
        is_prorated=True,
    ),
    Exchange(
        "cohere-embed",
        "vLLM's inputs, which are not repeated",
        "/v2/embed",
        COHERE_BY_VLLM,
        tuple(
            b'{"model":"m","inputs":[%b],"embedding_types":["base64"]}'
            % b",".join(b'{"content":[{"type":"text","text":"%c"}]}' % text for text in texts)
            for texts in (b"ab", b"c", b"d")
        ),
        b'{"model":"m","inputs":[{"content":[{"type":"text","text":"a"}]},{"content":[{"type":"text","text":"b"}]},'
        b'{"content":[{"type":"text","text":"c"}]},{"content":[{"type":"text","text":"d"}]}],'
        b'"embedding_types":["base64"]}',
        _vllm_cohere(b'"AAAA","BBBB","CCCC","DDDD"', 20),
        (
            _vllm_cohere(b'"AAAA","BBBB"', 10),
            _vllm_cohere(b'"CCCC"', 5),
            _vllm_cohere(b'"DDDD"', 5),
        ),
        is_prorated=True,
    ),
    Exchange(
        "cohere-embed",
        "v1's list of floats",
        "/v1/embed",
        COHERE_EMBED,
        tuple(b'{"texts":["%c"],"model":"m"}' % text for text in b"abc"),
        b'{"texts":["a","b","c"],"model":"m"}',
        b'{"id":"1","texts":["a","b","c"],"embeddings":[[1,1],[2,2],[3,3]],"response_type":"embeddings_floats"}',
        tuple(
            b'{"id":"1","texts":["%c"],"embeddings":[[%d,%d]],"response_type":"embeddings_floats"}'
            % (text, place, place)
            for place, text in enumerate(b"abc", 1)
        ),
    ),
    Exchange(
        "rerank",
        "equal queries and other numbers of results",
        "/v1/rerank",
        SCORING,
        (
            b'{"model":"m","query":"q","documents":["a","b"]}',
            b'{"model":"m","query":"q","documents":["c","d"],"top_n":1}',
            b'{"model":"m","query":"q","documents":["e"],"top_n":9}',
        ),
        b'{"model":"m","query":"q","documents":["a","b","c","d","e"]}',
        _vllm(
            b'{"index":3,"document":{"text":"d"},"relevance_score":0.9},'
            b'{"index":1,"document":{"text":"b"},"relevance_score":0.7},'
            b'{"index":4,"document":{"text":"e"},"relevance_score":0.5},'
            b'{"index":0,"document":{"text":"a"},"relevance_score":0.3},'
            b'{"index":2,"document":{"text":"c"},"relevance_score":1e-3}',
            10,
        ),
        (
            _vllm(
                b'{"index":1,"document":{"text":"b"},"relevance_score":0.7},'
                b'{"index":0,"document":{"text":"a"},"relevance_score":0.3}',
                4,
            ),
            _vllm(b'{"index":1,"document":{"text":"d"},"relevance_score":0.9}', 4),
            _vllm(b'{"index":0,"document":{"text":"e"},"relevance_score":0.5}', 2),
        ),
        is_prorated=True,
    ),
    Exchange(
        "rerank",
        "Voyage's names",
        "/v1/rerank",
        VOYAGE,
        (
            b'{"query":"q","documents":["a"],"model":"rerank-2","top_k":1}',
            b'{"query":"q","documents":["b"],"model":"rerank-2","top_k":null}',
            b'{"query":"q","documents":["c"],"model":"rerank-2"}',
        ),
        b'{"query":"q","documents":["a","b","c"],"model":"rerank-2"}',
        b'{"object":"list","data":[{"relevance_score":0.4,"index":2},{"relevance_score":0.2,"index":0},'
        b'{"relevance_score":0.1,"index":1}],"model":"rerank-2","usage":{"total_tokens":9}}',
        (
            b'{"object":"list","data":[{"relevance_score":0.2,"index":0}],"model":"rerank-2","usage":{"total_tokens":3}}',
            b'{"object":"list","data":[{"relevance_score":0.1,"index":0}],"model":"rerank-2","usage":{"total_tokens":3}}',
            b'{"object":"list","data":[{"relevance_score":0.4,"index":0}],"model":"rerank-2","usage":{"total_tokens":3}}',
        ),
        is_prorated=True,
    ),
    Exchange(
        "tei-rerank",
        "texts",
        "/rerank",
        TEI,
        (
            b'{"query":"q","texts":["a","b"],"return_text":true}',
            b'{"query":"q","texts":["c"],"return_text":true}',
            b'{"query":"q","texts":["d"],"return_text":true}',
        ),
        b'{"query":"q","texts":["a","b","c","d"],"return_text":true}',
        b'[{"index":3,"text":"d","score":0.99},{"index":1,"text":"b","score":0.5},{"index":0,"text":"a","score":-2.5},'
        b'{"index":2,"text":"c","score":-7.1}]',
        (
            b'[{"index":1,"text":"b","score":0.5},{"index":0,"text":"a","score":-2.5}]',
            b'[{"index":0,"text":"c","score":-7.1}]',
            b'[{"index":0,"text":"d","score":0.99}]',
        ),
    ),
    Exchange(
        "nim-ranking",
        "passages",
        "/v1/ranking",
        NIM,
        (
            b'{"model":"m","query":{"text":"q"},"passages":[{"text":"a"},{"text":"b"}],"truncate":"END"}',
            b'{"model":"m","query":{"text":"q"},"passages":[{"text":"c"}],"truncate":"END"}',
            b'{"model":"m","query":{"text":"q"},"passages":[{"text":"d"}],"truncate":"END"}',
        ),
        b'{"model":"m","query":{"text":"q"},"passages":[{"text":"a"},{"text":"b"},{"text":"c"},{"text":"d"}],'
        b'"truncate":"END"}',
        b'{"rankings":[{"index":2,"logit":1.5},{"index":0,"logit":-1.25},{"index":1,"logit":-0.5},'
        b'{"index":3,"logit":-5.4}],"usage":{"prompt_tokens":40,"total_tokens":40}}',
        (
            b'{"rankings":[{"index":1,"logit":-0.5},{"index":0,"logit":-1.25}],'
            b'"usage":{"prompt_tokens":20,"total_tokens":20}}',
            b'{"rankings":[{"index":0,"logit":1.5}],"usage":{"prompt_tokens":10,"total_tokens":10}}',
            b'{"rankings":[{"index":0,"logit":-5.4}],"usage":{"prompt_tokens":10,"total_tokens":10}}',
        ),
        is_prorated=True,
    ),
    Exchange(
        "vllm-score",
        "pairs of several callers",
        "/score",
        SCORING,
        (
            b'{"model":"m","text_1":["q1","q2"],"text_2":["a","b"]}',
            b'{"model":"m","text_1":["q3"],"text_2":["c"]}',
            b'{"model":"m","text_1":["q4"],"text_2":["d"]}',
        ),
        b'{"model":"m","text_1":["q1","q2","q3","q4"],"text_2":["a","b","c","d"]}',
        b'{"id":"embd-1","object":"list","created":1,"model":"m","data":[{"index":0,"object":"score","score":0.1},'
        b'{"index":1,"object":"score","score":0.2},{"index":2,"object":"score","score":0.3},'
        b'{"index":3,"object":"score","score":0.4}],"usage":{"prompt_tokens":12}}',
        (
            b'{"id":"embd-1","object":"list","created":1,"model":"m","data":[{"index":0,"object":"score","score":0.1},'
            b'{"index":1,"object":"score","score":0.2}],"usage":{"prompt_tokens":6}}',
            b'{"id":"embd-1","object":"list","created":1,"model":"m","data":[{"index":0,"object":"score","score":0.3}],'
            b'"usage":{"prompt_tokens":3}}',
            b'{"id":"embd-1","object":"list","created":1,"model":"m","data":[{"index":0,"object":"score","score":0.4}],'
            b'"usage":{"prompt_tokens":3}}',
        ),
        is_prorated=True,
    ),
    Exchange(
        "vllm-pooling",
        "classes",
        "/classify",
        CLASSIFY,
        (b'{"model":"m","input":"a"}', b'{"model":"m","input":["b"]}', b'{"model":"m","input":["c"]}'),
        b'{"model":"m","input":["a","b","c"]}',
        b'{"id":"classify-1","object":"list","created":1,"model":"m","data":['
        b'{"index":0,"label":"POSITIVE","probs":[0.1,0.9],"num_classes":2},'
        b'{"index":1,"label":"NEGATIVE","probs":[0.8,0.2],"num_classes":2},'
        b'{"index":2,"label":"POSITIVE","probs":[0.3,0.7],"num_classes":2}],"usage":{"prompt_tokens":9}}',
        (
            b'{"id":"classify-1","object":"list","created":1,"model":"m","data":['
            b'{"index":0,"label":"POSITIVE","probs":[0.1,0.9],"num_classes":2}],"usage":{"prompt_tokens":3}}',
            b'{"id":"classify-1","object":"list","created":1,"model":"m","data":['
            b'{"index":0,"label":"NEGATIVE","probs":[0.8,0.2],"num_classes":2}],"usage":{"prompt_tokens":3}}',
            b'{"id":"classify-1","object":"list","created":1,"model":"m","data":['
            b'{"index":0,"label":"POSITIVE","probs":[0.3,0.7],"num_classes":2}],"usage":{"prompt_tokens":3}}',
        ),
        is_prorated=True,
    ),
    Exchange(
        "cohere-embed",
        "vectors of several types, and the texts again",
        "/v2/embed",
        COHERE_EMBED,
        tuple(
            b'{"model":"embed-v4.0","texts":[%b],"input_type":"search_query","embedding_types":["float","int8"]}'
            % texts
            for texts in (b'"a","b"', b'"c"', b'"d"')
        ),
        b'{"model":"embed-v4.0","texts":["a","b","c","d"],"input_type":"search_query","embedding_types":["float","int8"]}',
        _cohere(b"[0.1,1],[0.2,2],[0.3,3],[0.4,4]", b"[1,1],[2,2],[3,3],[4,4]", b'"a","b","c","d"', 8),
        (
            _cohere(b"[0.1,1],[0.2,2]", b"[1,1],[2,2]", b'"a","b"', 4),
            _cohere(b"[0.3,3]", b"[3,3]", b'"c"', 2),
            _cohere(b"[0.4,4]", b"[4,4]", b'"d"', 2),
        ),
        is_prorated=True,
    ),
    Exchange(
        "tei-predict",
        "lists of texts and of pairs",
        "/predict",
        TEI,
        (
            b'{"inputs":[["a"],["b"]],"raw_scores":false}',
            b'{"inputs":[["c"]],"raw_scores":false}',
            b'{"inputs":[["d"]],"raw_scores":false}',
        ),
        b'{"inputs":[["a"],["b"],["c"],["d"]],"raw_scores":false}',
        b'[[{"score":0.9,"label":"x"}],[{"score":0.8,"label":"y"}],[{"score":0.7,"label":"x"}],'
        b'[{"score":0.6,"label":"y"}]]',
        (
            b'[[{"score":0.9,"label":"x"}],[{"score":0.8,"label":"y"}]]',
            b'[[{"score":0.7,"label":"x"}]]',
            b'[[{"score":0.6,"label":"y"}]]',
        ),
    ),
)

ALONE = (
    Alone("rerank", "no result is wanted", "/rerank", INFINITY, b'{"query":"q","documents":["a"],"top_n":0}', "top"),
    Alone("rerank", "a text for a number", "/rerank", COHERE, b'{"query":"q","documents":["a"],"top_n":"1"}', "top"),
    Alone("rerank", "no document", "/rerank", COHERE, b'{"query":"q","documents":[]}', "no_rows"),
    Alone("rerank", "one document without a list", "/rerank", SCORING, b'{"query":"q","documents":"a"}', "no_rows"),
    Alone("tei-rerank", "no text", "/rerank", TEI, b'{"query":"q","texts":[]}', "no_rows"),
    Alone(
        "vllm-score", "one list is longer", "/score", SCORING, b'{"text_1":["q"],"text_2":["a","b"]}', "shape"
    ),
    Alone("vllm-score", "two texts", "/v1/score", SCORING, b'{"text_1":"q","text_2":"a"}', "no_rows"),
    Alone("cohere-embed", "no text", "/v2/embed", COHERE_EMBED, b'{"texts":[],"model":"m"}', "no_rows"),
    Alone(
        "cohere-embed", "images, of which a call may have one", "/v2/embed", COHERE_EMBED,
        b'{"images":["data:image/png;base64,AAAA"],"model":"m","input_type":"image"}', "no_rows",
    ),
    Alone("vllm-score", "one query in a list", "/score", SCORING, b'{"queries":["q"],"documents":["a","b"]}', "shape"),
    Alone("tei-predict", "one pair", "/predict", TEI, b'{"inputs":["a","b"]}', "no_rows"),
    Alone("tei-predict", "one text", "/predict", TEI, b'{"inputs":"a"}', "no_rows"),
    Alone("vllm-pooling", "a conversation", "/pooling", CLASSIFY, b'{"messages":[{"role":"user"}]}', "no_rows"),
)  # fmt: skip

_OPENAI_LIKE = b'{"error":{"message":"m","type":"t","param":null,"code":400}}'
ERRORS = (
    ("rerank", SCORING, b'{"error":{"message":"m","type":"t","param":null,"code":400},"message":"m","detail":"m"}'),
    ("cohere-embed", COHERE_EMBED, b'{"message":"m"}'),
    ("tei-rerank", TEI, b'{"error":"Model is overloaded","error_type":"overloaded"}'),
    ("nim-ranking", NIM, b'{"error":"m"}'),
    ("vllm-score", SCORING, _OPENAI_LIKE),
    ("vllm-pooling", CLASSIFY, _OPENAI_LIKE),
    ("tei-predict", TEI, b'{"error":"m","error_type":"validation"}'),
)
