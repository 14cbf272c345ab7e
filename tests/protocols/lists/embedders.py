"""Exchanges with servers that embed: OpenAI's format in many spellings, TEI's and Ollama's."""

from __future__ import annotations

from tests.protocols.lists.servers import KSERVE, OLLAMA, OPENAI, OVMS, TEI, VLLM, Exchange

VOYAGE = "https://github.com/voyage-ai/voyageai-python/blob/452bbac081ac/voyageai/object/embeddings.py"


def _voyage(rows: bytes, tokens: int) -> bytes:
    return b'{"object":"list","data":[%b],"model":"voyage-4","usage":{"total_tokens":%d}}' % (rows, tokens)


EXCHANGES = (
    Exchange(
        "openai-embeddings",
        "Voyage's members and whole numbers",
        "/v1/embeddings",
        VOYAGE,
        tuple(
            b'{"input":["%c"],"model":"voyage-4","input_type":"query","truncation":true,"output_dtype":"int8"}' % text
            for text in b"abc"
        ),
        b'{"input":["a","b","c"],"model":"voyage-4","input_type":"query","truncation":true,"output_dtype":"int8"}',
        _voyage(b",".join(b'{"object":"embedding","embedding":[%d,-1],"index":%d}' % (n, n) for n in range(3)), 6),
        tuple(_voyage(b'{"object":"embedding","embedding":[%d,-1],"index":0}' % n, 2) for n in range(3)),
        is_prorated=True,
    ),
    Exchange(
        "openai-embeddings",
        "a text, a list of one and a list of two",
        "/v1/embeddings",
        OPENAI,
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
        OPENAI,
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
        VLLM,
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
        KSERVE,
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
        OVMS,
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
        TEI,
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
        TEI,
        (b'{"inputs":[101,102]}', b'{"inputs":[[101,7592,102],[101,102]]}', b'{"inputs":[[101]]}'),
        b'{"inputs":[[101,102],[101,7592,102],[101,102],[101]]}',
        b"[[0.1],[0.2],[0.1],[0.3]]",
        (b"[[0.1]]", b"[[0.2],[0.1]]", b"[[0.3]]"),
    ),
    Exchange(
        "tei-embed",
        "a vector for each token",
        "/embed_all",
        TEI,
        (b'{"inputs":"a b"}', b'{"inputs":"c"}', b'{"inputs":["d e"]}'),
        b'{"inputs":["a b","c","d e"]}',
        b"[[[0.1,0.2],[0.3,0.4]],[[0.5,0.6]],[[0.7,0.8],[0.9,1.0]]]",
        (b"[[[0.1,0.2],[0.3,0.4]]]", b"[[[0.5,0.6]]]", b"[[[0.7,0.8],[0.9,1.0]]]"),
    ),
    Exchange(
        "tei-embed",
        "sparse vectors, whose `index` is a dimension",
        "/embed_sparse",
        TEI,
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
        "ollama-embed",
        "texts",
        "/api/embed",
        OLLAMA,
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
