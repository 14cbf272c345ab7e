"""Vision transformers of the published sizes, for pictures of 224 x 224 pixels and 1,000 classes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.nn import functional

from carpool_predictor.models import transformer

SIDE = 224
CLASSES = 1000
_EPSILON = 1e-6
_DEVIATION = 0.02  # of the weights, as the authors draw them before training


class Size(NamedTuple):
    """The architecture by its published numbers."""

    patch: int
    layers: int
    width: int
    heads: int


SIZES = {
    "tiny": Size(16, 12, 192, 3),  # Touvron et al., 2020
    "small": Size(16, 12, 384, 6),
    "base": Size(16, 12, 768, 12),  # Dosovitskiy et al., 2020, as are the larger ones
    "large": Size(16, 24, 1024, 16),
    "huge": Size(14, 32, 1280, 16),
}

NAMES = transformer.Names(
    attend=("attn.qkv",),
    project="attn.proj",
    attention_norm="norm1",
    widen="mlp.fc1",
    narrow="mlp.fc2",
    output_norm="norm2",
)


def random_weights(size: Size, seed: int) -> dict[str, torch.Tensor]:
    """Weights by the names that timm gives them, the same ones for the same seed: float32, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}

    def draw(name: str, *shape: int) -> None:
        weights[name] = torch.empty(shape).normal_(0.0, _DEVIATION, generator=generator)

    def linear(name: str, out: int, into: int) -> None:
        draw(name + ".weight", out, into)
        weights[name + ".bias"] = torch.zeros(out)

    def norm(name: str) -> None:
        weights[name + ".weight"], weights[name + ".bias"] = torch.ones(size.width), torch.zeros(size.width)

    draw("cls_token", 1, 1, size.width)
    draw("pos_embed", 1, 1 + (SIDE // size.patch) ** 2, size.width)
    draw("patch_embed.proj.weight", size.width, 3, size.patch, size.patch)
    weights["patch_embed.proj.bias"] = torch.zeros(size.width)
    for at in range(size.layers):
        block = f"blocks.{at}."
        norm(block + "norm1")
        linear(block + "attn.qkv", 3 * size.width, size.width)
        linear(block + "attn.proj", size.width, size.width)
        norm(block + "norm2")
        linear(block + "mlp.fc1", 4 * size.width, size.width)
        linear(block + "mlp.fc2", size.width, 4 * size.width)
    norm("norm")
    # Wider than the rest, so that the scores of two pictures differ as those of a trained model do.
    weights["head.weight"] = torch.empty(CLASSES, size.width).normal_(
        0.0, 1 / math.sqrt(size.width), generator=generator
    )
    weights["head.bias"] = torch.zeros(CLASSES)
    return weights


class Network:
    """Pixels [pictures, 224, 224, 3], uint8, to logits [pictures, 1000]."""

    def __init__(self, weights: dict[str, torch.Tensor], size: Size) -> None:
        shape = transformer.Shape(size.heads, _EPSILON, norms_first=True)
        self._patch = size.patch
        kernel, self._embed_bias = transformer.pair(weights, "patch_embed.proj")
        # The convolution as a product: its kernels do not overlap. Pixels stay as they lie, rows x columns x colours.
        self._embed = kernel.permute(0, 2, 3, 1).reshape(size.width, -1).contiguous()
        self._class = weights["cls_token"]
        self._positions = weights["pos_embed"]
        self._layers = [transformer.Layer(weights, f"blocks.{at}.", NAMES, shape) for at in range(size.layers)]
        self._norm = transformer.pair(weights, "norm")
        self._head = transformer.pair(weights, "head")

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        scaled = pixels.to(self._embed.dtype) / 127.5 - 1.0
        pictures, across, patch = len(pixels), SIDE // self._patch, self._patch
        patches = scaled.view(pictures, across, patch, across, patch, 3).permute(0, 1, 3, 2, 4, 5)
        vectors = functional.linear(patches.reshape(pictures, across * across, -1), self._embed, self._embed_bias)
        vectors = torch.cat([self._class.expand(pictures, -1, -1), vectors], 1) + self._positions
        for layer in self._layers:
            vectors = layer(vectors, None)
        return functional.linear(transformer.normalize(vectors[:, 0], self._norm, _EPSILON), *self._head)
