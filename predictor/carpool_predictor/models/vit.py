"""A vision transformer with RANDOM weights: what a heavy model costs and how it batches, not what is in a picture.

The architecture is the published one (`vit_network`), so its passes take as long as those of a trained model. No
package ships trained weights, and nothing is fetched. The weights are drawn from a seed: equal on every machine, and
equal pictures get equal answers.

An instance is a picture of 224 x 224 pixels as raw RGB, in KServe's form for bytes: `{"b64": "…"}`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from carpool.program import logs
from carpool_predictor import model, vectors
from carpool_predictor.models import bucketing, devices, engine, vit_network

try:
    import pybase64
except ImportError:  # part of the extra; without it pictures are read more slowly
    pybase64 = None

log = logging.getLogger("carpool.predictor.vit")

BYTES = vit_network.SIDE * vit_network.SIDE * 3
BEST = 5
"""How many classes are told."""
SEED = 0

# Passes that are not recorded: their fixed cost in pictures, and the most pictures of one, which bounds its memory.
EAGER = {"cpu": bucketing.AnyShape(0.2, 32), "cuda": bucketing.AnyShape(2, 128)}

# Passes that are recorded on a GPU.
ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
RECORDING_SECONDS = 15.0


_HEAD, _TAIL = b'{"b64":"', b'"}'


class _Picture(msgspec.Struct, forbid_unknown_fields=True):
    b64: bytes


_PICTURE = msgspec.json.Decoder(_Picture)
_FORM = f'must be {{"b64": …}}, the {BYTES} bytes of {vit_network.SIDE} x {vit_network.SIDE} RGB pixels in base64'


class RandomViT:
    """The model. `size` is one of `vit_network.SIZES`; the rest is as in `minilm.MiniLM`."""

    def __init__(
        self, device: str, threads: int, size: str, precision: str = "auto", memory: float | None = None
    ) -> None:
        self._device = device
        self._threads = threads
        self._size = size
        self._precision = precision
        self._memory = memory

    def load(self) -> None:
        """Draw the weights. Raises `model.Unusable` for a device that is not there."""
        torch.set_num_threads(self._threads)
        device = devices.chosen(self._device, self._memory)
        kind = devices.precision(self._precision, device.name)
        size = vit_network.SIZES[self._size]
        drawn = vit_network.random_weights(size, SEED)
        weights = {name: drawn.pop(name).to(device.name, kind) for name in list(drawn)}
        network = Pictures(vit_network.Network(weights, size))
        self._engine = engine.Engine(network, device, EAGER[device.name.type])
        millions = round(sum(each.numel() for each in weights.values()) / 1e6, 1)
        facts = logs.facts(size=self._size, millions_of_weights=millions, seed=SEED, device=str(device.name))
        log.warning("this model has random weights: its answers mean nothing", extra=facts)

    def warm_up(self) -> None:
        """Record the usual passes; then run a few, to choose kernels and to claim memory."""
        self._engine.record(bucketing.grid(ROWS, (1,), max(ROWS)), RECORDING_SECONDS)
        grey = bytes(BYTES)
        self._engine.result(self.compute(self._staged([grey, grey])))

    def predict_rows(self, rows: Sequence[model.Row]) -> Sequence[model.Row]:
        """See `model.RawModel`."""
        return self.finish(self.compute(self.prepare(rows)))

    def prepare(self, rows: Sequence[model.Row]) -> engine.Staged:
        """See `model.StagedModel`."""
        return self._staged([_pixels(place, row) for place, row in enumerate(rows)])

    def compute(self, prepared: engine.Staged) -> engine.Staged:
        """See `model.StagedModel`."""
        return self._engine.start(prepared)

    def finish(self, computed: engine.Staged) -> Sequence[model.Row]:
        """The most likely classes, by number, and the share of each: `{"classes": […], "scores": […]}`."""
        found = self._engine.result(computed)
        classes = vectors.texts(np.ascontiguousarray(found[:, BEST:]).astype(np.int32))
        scores = vectors.texts(np.ascontiguousarray(found[:, :BEST]))
        return [b'{"classes":%b,"scores":%b}' % each for each in zip(classes, scores, strict=True)]

    def _staged(self, pictures: list[bytes]) -> engine.Staged:
        batch = self._engine.stage([1] * len(pictures))
        for each, memory in zip(batch.passes, batch.inputs(), strict=True):
            rows = memory.reshape(each.rows, BYTES)
            for row, index in zip(rows, each.indices, strict=False):
                row[:] = np.frombuffer(pictures[index], np.uint8)
        return batch


def _pixels(place: int, row: model.Row) -> bytes:
    pixels = _usual(memoryview(row))
    if pixels is None:
        try:
            pixels = _PICTURE.decode(row).b64
        except msgspec.DecodeError as error:
            raise model.InvalidInstances(f"instance {place} {_FORM}: {error}") from None
    if len(pixels) != BYTES:
        raise model.InvalidInstances(f"instance {place} {_FORM}; it has {len(pixels)} bytes")
    return pixels


def _usual(row: memoryview) -> bytes | None:
    """The bytes of a row without spaces, as most clients write it, read by what is fastest. None for any other row."""
    if pybase64 is None or row[: len(_HEAD)] != _HEAD or row[-len(_TAIL) :] != _TAIL:
        return None
    try:
        found: bytes = pybase64.b64decode(row[len(_HEAD) : -len(_TAIL)], validate=True)
    except ValueError:  # no base64; or JSON that is written with escapes
        return None
    return found


class Pictures:
    """The network of a pass: pixels to the `BEST` scores of each picture, then the numbers of their classes."""

    kind = torch.uint8
    outputs = 2 * BEST

    def __init__(self, network: vit_network.Network) -> None:
        self._network = network

    def inputs(self, rows: int, width: int) -> int:
        return rows * BYTES

    def __call__(self, inputs: torch.Tensor, rows: int, width: int) -> torch.Tensor:
        """`width` is 1: a picture."""
        side = vit_network.SIDE
        logits = self._network(inputs[: rows * BYTES].view(rows, side, side, 3))
        scores, classes = logits.float().softmax(1).topk(BEST, dim=1)
        return torch.cat([scores, classes.float()], 1)  # float32 holds whole numbers up to 16 million
