"""What gRPC says in header fields."""

from __future__ import annotations

import urllib.parse

import hypothesis
import pytest
from hypothesis import strategies

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_grpc import metadata
from carpool_sidecar.server.grpc import heads


@pytest.mark.parametrize(
    ("field", "seconds"),
    [(b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"400m", 0.4), (b"50u", 5e-5), (b"6n", 6e-9), (b"0S", 0),
     (b"99999999H", 1e8)],
)  # fmt: skip
def test_timeouts_are_read_in_all_units(field, seconds) -> None:
    assert metadata.timeout(field) == pytest.approx(seconds)


@pytest.mark.parametrize("field", [b"", b"1", b"S", b"-1S", b"1.5S", b"123456789S", b"1s", b" 1S", b"1S "])
def test_what_is_no_timeout_is_refused(field) -> None:
    with pytest.raises(errors.BadRequest, match="grpc-timeout"):
        metadata.timeout(field)


def test_metadata_are_passed_on_without_the_calls_own_fields() -> None:
    fields = (
        (b"content-type", b"application/grpc"), (b"te", b"trailers"), (b"user-agent", b"x"), (b"grpc-timeout", b"1S"),
        (b"grpc-accept-encoding", b"gzip"), (b"authorization", b"me"), (b"x-many", b"1"), (b"x-many", b"2"),
    )  # fmt: skip
    assert metadata.read(fields) == (("authorization", "me"), ("x-many", "1"), ("x-many", "2"))


@pytest.mark.parametrize(
    ("field", "values"),
    [(b"AP8=", [b"\0\xff"]), (b"AP8", [b"\0\xff"]), (b"AP8, AQ,", [b"\0\xff", b"\1", b""]), (b"", [b""])],
)
def test_binary_metadata_are_decoded_with_and_without_padding_and_in_lists(field, values) -> None:
    assert metadata.read([(b"x-bin", field)]) == tuple(("x-bin", value) for value in values)


@pytest.mark.parametrize("field", [(b"x-bin", b"?"), (b"x", b"\xff"), (b"x", b"\x01"), (b"x!", b"a"), (b"x-bin", b"A")])
def test_what_cannot_be_metadata_is_refused(field) -> None:
    with pytest.raises(errors.BadRequest):
        metadata.read([field])


@hypothesis.given(strategies.binary())
def test_binary_metadata_come_out_as_they_went_in(value) -> None:
    ((name, written),) = metadata.write([("x-bin", value)])
    assert metadata.read([(name, written)]) == (("x-bin", value),)
    assert not written.endswith(b"=")


@hypothesis.given(strategies.text())
def test_details_are_percent_encoded(details) -> None:
    fields = dict(metadata.status(5, details))
    assert fields[b"grpc-status"] == b"5"
    written = fields.get(b"grpc-message", b"")
    assert all(0x20 <= byte <= 0x7E for byte in written)
    assert urllib.parse.unquote(written.decode()) == details.encode(errors="replace").decode()


def test_plain_details_stay_readable() -> None:
    assert metadata.status(3, "a 'b', 100% \n")[1] == (b"grpc-message", b"a 'b', 100%25 %0A")


@pytest.mark.parametrize(
    ("content_type", "is_grpc"),
    [(b"application/grpc", True), (b"application/grpc+proto", True), (b"application/grpc;charset=utf-8", True),
     (b"application/grpc-web", False), (b"application/json", False), (b"", False)],
)  # fmt: skip
def test_grpc_is_told_by_its_content_type(content_type, is_grpc) -> None:
    assert heads.is_grpc(content_type) is is_grpc


def test_only_the_key_headers_belong_to_the_batch_key() -> None:
    reader = heads.HeadReader(("authorization", "content-type"))
    fields = ((b"content-type", b"application/grpc"), (b"authorization", b"me"), (b"other", b"x"))
    head = reader.read((*fields, (b"x-request-id", b"7"), (b"grpc-timeout", b"2S"), (b"traceparent", b"t")))
    assert head.shared == (("Authorization", "me"),)
    assert (head.request_id, head.timeout, head.traceparent, head.tracestate) == ("7", 2.0, "t", None)
    assert reader.read(fields) is reader.read(tuple(fields))


def test_an_identity_that_is_no_text_is_refused() -> None:
    with pytest.raises(errors.BadRequest, match="x-request-id"):
        heads.HeadReader(()).read(((b"x-request-id", "ü".encode()),))
