"""Rerank requests, and scores, for a predictor that speaks only v2."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import orjson

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import json_rows, models, steps, v2
from carpool_sidecar.protocols.lists import rules
from carpool_sidecar.protocols.pairs import dialects
from carpool_sidecar.protocols.tensors_from_pairs import signatures
from carpool_sidecar.protocols.tensors_from_v1 import codec, columns, outputs

_TEXTS = msgspec.json.Decoder(list[str])
_ROWS_A_STEP = 500


@dataclasses.dataclass(slots=True)
class _Beside(columns.Column):
    """Instances of which each begins with the same string, which is only put `before` them when they are sent."""

    before: bytes = b""

    def sizes(self, start: int, stop: int) -> list[int]:
        """See `columns.Column`."""
        bounds = self.bounds or (0,) * (self.rows + 1)
        return [len(self.before) + bounds[row + 1] - bounds[row] for row in range(start, stop)]

    def cut(self, start: int, stop: int) -> v2.Data:
        """See `columns.Column`."""
        bounds = self.bounds or (0,) * (self.rows + 1)
        return b"".join([self.before + self.data[bounds[row] : bounds[row + 1]] for row in range(start, stop)])


class Codec(codec.Codec[signatures.Signature]):
    """See `codec.Codec`; requests are by the `chosen` rules."""

    # State beside the base's: by the names of some of the rules, the codecs for those.
    list_name = b"results"

    def __init__(
        self,
        name: models.ModelName,
        info: models.ModelInfo,
        transport: codec.Transport,
        chosen: Sequence[rules.Rule],
        on_part: Callable[[str], None] | None = None,
    ) -> None:
        self._chosen = tuple(chosen)
        self._of: dict[tuple[str, ...], Codec] = {}
        self.most_rows = min([most for rule in chosen if (most := dialects.most_rows(rule))], default=sys.maxsize)
        super().__init__(name, info, transport, on_part)

    def of(self, chosen: Sequence[rules.Rule]) -> Codec:
        """The codec of the same model for some of its rules, as those of a path are."""
        names = tuple([rule.name for rule in chosen])
        found = self._of.get(names)
        if found is None:
            found = self._of[names] = Codec(self._name, self.info, self._transport, chosen, self._on_part)
        if found.info is not self.info:
            found.info = self.info  # the predictor told anew
        return found

    def understand(self, info: models.ModelInfo, has_rows: bool) -> signatures.Signature:
        """Raises `errors.BadMember` if the model cannot score pairs."""
        return signatures.read(info, has_rows)

    def read(self, body: bytes, max_rows: int) -> steps.Steps[codec.Asked]:
        """One column of pairs, or one of queries and one of documents."""
        asked = yield from dialects.read(self._chosen, body, max_rows)
        for name, value in asked.others.items():
            if value not in (b"null", b"false") and name not in _HARMLESS:
                raise asked.refuse(
                    "cannot be passed on to a predictor that speaks v2, unless the rule has it under 'ignore'", name
                )
        query = v2.pack(_strings(asked, [asked.query], 0))
        documents: list[bytes] = []
        for at in range(0, len(asked.texts), _ROWS_A_STEP):
            strings = _strings(asked, asked.texts[at : at + _ROWS_A_STEP], at)
            documents += [v2.pack([string]) for string in strings]
            yield
        rows, bounds = len(documents), (0, *itertools.accumulate(map(len, documents)))
        found, shape, data = self.model, self.model.shape, b"".join(documents)
        first, *more = [spec.name for spec in found.inputs]
        made: tuple[columns.Column, ...]
        if more:
            queries = _Beside(first, v2.BYTES, shape, rows, b"", None, query)
            made = (queries, columns.Column(more[0], v2.BYTES, shape, rows, data, bounds))
        else:
            made = (_Beside(first, v2.BYTES, shape, rows, data, bounds, query),)
        taken = (yield from asked.room()) if asked.rule.has_room else ()
        wanted = () if found.output is None else (found.output,)
        return codec.Asked(made, wanted, found.before, asked.form, asked.rule.name, taken, len(query) * (rows - 1))

    def write(
        self, tensors: Sequence[models.Tensor], asked: Sequence[str], rows: int | None, shares: codec.Shares
    ) -> steps.Steps[messages.Rows]:
        """Scores, with as many digits as they need; of NaN and infinities, which JSON has not, `null`."""
        yield
        named = [tensor for tensor in tensors if not asked or tensor.name == asked[0]]
        if len(named) != 1:
            given = ", ".join(tensor.name for tensor in tensors) or "none"
            raise errors.UpstreamBroken(
                f"the predictor's answer has {len(named)} outputs of scores; its outputs: {given}"
            )
        array = outputs.array_of(named[0])
        if array.dtype.kind != "f" or array.size != (1 if rows is None else rows):
            raise errors.UpstreamBroken(
                f"the predictor's output {named[0].name!r} has the shape {list(named[0].shape)}, which is not one "
                f"score for each of {rows or 1} rows"
            )
        written = json_rows.LIST.decode(orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY))
        values = [
            value if is_finite else None for value, is_finite in zip(array.tolist(), np.isfinite(array), strict=True)
        ]
        return dialects.Scores(values, [*map(bytes, written)], {})


_HARMLESS = frozenset({"user"})


def _strings(asked: dialects.Asked, texts: Sequence[bytes], at: int) -> list[bytes]:
    """The strings of JSON in UTF-8; `at` is the place of the first in its list."""
    try:
        return [text.encode() for text in _TEXTS.decode(b"[%b]" % b",".join(texts))]
    except (msgspec.DecodeError, UnicodeError):
        what = f"has a text that cannot be read, among items {at} to {at + len(texts) - 1}"
        raise asked.refuse(what, asked.rule.rows[0].text) from None
