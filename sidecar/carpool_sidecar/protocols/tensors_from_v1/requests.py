"""Finds each input's values in a v1 body, whichever way they are arranged.

- Rows: `instances` (or `inputs`) is a list; each instance is the one input's value, or an object of values by the
  inputs' names. `{"b64": …}` is a value for a model whose one input is BYTES.
- Columns, as in TensorFlow Serving's REST API: `inputs` is an object of lists, each with a value for every instance.
  For a model without a batch dimension they are the tensors of a single instance.

`signature_name` is passed over, as TensorFlow Serving's clients always send it and v2 has no signatures. Any other
member is refused: what it asks for could not be passed on.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import json_members, models, steps, v1, v2
from carpool_sidecar.protocols.tensors_from_v1 import columns, values

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PASSED_OVER = frozenset({"signature_name"})
_PLACE = re.compile(r" - at `\$\[(\d+)\]")
_MISTAKES = (
    (re.compile(r"missing required field `(.*)` - at"), "lacks the input '%s'"),
    (re.compile(r"contains unknown field `(.*)` - at"), "has '%s', which is no input of the model"),
    (re.compile(r"Expected `object`, got `(\w+)`"), "must be an object of values by the inputs' names; given: %s"),
)
_UNNAMEABLE = frozenset('"\\') | frozenset(map(chr, range(32)))


class Reader:
    """Reads requests for one model's `inputs`, of which there is one at least.

    `has_rows` says whether tensors have a batch dimension, which instances then lack.
    """

    def __init__(self, inputs: Sequence[models.TensorSpec], has_rows: bool) -> None:
        self._inputs = tuple(inputs)
        self._has_rows = has_rows
        self._names = ", ".join(spec.name for spec in inputs)
        self._objects = _objects(self._inputs)

    def read(self, body: bytes, max_rows: int) -> steps.Steps[Iterator[columns.Values]]:
        """The values of each input that is there; at least one is.

        Raises `errors.BadRequest`, and `errors.PayloadTooLarge` for more than `max_rows` instances.
        """
        try:
            if len(body) < v1.LARGE:
                payload = v1.parse_request(body, max_rows, mixes=True)
            else:
                payload = yield from v1.parse_in_steps(body, max_rows, mixes=True)
        except errors.Unbatchable:
            try:
                members = yield from json_members.find(body)
                _refuse_others(members.keys() - {"inputs"})
                whole = members["inputs"]
                given = yield from json_members.find(body, whole.value, whole.stop)
            except errors.Unbatchable:
                told = f"an object in the request has more than {json_members.MOST} members"
                raise errors.BadRequest(told) from None
            return self._columns({name: body[at.value : at.stop] for name, at in given.items()}, max_rows)
        if payload.others:
            try:
                _refuse_others(_OBJECT.decode(b"{%b}" % payload.others))
            except msgspec.DecodeError as error:
                raise errors.BadRequest(f"a member cannot be read: {error}") from None
        return self._rows(payload.rows, payload.text)

    # --- rows --------------------------------------------------------------------------------------------------

    def _rows(self, rows: Sequence[v2.Data], text: v2.Data) -> Iterator[columns.Values]:
        if len(self._inputs) == 1 and self._is_value(rows[0]):
            return iter([self._values(self._inputs[0], rows, text)])
        return self._rows_by_name(text)

    def _is_value(self, row: v2.Data) -> bool:
        if not columns.begins(row, b"{"):
            return True
        return self._inputs[0].datatype == v2.BYTES and values.is_base64(row)

    def _rows_by_name(self, text: v2.Data) -> Iterator[columns.Values]:
        instances = self._decode(text)
        found = 0
        for place, spec in enumerate(self._inputs):
            rows = list(map(operator.attrgetter(f"input{place}"), instances))
            missing = rows.count(_ABSENT) if spec.is_optional else 0
            if missing == len(rows):
                continue
            if missing:
                lacking = rows.index(_ABSENT)
                raise errors.BadRequest(f"instance {lacking} lacks the input {spec.name!r}, which others have")
            found += 1
            yield self._values(spec, rows)
        if not found:
            raise errors.BadRequest(f"the instances have none of the model's inputs {self._names}")

    def _decode(self, text: v2.Data) -> list[Any]:
        try:
            return self._objects.decode(text)
        except msgspec.ValidationError as error:
            place = _PLACE.search(str(error))
            what = next(
                (words % match[1] for pattern, words in _MISTAKES if (match := pattern.search(str(error)))), error
            )
            where = f"instance {place[1]}" if place else "an instance"
            raise errors.BadRequest(f"{where} {what}; the model's inputs: {self._names}") from None
        except msgspec.DecodeError as error:  # half of a surrogate pair
            raise errors.BadRequest(f"an instance has a string that cannot be read: {error}") from None

    # --- columns -----------------------------------------------------------------------------------------------

    def _columns(self, given: Mapping[str, bytes], max_rows: int) -> Iterator[columns.Values]:
        specs = {spec.name: spec for spec in self._inputs}
        if unknown := given.keys() - specs:
            raise errors.BadRequest(f"'inputs' has {min(unknown)!r}; the model's inputs: {self._names}")
        missing = [spec.name for spec in self._inputs if spec.name not in given and not spec.is_optional]
        if missing or not given:
            raise errors.BadRequest(f"'inputs' lacks {missing[0] if missing else 'any input'!r}")
        count: int | None = None
        for name, text in given.items():
            values = self._column(specs[name], text, max_rows)
            count = len(values.rows) if count is None else count
            if len(values.rows) != count:
                raise errors.BadRequest(f"'inputs' has {len(values.rows)} values of {name!r}, but {count} of others")
            yield values

    def _column(self, spec: models.TensorSpec, text: bytes, max_rows: int) -> columns.Values:
        if not self._has_rows:
            return self._values(spec, [text])
        if not columns.begins(text, b"["):
            raise errors.BadRequest(f"'inputs' must have a list for {spec.name!r}, with a value for each instance")
        payload = v1.parse_request(b'{"inputs":%b}' % text, max_rows, mixes=True)
        return self._values(spec, payload.rows, payload.text)

    def _values(self, spec: models.TensorSpec, rows: Sequence[v2.Data], text: v2.Data | None = None) -> columns.Values:
        shape: columns.Shape = spec.shape[1:] if self._has_rows else spec.shape
        return columns.Values(spec, shape, rows, b"[%b]" % b",".join(rows) if text is None else text)


_ABSENT = msgspec.Raw()


def _objects(inputs: Sequence[models.TensorSpec]) -> msgspec.json.Decoder[list[Any]]:
    """A decoder of instances that are objects by the inputs' names."""
    if any(_UNNAMEABLE.intersection(spec.name) for spec in inputs):
        raise errors.BadRequest("the model has an input whose name JSON can only have in escapes")
    places = {f"input{place}": spec for place, spec in enumerate(inputs)}
    fields: list[Any] = [
        (field, msgspec.Raw, _ABSENT) if spec.is_optional else (field, msgspec.Raw) for field, spec in places.items()
    ]
    rename = {field: spec.name for field, spec in places.items()}
    kind = msgspec.defstruct("Instance", fields, rename=rename, forbid_unknown_fields=True, kw_only=True)
    return msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]


def _refuse_others(names: Iterator[str] | Any) -> None:
    if others := sorted(set(names) - _PASSED_OVER):
        raise errors.BadRequest(f"the member {others[0]!r} cannot be passed on to a predictor that speaks v2")
