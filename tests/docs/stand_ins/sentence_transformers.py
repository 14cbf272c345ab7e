"""A stand-in for sentence-transformers, whose models weigh hundreds of megabytes: the same call, made-up embeddings."""

from __future__ import annotations

import numpy as np


class SentenceTransformer:
    """Takes any name, and embeds a sentence as 384 numbers that depend on it alone."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, sentences: list[str]) -> np.ndarray:
        return np.array([[len(sentence) / (place + 1) for place in range(384)] for sentence in sentences])
