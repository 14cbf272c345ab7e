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

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import datatypes, interface
from carpool_sidecar.protocols.v2_http import json_members, requested_outputs, rules, splitting


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

    def render(self, form: Form, shares: Sequence[messages.Piece]) -> interface.RenderedResponse:
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

    def render(self, shares: Sequence[messages.Piece]) -> interface.RenderedResponse:
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
        self,
        pieces: tuple[bytes, ...],
        inputs: tuple[Input, ...],
        kind: Kind,
        ask: requested_outputs.Ask,
        ident: bytes | None,
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
    given = [_read_input(f"inputs[{number}]", dict(members)) for number, members in enumerate(rest.tensors)]
    about = dict(rest.members)
    parameters = json_members.parameters(about, "")
    default = parameters.pop("binary_data_output", b"false")
    asked = requested_outputs.read(json_members.pop(about, "outputs"))
    sequence = {name: msgspec.json.decode(parameters[name]) for name in rules.SEQUENCE if name in parameters}
    rules.check([each.tensor for each in given], sequence, asked.outputs)
    ident = json_members.pop(about, "id")
    if ident is not None and not bytes(ident).startswith(b'"'):
        raise errors.Unbatchable("members")  # the predictor knows what to say to that
    inputs = [_input(f"inputs[{number}]", each) for number, each in enumerate(given)]
    written = [each.text for each in given]
    ask, said = asked.ask(default), asked.said
    unclear = b"" if ask.is_clear else repr(ask).encode()
    texts = tuple(json_members.member(name, raw) for name, raw in parameters.items())
    others = tuple(json_members.member(name, bytes(raw)) for name, raw in about.items())
    key = repr((written, texts, others, said, unclear)).encode()
    if ask.is_clear and ask.listed is not None:
        ask = requested_outputs.Ask(False, tuple(map(bool, ask.listed)))
    kind = Kind(key, tuple(written), texts, others, tuple([each.name for each in asked.outputs]), said)
    return Layout(rest.pieces, tuple(inputs), kind, ask, None if ident is None else bytes(ident))


class _Given(NamedTuple):
    """An input as it was written: whether it has data in JSON, and the size of its data in binary."""

    tensor: rules.Tensor
    text: InputText
    has_data: bool
    size: bytes | None


def _read_input(place: str, members: splitting.Member) -> _Given:
    name, datatype, shape = json_members.tensor(place, members)
    parameters = json_members.parameters(members, f"{place}.")
    tensor = rules.Tensor(name, datatype, shape, tuple(parameters), "binary_data_size" not in parameters)
    size = parameters.pop("binary_data_size", None)
    has_data = members.pop("data", None) is not None
    texts = [b'{"name":%b,"datatype":%b' % (msgspec.json.encode(name), msgspec.json.encode(datatype))]
    texts += [json_members.member(each, bytes(raw)) for each, raw in members.items()]
    said = b",".join(json_members.member(each, raw) for each, raw in parameters.items())
    tail = b"".join(b",%d" % each for each in shape[1:]) + b"]"
    text = InputText(
        b",".join([*texts, b'"shape":[']),
        b"".join((tail, b',"parameters":{%b}' % said if said else b"", b',"data":[')),
        b"".join((tail, b',"parameters":{', said, b"," if said else b"", b'"binary_data_size":')),
    )
    return _Given(tensor, text, has_data, size)


def _input(place: str, given: _Given) -> Input:
    """Raises `errors.BadRequest` for data that cannot be the tensor's."""
    name, datatype, shape = given.tensor[:3]
    if (given.size is None) is not given.has_data:
        raise errors.BadRequest(f"{place} needs either 'data' or the parameter 'binary_data_size', and not both")
    elements = given.tensor.elements
    size = None if given.size is None else json_members.size(given.size, f"{place}.parameters")
    expected = elements * datatypes.SIZES.get(datatype, 0)
    if size not in (None, expected) and datatype != datatypes.BYTES:
        told = f"input {name!r}: {elements} elements of {datatype} take {expected} bytes, binary_data_size is {size}"
        raise errors.BadRequest(told)
    return Input(name, datatype, tuple(shape), elements, math.prod(shape[1:]), size)
