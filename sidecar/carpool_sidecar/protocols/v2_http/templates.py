"""What a request says beside its data and its id: its tensors, what may share a batch with it, what it wants back.

Clients send the same text again and again, so each text is understood once (`json_bodies.BodySplitter`).
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import v2
from carpool_sidecar.protocols.v2_http import answers, declarations, json_bodies, json_lists


class BatchSignature(NamedTuple):
    """What requests have in common that may share a batch; `key` is a digest of all of it.

    `inputs` are theirs as JSON, to be completed; `parameters` and `others` are the request's, as written. `outputs` is
    what it says of each output that it lists, members and parameters, without what `answers.WantedOutputs` says.
    """

    key: bytes
    inputs: tuple[declarations.TensorText, ...]
    parameters: tuple[bytes, ...]
    others: tuple[bytes, ...]
    outputs: tuple[tuple[bytes, tuple[bytes, ...]], ...] | None


class RequestTemplate(json_bodies.Template):
    """One request's text without its data. `response_format` is that of callers without an id beside that text."""

    __slots__ = ("response_format", "row_elements", "rows", "signature")

    def __init__(
        self,
        pieces: tuple[bytes, ...],
        inputs: tuple[declarations.Tensor, ...],
        rows: int,
        signature: BatchSignature,
        response_format: answers.ResponseFormat,
    ) -> None:
        super().__init__(pieces, inputs)
        self.rows = rows
        self.signature = signature
        self.response_format = response_format
        self.row_elements = sum(each.width for each in inputs)
        if len(inputs) == 1 and self.binary_size is None and inputs[0].datatype not in (v2.BYTES, "BOOL"):
            self.numbers = inputs[0].elements


def learn(rest: json_bodies.Rest) -> RequestTemplate:
    """The template of a request.

    Raises `errors.BadRequest`, with the place, for what the protocol does not allow, `v2.Misfit`, and
    `errors.Unbatchable`.
    """
    given = [declarations.read_tensor(f"inputs[{number}]", members) for number, members in enumerate(rest.tensors)]
    about = dict(rest.members)
    parameters = declarations.read_parameters(about, "")
    default = parameters.pop("binary_data_output", b"false")
    asked = _read_outputs(declarations.take(about, "outputs"))
    sequence = {name: json.loads(parameters[name], parse_int=float) for name in v2.SEQUENCE if name in parameters}
    rows = v2.check_batchable(
        [v2.Input(each.name, each.datatype, each.shape, each.parameters, each.written_size is None) for each in given],
        sequence,
        asked.outputs,
    )
    ident = declarations.take(about, "id")
    if ident is not None and (not ident.startswith(b'"') or len(ident) > v2.LONGEST_ID):
        raise errors.Unbatchable(errors.NotBatched.MEMBERS)  # the predictor knows what to say to that
    inputs = []
    for number, each in enumerate(given):
        _check_place_of_data(f"inputs[{number}]", each)
        inputs.append(each.with_size(f"inputs[{number}].parameters"))
    written = [each.text for each in given]
    names = tuple([each.name for each in asked.outputs])
    flags = [None if each is None else _flag(each) for each in asked.flags]
    wanted = answers.WantedOutputs(_flag(default), flags, names)
    unclear = b"" if wanted.is_clear else repr((wanted.default, wanted.listed)).encode()
    texts = tuple(declarations.member(name, raw) for name, raw in parameters.items())
    others = tuple(declarations.member(name, raw) for name, raw in about.items())
    told = repr((written, texts, others, asked.said, unclear)).encode()  # up to four times what the caller wrote
    key = hashlib.blake2b(told, digest_size=16).digest()
    if wanted.is_clear and wanted.listed:
        wanted = answers.WantedOutputs(False, list(map(bool, flags)), names)
    signature = BatchSignature(key, tuple(written), texts, others, asked.said)
    response_format = answers.ResponseFormat.of(ident, wanted)
    return RequestTemplate(rest.pieces, tuple(inputs), rows, signature, response_format)


class _Asked(NamedTuple):
    """The outputs that a request lists, by name and parameters, whether each is wanted in binary, as written, and what
    is said of it: its members and its parameters. `said` is None where there is no list."""

    outputs: tuple[v2.RequestedOutput, ...] = ()
    flags: tuple[bytes | None, ...] = ()
    said: tuple[tuple[bytes, tuple[bytes, ...]], ...] | None = None


def _read_outputs(raw: bytes | None) -> _Asked:
    """What is asked for; raises `errors.BadRequest` for what the protocol does not allow."""
    if raw is None:
        return _Asked()
    try:
        listed = list(map(declarations.object_of, json_lists.items(raw)))
    except msgspec.ValidationError:
        raise errors.BadRequest("'outputs' must be a list of objects") from None
    if len(listed) > v2.MOST_TENSORS:
        raise errors.Unbatchable(errors.NotBatched.OUTPUTS)
    wants, names, said, wanted = [], [], [], list[v2.RequestedOutput]()
    for number, members in enumerate(listed):
        names.append(declarations.read_text(members.pop("name", declarations.MISSING), f"outputs[{number}].name"))
        parameters = declarations.read_parameters(members, f"outputs[{number}].")
        wanted.append(v2.RequestedOutput(names[-1], tuple(parameters)))
        binary = parameters.pop("binary_data", None)
        wants.append(binary)
        texts = tuple(declarations.member(each, raw) for each, raw in parameters.items())
        about = [declarations.member("name", declarations.write_text(names[-1]))]
        about += [declarations.member(each, raw) for each, raw in members.items()]
        said.append((b",".join(about), texts))
    return _Asked(tuple(wanted), tuple(wants), tuple(said))


def _flag(raw: bytes) -> bool:
    """A parameter about binary data; raises `errors.Unbatchable` for anything but true and false."""
    if raw not in (b"true", b"false"):
        raise errors.Unbatchable(errors.NotBatched.OUTPUTS)  # the predictor knows what to say to that
    return raw == b"true"


def _check_place_of_data(place: str, given: declarations.Tensor) -> None:
    """Raises `errors.BadRequest` for data in two places, and `v2.Misfit` for data in none."""
    if given.written_size is not None and given.has_data:
        raise errors.BadRequest(f"{place} needs either 'data' or the parameter 'binary_data_size', and not both")
    if given.written_size is None and not given.has_data:
        raise v2.Misfit(f"{place} has neither 'data' nor the parameter 'binary_data_size'")
