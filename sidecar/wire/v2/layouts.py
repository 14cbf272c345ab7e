"""What a request says beside its data and its id: which tensors it has, with whom it can go, what it wants back.

Clients send the same again and again, so it is found out once for each text (`splitting.Cache`), and requests of one
`Kind`, which alone may share a batch, share that object too.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from sidecar import errors
from sidecar.core import model
from sidecar.wire import codec
from sidecar.wire.v2 import asks, datatypes, fields, splitting

_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end", "correlation_id")
_NOTHING = (b"0", b'""', b"false", b"null")  # values with which these say that there is no sequence


class Input(NamedTuple):
    """An input of one request. `size` is that of its data in binary, None for JSON; `width` elements are in a row."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: int
    width: int
    size: int | None


class InputText(NamedTuple):
    """An input as JSON: the number of rows stands after `head`, data after `json`, their size after `binary`."""

    head: bytes
    json: bytes
    binary: bytes


class Kind:
    """What requests have in common that may share a batch; `key` is all of it.

    `inputs` are theirs as JSON, to be completed; `parameters` and `others` are the request's, as written. `outputs` are
    the names of those that it lists, in order, and `output_members` what it says of them, without what `Ask` says.
    """

    __slots__ = ("inputs", "key", "others", "output_members", "outputs", "parameters")

    def __init__(
        self,
        key: bytes,
        inputs: tuple[InputText, ...],
        parameters: tuple[bytes, ...],
        others: tuple[bytes, ...],
        outputs: tuple[str, ...],
        output_members: tuple[tuple[bytes, tuple[bytes, ...]], ...] | None,
    ) -> None:
        self.key = key
        self.inputs = inputs
        self.parameters = parameters
        self.others = others
        self.outputs = outputs
        self.output_members = output_members


class Result(Protocol):
    """What one batch came to, or a run of its rows."""

    def render(self, form: Form, shares: Sequence[model.Piece]) -> codec.Content:
        """One caller's answer, of shares of which the first is of this result."""
        ...


class Form(abc.ABC):
    """How one caller wants its answer: `opening` is its beginning, with the caller's id as written, or None."""

    __slots__ = ("opening",)

    def __init__(self, ident: bytes | None) -> None:
        self.opening = b"{" if ident is None else b'{"id":%b,' % ident

    @property
    @abc.abstractmethod
    def layout(self) -> Layout:
        """The request's."""

    def render(self, shares: Sequence[model.Piece]) -> codec.Content:
        """Raises `errors.UpstreamBroken` if shares of several batches do not make one tensor."""
        result: Result = shares[0].predictions
        return result.render(self, shares)


class OwnForm(Form):
    """That of a caller with an id of its own."""

    __slots__ = ("_layout",)

    def __init__(self, layout: Layout, ident: bytes) -> None:
        super().__init__(ident)
        self._layout = layout

    @property
    def layout(self) -> Layout:
        """See `Form`."""
        return self._layout


class Layout(Form):
    """One request's text without its data, and the form of all callers whose id, if any, is in that text.

    One object for both: two that know each other would stay in memory until the garbage collector comes, which is
    seldom here.
    """

    __slots__ = (
        "ask", "binary_size", "inputs", "is_json", "kind", "numbers", "pieces", "row_elements", "rows",
    )  # fmt: skip

    def __init__(
        self, pieces: tuple[bytes, ...], inputs: tuple[Input, ...], kind: Kind, ask: asks.Ask, ident: bytes | None
    ):
        super().__init__(ident)
        self.pieces = pieces
        self.inputs = inputs
        self.kind = kind
        self.ask = ask
        self.is_json = ask.is_json
        self.rows = inputs[0].shape[0]
        self.row_elements = sum(each.width for each in inputs)
        sizes = [each.size for each in inputs if each.size is not None]
        self.binary_size = sum(sizes) if sizes else None
        is_numeric = inputs[0].datatype not in (datatypes.BYTES, "BOOL")
        self.numbers = inputs[0].elements if len(inputs) == 1 and not sizes and is_numeric else 0

    @property
    def layout(self) -> Layout:
        """See `Form`."""
        return self


def learn(rest: splitting.Rest) -> Layout:
    """The layout of a request.

    Raises `errors.BadRequest`, with the place, for what the protocol does not allow, and `errors.Unbatchable`.
    """
    inputs, written = [], []
    for number, members in enumerate(rest.tensors):
        read, text = _read_input(f"inputs[{number}]", dict(members))
        inputs.append(read)
        written.append(text)
    _check(inputs)
    about = dict(rest.members)
    ident = fields.pop(about, "id")
    if ident is not None and not bytes(ident).startswith(b'"'):
        raise errors.Unbatchable("members")  # the predictor knows what to say to that
    parameters = fields.parameters(about, "")
    default = asks.flag(parameters.pop("binary_data_output", b"false"))
    if any(parameters.get(name, b"0") not in _NOTHING for name in _SEQUENCE):
        raise errors.Unbatchable("sequence")
    ask, outputs, said = asks.read(fields.pop(about, "outputs"), default)
    unclear = b"" if ask.is_clear else repr(ask).encode()
    texts = tuple(fields.member(name, raw) for name, raw in parameters.items())
    others = tuple(fields.member(name, bytes(raw)) for name, raw in about.items())
    key = repr((written, texts, others, said, unclear)).encode()
    if ask.is_clear and ask.listed is not None:
        ask = asks.Ask(False, tuple(map(bool, ask.listed)))
    kind = Kind(key, tuple(written), texts, others, outputs, said)
    return Layout(rest.pieces, tuple(inputs), kind, ask, None if ident is None else bytes(ident))


def _read_input(place: str, members: splitting.Member) -> tuple[Input, InputText]:
    name, datatype, shape = fields.tensor(place, members)
    parameters = fields.parameters(members, f"{place}.")
    if any(each.startswith("shared_memory_") for each in parameters):
        raise errors.Unbatchable("shared_memory")
    size = parameters.pop("binary_data_size", None)
    if (size is None) is (members.pop("data", None) is None):
        raise errors.BadRequest(f"{place} needs either 'data' or the parameter 'binary_data_size', and not both")
    if datatype not in datatypes.KNOWN or (size is None and datatype not in datatypes.IN_JSON):
        raise errors.Unbatchable("datatype")
    if not shape or not shape[0]:
        raise errors.Unbatchable("shape")
    width = math.prod(shape[1:])
    read = Input(name, datatype, shape, width * shape[0], width, _size(size, datatype, width * shape[0], place, name))
    texts = [b'{"name":%b,"datatype":"%b"' % (msgspec.json.encode(name), datatype.encode())]
    texts += [fields.member(each, bytes(raw)) for each, raw in members.items()]
    said = b",".join(fields.member(each, raw) for each, raw in parameters.items())
    tail = b"".join(b",%d" % each for each in shape[1:]) + b"]"
    return read, InputText(
        b",".join([*texts, b'"shape":[']),
        b"".join((tail, b',"parameters":{%b}' % said if said else b"", b',"data":[')),
        b"".join((tail, b',"parameters":{', said, b"," if said else b"", b'"binary_data_size":')),
    )


def _size(raw: bytes | None, datatype: str, elements: int, place: str, name: str) -> int | None:
    if raw is None:
        return None
    size = fields.size(raw, f"{place}.parameters")
    expected = elements * datatypes.SIZES.get(datatype, 0)
    if size != expected and datatype != datatypes.BYTES:
        told = f"input {name!r}: {elements} elements of {datatype} take {expected} bytes, binary_data_size is {size}"
        raise errors.BadRequest(told)
    return size


def _check(inputs: Sequence[Input]) -> None:
    if not inputs or any(each.shape[0] != inputs[0].shape[0] for each in inputs):
        raise errors.Unbatchable("shape")
    if len({each.name for each in inputs}) < len(inputs):
        raise errors.Unbatchable("members")
