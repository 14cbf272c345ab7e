"""Answers as bytes on the wire: complete, framed so that the next one is found."""

from __future__ import annotations

import email.utils
import json
import time

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.batching import calls
from carpool_sidecar.server import responses
from carpool_sidecar.server.http1 import requests

JSON = (("Content-Type", "application/json"),)


class Reader:
    """Reads answers as a client does; `messages` are the complete ones."""

    def __init__(self, data: bytes) -> None:
        self.messages: list[tuple[int, dict[str, str], bytes]] = []
        self.keep_alive = False
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._body = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        assert name.decode() not in self._headers
        self._headers[name.decode()] = value.decode()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self.keep_alive = self._parser.should_keep_alive()
        self.messages.append((self._parser.get_status_code(), self._headers, self._body))


def render(answer: responses.Response, close: bool = False) -> bytes:
    return b"".join(responses.render(answer, close))


def piece(*rows: bytes, batch_id: str = "an-id", start: int = 0) -> messages.Piece:
    return messages.Piece(start, batch_id, rows)


def without_date(message: bytes) -> list[bytes]:
    return [line for line in message.split(b"\r\n") if not line.startswith(b"Date: ")]


# --- any answer -------------------------------------------------------------------------------------------------


def test_an_answer_has_its_status_headers_length_date_and_body() -> None:
    before = int(time.time())
    [message] = responses.render(responses.Response(429, (*JSON, ("Retry-After", "1")), b"{}"), close=False)
    assert message.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    [(status, headers, body)] = Reader(message).messages
    date = email.utils.parsedate_to_datetime(headers.pop("Date")).timestamp()
    assert before <= date <= time.time()
    assert (status, body) == (429, b"{}")
    assert headers == {"Content-Type": "application/json", "Retry-After": "1", "Content-Length": "2"}
    assert Reader(message).keep_alive


@pytest.mark.parametrize(("close", "answer_closes"), [(True, False), (False, True), (True, True)])
def test_an_answer_that_ends_the_connection_says_so(close: bool, answer_closes: bool) -> None:
    reader = Reader(render(responses.Response(200, JSON, b"{}", answer_closes), close))
    assert reader.messages[0][1]["Connection"] == "close"
    assert not reader.keep_alive


@pytest.mark.parametrize("status", [204, 304])
def test_answers_that_never_have_a_body_have_neither_body_nor_length(status: int) -> None:
    """RFC 9110, 8.6 and RFC 9112, 6.3."""
    message = render(responses.Response(status, (), b"ignored"))
    [(told, headers, body)] = Reader(message).messages
    assert (told, body) == (status, b"")
    assert "Content-Length" not in headers
    assert message.endswith(b"\r\n\r\n")


def test_a_reset_content_says_that_its_body_is_empty() -> None:
    """RFC 9112, 6.3: without a length a client would take all that follows for its body."""
    [(status, headers, body)] = Reader(render(responses.Response(205, (), b"ignored"))).messages
    assert (status, headers["Content-Length"], body) == (205, "0", b"")


@pytest.mark.parametrize(("status", "line"), [(599, b"599 "), (299, b"299 "), (418, b"418 I'm a Teapot")])
def test_a_status_that_nobody_registered_has_no_words(status: int, line: bytes) -> None:
    message = render(responses.Response(status, (), b""))
    assert message.lower().startswith(b"http/1.1 %b\r\n" % line.lower())
    assert Reader(message).messages[0][0] == status


def test_a_large_body_is_a_piece_of_its_own_and_not_copied() -> None:
    small, large = b"x" * responses.LARGE, b"x" * (responses.LARGE + 1)
    assert len(responses.render(responses.Response(200, JSON, small), close=False)) == 1
    head, body = responses.render(responses.Response(200, JSON, large), close=False)
    assert body is large
    assert Reader(head + body).messages[0][2] == large


def test_values_that_are_utf_8_arrive_as_they_came() -> None:
    headers = (("Location", "/größe"),)
    assert Reader(render(responses.Response(301, headers, b""))).messages[0][1]["Location"] == "/größe"


def test_the_date_is_that_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = responses.Response(200, JSON, b"{}")
    for now in (784111777.2, 784111777.9, 784111778.0, 0.0):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        assert f"\r\nDate: {email.utils.formatdate(int(now), usegmt=True)}\r\n".encode() in render(answer)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([200, 400, 204, 304, 429, 500, 599]),
            st.sampled_from([(), JSON, (*JSON, ("Retry-After", "7"))]),
            st.one_of(st.binary(max_size=50), st.just(b"HTTP/1.1 200 OK\r\n\r\n" * 5000)),
        ),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_each_of_several_answers_is_found_where_the_last_one_ended(
    told: list[tuple[int, calls.Headers, bytes]],
) -> None:
    found = Reader(b"".join(render(responses.Response(*each)) for each in told)).messages
    assert [(status, body) for status, _, body in found] == [
        (status, b"" if status in (204, 304) else body) for status, _, body in told
    ]


# --- predictions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [responses.Dialect(), responses.KServeDialect()], ids=["ours", "KServe's"])
@given(
    batches=st.lists(
        st.tuples(
            st.sampled_from([b"predictions", b"outputs"]),
            st.sampled_from([b"", b'"model_name":"m",', b'"model_name":"m","v":1,']),
            st.lists(st.lists(st.sampled_from([b"1", b'"x"', b"[1,2]"]), min_size=1), min_size=1, max_size=3),
        ),
        max_size=5,
    )
)
def test_predictions_are_rendered_as_any_answer_is(
    dialect: responses.Dialect, batches: list[tuple[bytes, bytes, list[list[bytes]]]]
) -> None:
    renderer = requests.Predictions(dialect)
    for number, (list_name, members, answered) in enumerate(batches):
        batch_id = f"batch-{number // 2}"  # two in a row may have equal ids, and members of their own
        for rows in answered:
            pieces = [piece(*rows, batch_id=batch_id)]
            message = renderer.render(list_name, pieces, members)
            assert message is not None
            plain = render(dialect.predictions(calls.Answered(list_name, pieces, members=members)))
            assert sorted(without_date(message)) == sorted(without_date(plain))
            [(_, headers, body)] = Reader(message).messages
            assert (headers["Content-Length"], body) == (str(len(body)), plain.partition(b"\r\n\r\n")[2])


def test_predictions_of_several_batches_and_large_ones_are_for_others_to_render() -> None:
    renderer = requests.Predictions(responses.Dialect())
    assert renderer.render(b"predictions", [piece(b"1"), piece(b"2", batch_id="other", start=1)]) is None
    assert renderer.render(b"predictions", [piece(b"1" * responses.LARGE)]) is None
    empty = len(b'{"message":"","batchId":"an-id","predictions":[]}')
    row = b'"%b"' % (b"x" * (responses.LARGE - empty - 2))
    message = renderer.render(b"predictions", [piece(row)])
    assert message is not None
    assert json.loads(message.partition(b"\r\n\r\n")[2])["predictions"] == [row[1:-1].decode()]
    assert renderer.render(b"predictions", [piece(row + b" ")]) is None


def test_the_next_batch_has_a_date_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = requests.Predictions(responses.Dialect())
    for now in (784111777.0, 784111778.0):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        message = renderer.render(b"predictions", [piece(b"1", batch_id=f"at {now}")])
        assert email.utils.formatdate(int(now), usegmt=True).encode() in (message or b"")


def test_every_error_can_be_rendered() -> None:
    for kind in (errors.BadRequest, errors.BodyTooLate, errors.HeadTooLate, errors.PayloadTooLarge, errors.Draining):
        [(status, headers, body)] = Reader(render(responses.Dialect().error(kind()))).messages
        assert (status, json.loads(body)["error"]) == (errors.STATUSES[kind], kind.message)
        assert headers.get("Connection") == ("close" if kind in errors.CLOSING else None)
