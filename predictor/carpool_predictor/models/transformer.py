"""Transformer encoders on torch's functional interface: what BERT (MiniLM) and vision transformers have in common.

Both are layers of self-attention and of a feed-forward network with exact GELU, each added to its input. BERT
normalizes the sum (Devlin et al., 2018), a vision transformer what goes in (Dosovitskiy et al., 2020). Attention is
torch's `scaled_dot_product_attention`, which chooses the fastest kernel of the device.

Nothing here reads a value back from the device or decides by one, so every pass can be recorded as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional

Pair = tuple[torch.Tensor, torch.Tensor]
"""Weight and bias."""


class Shape(NamedTuple):
    """What a layer needs to know besides its weights."""

    heads: int
    epsilon: float
    norms_first: bool


class Names(NamedTuple):
    """Where a layer's weights are, under its prefix. `attend` is one matrix for query, key and value, or one each."""

    attend: tuple[str, ...]
    project: str
    attention_norm: str
    widen: str
    narrow: str
    output_norm: str


class Layer:
    """One layer: vectors [rows, tokens, size] to vectors of the same shape."""

    def __init__(self, weights: Mapping[str, torch.Tensor], prefix: str, names: Names, shape: Shape) -> None:
        # Query, key and value as one matrix: one product in place of three.
        three = [pair(weights, prefix + name) for name in names.attend]
        self._attend: Pair = (torch.cat([each[0] for each in three]), torch.cat([each[1] for each in three]))
        self._project = pair(weights, prefix + names.project)
        self._attention_norm = pair(weights, prefix + names.attention_norm)
        self._widen = pair(weights, prefix + names.widen)
        self._narrow = pair(weights, prefix + names.narrow)
        self._output_norm = pair(weights, prefix + names.output_norm)
        self._shape = shape

    def __call__(self, vectors: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        """`added` goes to the scores of attention, [rows, 1, 1, tokens]: 0, and very little where nothing is seen."""
        if self._shape.norms_first:
            vectors = vectors + self._attention(self._normalize(vectors, self._attention_norm), added)
            return vectors + self._feed_forward(self._normalize(vectors, self._output_norm))
        vectors = self._normalize(vectors + self._attention(vectors, added), self._attention_norm)
        return self._normalize(vectors + self._feed_forward(vectors), self._output_norm)

    def _attention(self, vectors: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        rows, tokens, size = vectors.shape
        heads = self._shape.heads
        three = functional.linear(vectors, *self._attend).view(rows, tokens, 3, heads, size // heads)
        query, key, value = three.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=added)
        return functional.linear(mixed.transpose(1, 2).reshape(rows, tokens, size), *self._project)

    def _feed_forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return functional.linear(functional.gelu(functional.linear(vectors, *self._widen)), *self._narrow)

    def _normalize(self, vectors: torch.Tensor, norm: Pair) -> torch.Tensor:
        return normalize(vectors, norm, self._shape.epsilon)


def pair(weights: Mapping[str, Any], name: str) -> Pair:
    """Weight and bias of one part."""
    return weights[name + ".weight"], weights[name + ".bias"]


def normalize(vectors: torch.Tensor, norm: Pair, epsilon: float) -> torch.Tensor:
    """Layer normalization over the last dimension."""
    return functional.layer_norm(vectors, vectors.shape[-1:], *norm, eps=epsilon)
