"""A handler of TorchServe: it is handed the requests of a batch, and answers each with the vectors of its texts."""

from __future__ import annotations

from typing import Any

import sentences

_model: Any = None


def handle(data: list[dict[str, Any]] | None, context: Any) -> list[Any] | None:
    """TorchServe calls it once without data, to load."""
    global _model
    if _model is None:
        _model = sentences.load()
    if not data:
        return None
    asked = [(request.get("body") or request.get("data"))["texts"] for request in data]
    vectors = iter(sentences.embed(_model, [text for texts in asked for text in texts]))
    return [[next(vectors) for _ in texts] for texts in asked]
