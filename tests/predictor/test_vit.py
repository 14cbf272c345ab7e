"""The vision transformer with random weights. Needs the extra `minilm`; skipped without it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from carpool_predictor import model

torch = pytest.importorskip("torch", reason="torch is missing: install the extra 'minilm' to test the vision model")
np = pytest.importorskip("numpy")

from carpool_predictor.models import devices, vit, vit_network  # noqa: E402

RANDOM = np.random.default_rng(0)
PICTURES = [RANDOM.integers(0, 256, vit.BYTES, np.uint8).tobytes() for _ in range(3)] + [bytes(vit.BYTES)]


def row(pixels: bytes) -> bytes:
    return json.dumps({"b64": base64.b64encode(pixels).decode()}).encode()


@pytest.fixture(scope="module")
def loaded() -> vit.RandomViT:
    made = vit.RandomViT("cpu", threads=2, size="tiny")
    made.load()
    made.warm_up()
    return made


def answers(made: vit.RandomViT, pictures: list[bytes]) -> list[Any]:
    return [json.loads(bytes(each)) for each in made.predict_rows([row(pixels) for pixels in pictures])]


def test_a_picture_gets_its_most_likely_classes_first(loaded: vit.RandomViT) -> None:
    for answer in answers(loaded, PICTURES):
        assert list(answer) == ["classes", "scores"]
        assert len(set(answer["classes"])) == len(answer["scores"]) == vit.BEST
        assert answer["scores"] == sorted(answer["scores"], reverse=True)
        assert all(0 <= each < vit_network.CLASSES for each in answer["classes"])
        assert 0 < sum(answer["scores"]) < 1


def test_a_picture_is_answered_alike_alone_and_in_a_batch(loaded: vit.RandomViT) -> None:
    together = answers(loaded, PICTURES)
    for answer, pixels in zip(together, PICTURES, strict=True):
        alone = answers(loaded, [pixels])[0]
        assert alone["classes"] == answer["classes"]
        assert alone["scores"] == pytest.approx(answer["scores"], abs=1e-5)
    assert together[0]["classes"] != together[3]["classes"]


def test_the_same_seed_has_the_same_weights_and_another_has_others() -> None:
    tiny = vit_network.SIZES["tiny"]
    first, again, other = (vit_network.random_weights(tiny, seed) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_the_network_is_that_of_timm() -> None:
    timm = pytest.importorskip("timm")
    size = vit_network.SIZES["tiny"]
    weights = vit_network.random_weights(size, 0)
    theirs = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval()
    theirs.load_state_dict(weights)
    pixels = torch.from_numpy(np.frombuffer(b"".join(PICTURES), np.uint8).copy()).view(-1, 224, 224, 3)
    with torch.inference_mode():
        ours = vit_network.Network(weights, size)(pixels)
        assert torch.allclose(ours, theirs(pixels.permute(0, 3, 1, 2).float() / 127.5 - 1), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "millions"), [("tiny", 5.7), ("small", 22.1), ("base", 86.6), ("large", 304.3), ("huge", 632.0)]
)
def test_each_size_has_as_many_weights_as_the_published_one(name: str, millions: float) -> None:
    with torch.device("meta"):
        weights = vit_network.random_weights(vit_network.SIZES[name], 0)
    assert sum(each.numel() for each in weights.values()) / 1e6 == pytest.approx(millions, abs=0.1)


def test_bfloat16_agrees_with_float32() -> None:
    size = vit_network.SIZES["tiny"]
    weights = vit_network.random_weights(size, 0)
    pixels = torch.from_numpy(np.frombuffer(b"".join(PICTURES[:2]), np.uint8).copy()).view(-1, 224, 224, 3)
    with torch.inference_mode():
        right = vit_network.Network(weights, size)(pixels)
        found = vit_network.Network(devices.converted(weights, torch.bfloat16), size)(pixels).float()
    assert float(torch.nn.functional.cosine_similarity(right, found).min()) > 0.999


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b"1", "Expected `object`, got `int`"),
        (b'"text"', "Expected `object`, got `str`"),
        (b'{"b64":7}', "Expected `bytes`, got `int`"),
        (b'{"b64":"?"}', "Invalid base64 encoded string"),
        (b'{"b64":"AAAA"}', "it has 3 bytes"),
        (b"{}", "missing required field `b64`"),
        (row(PICTURES[0])[:-1] + b',"more":1}', "unknown field `more`"),
        (row(PICTURES[0] + b"x"), "it has 150529 bytes"),
    ],
)
def test_anything_but_pictures_is_refused_with_its_place(loaded: vit.RandomViT, bad: bytes, problem: str) -> None:
    with pytest.raises(model.InvalidInstances, match=f'^instance 1 must be {{"b64": …}}, .*{problem}'):
        loaded.predict_rows([row(PICTURES[0]), bad])
