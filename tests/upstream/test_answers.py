"""What bytes are an answer, when it is complete, and what follows from how it ends; no sockets."""

from __future__ import annotations

import contextlib
import itertools
import tracemalloc

import hypothesis
import pytest
from hypothesis import strategies

from carpool_sidecar import errors
from carpool_sidecar.protocols import interface
from carpool_sidecar.upstream import connection, predictor
from tests.upstream.wire import CHUNKED


class Read:
    """Reads one answer after the other, as a batch's connection does."""

    def __init__(self, max_bytes: int = 1000) -> None:
        self.reader = connection.AnswerReader()
        self._client = predictor.HttpPredictor("http://h:1", 1.0, max_bytes)
        self._outcomes: list[predictor.Outcome] = []
        self._begin()

    def _begin(self) -> None:
        self._post = predictor.Post(self._client, 0.0, self._outcomes.append, None)

    def feed(self, data: bytes) -> predictor.Outcome | None:
        """The outcome, if the answer is complete with this data; raises what is wrong with it."""
        return self.take(self.reader.feed(memoryview(data)))

    def take(self, part: connection.Part) -> predictor.Outcome | None:
        self._post.answer_came(part)
        if not self._outcomes:
            return None
        self._begin()
        outcome = self._outcomes.pop()
        if isinstance(outcome, errors.UpstreamError) and not isinstance(outcome, errors.UpstreamStatus):
            raise outcome
        return outcome


def read(data: bytes, *cuts: int, max_bytes: int = 1000, ended: bool = False):
    """Feed `data`, cut at these places; returns (outcome, may be used again), or None if it is not complete."""
    reading = Read(max_bytes)
    edges = [0, *sorted(cuts), len(data)]
    outcome = None
    for start, stop in itertools.pairwise(edges):
        if start < stop:
            assert outcome is None, "complete too early"
            outcome = reading.feed(data[start:stop])
    if outcome is None and ended:
        with contextlib.suppress(errors.UpstreamBroken, errors.UpstreamClosed):
            outcome = reading.take(reading.reader.end())
    return None if outcome is None else (bare(outcome), not reading.reader.is_spent)


def bare(outcome):
    """A good answer by its body."""
    return outcome.body if isinstance(outcome, interface.UpstreamResponse) else outcome


COMPLETE = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", True),
    "lower case": (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-type: x/y\r\n\r\nhello", True),
    "upper case": (b"HTTP/1.1 200 OK\r\nCONTENT-LENGTH: 5\r\nCONNECTION: CLOSE\r\n\r\nhello", False),
    "no reason phrase": (b"HTTP/1.1 200 \r\nContent-Length: 5\r\n\r\nhello", True),
    "connection close": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", False),
    "http/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", False),
    "http/1.0 kept alive": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello", True),
    "http/1.0 in chunks": (
        CHUNKED.replace(b"/1.1", b"/1.0").replace(b"\r\n", b"\r\nConnection: keep-alive\r\n", 1)
        + b"5\r\nhello\r\n0\r\n\r\n",
        False,
    ),
    "chunks": (CHUNKED + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n", True),
    "chunks and trailers": (CHUNKED + b"5\r\nhello\r\n0\r\nDigest: x\r\nExpires: 0\r\n\r\n", True),
    "chunked in capitals": (CHUNKED.replace(b"chunked", b"Chunked") + b"5\r\nhello\r\n0\r\n\r\n", True),
    "after 100": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", True),
    "after 103 and 102": (
        b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\nContent-Encoding: br\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        True,
    ),
    "no coding": (b"HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello", True),
}


@pytest.mark.parametrize("name", COMPLETE)
def test_an_answer_is_the_same_however_it_is_cut(name):
    data, again = COMPLETE[name]
    assert read(data) == (b"hello", again)
    assert read(data, *range(len(data))) == (b"hello", again)
    for cut in range(1, len(data)):
        assert read(data, cut) == (b"hello", again)
        assert read(data[:cut]) is None


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_an_answer_without_a_length_ends_with_its_connection(version):
    data = b"HTTP/%b 200 OK\r\nContent-Type: application/json\r\n\r\nhello" % version
    assert read(data) is None
    for cut in range(len(data)):
        assert read(data, cut, ended=True) == (b"hello", False)


@pytest.mark.parametrize("name", ["length", "chunks", "chunks and trailers", "http/1.0", "after 100"])
def test_the_end_of_the_connection_completes_no_answer_that_has_a_length(name):
    data, _ = COMPLETE[name]
    for cut in range(len(data)):
        assert read(data[:cut], ended=True) is None


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_no_body_whatever_their_headers_say(status):
    outcome, again = read(b"HTTP/1.1 %d None\r\nContent-Length: 7\r\n\r\n" % status)
    assert not again  # the body that they say may come after all
    if status == 204:
        assert outcome == b""
    else:
        assert (outcome.status, outcome.body) == (304, b"")


def test_whether_an_answer_has_begun_does_not_count_informational_ones():
    def ends_as():
        return type(reader.lost().error)

    reader = connection.AnswerReader()
    assert ends_as() is errors.UpstreamClosed
    reader.feed(memoryview(b"HTTP/1.1 100 Conti"))
    assert ends_as() is errors.UpstreamBroken
    reader.feed(memoryview(b"nue\r\n\r\n"))
    assert ends_as() is errors.UpstreamClosed
    reader.feed(memoryview(b"H"))
    assert ends_as() is errors.UpstreamBroken


BROKEN = {
    "html": b"<html>secret</html>",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\n"),
    "a length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "a chunk that is none": CHUNKED + b"secret\r\n",
    "an unfinished chunk": CHUNKED + b"2\r\nsecret",
    "a control character": b"HTTP/1.1 200 OK\r\nA: secret\x01\r\n\r\n",
    "a folded header": b"HTTP/1.1 200 OK\r\nA : secret\r\n\r\n",
    "upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nsecret",
    "upgrade to nothing": b"HTTP/1.1 101 Switching Protocols\r\n\r\nsecret",
    "status 99": b"HTTP/1.1 099 Low\r\nContent-Length: 6\r\n\r\nsecret",
    "status 600": b"HTTP/1.1 600 High\r\nContent-Length: 6\r\n\r\nsecret",
    "compressed": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 6\r\n\r\nsecret",
    "compressed in transfer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n6\r\nsecret\r\n0\r\n\r\n",
    "coded in two lines": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n"
    b"6\r\nsecret\r\n0\r\n\r\n",
    "compressed to the end": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nsecret",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_answer_is_told_without_quoting_it(name):
    with pytest.raises(errors.UpstreamBroken) as caught:
        read(BROKEN[name])
    assert str(caught.value).startswith("the predictor's answer ")
    assert "secret" not in str(caught.value)
    with pytest.raises(errors.UpstreamBroken):
        read(BROKEN[name], *range(len(BROKEN[name])))


@pytest.mark.parametrize("behind", [b"H", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother", b"\0", b"<"])
@pytest.mark.parametrize("name", ["length", "chunks", "connection close", "chunks and trailers"])
def test_bytes_behind_an_answer_change_nothing_but_end_the_connection(name, behind):
    assert read(COMPLETE[name][0] + behind) == (b"hello", False)


def test_a_reader_reads_one_answer_after_the_other():
    reading = Read()
    for name in ("chunks and trailers", "length", "after 100", "length"):
        assert bare(reading.feed(COMPLETE[name][0])) == b"hello"
        assert not reading.reader.is_spent
        assert reading.reader.state is connection.State.AWAITED
    refusal = reading.feed(b"HTTP/1.1 400 Bad\r\nAllow: GET\r\nContent-Length: 2\r\n\r\nno")
    assert refusal.headers == (("Allow", "GET"),)
    refusal = reading.feed(b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n")
    assert (refusal.body, refusal.headers) == (b"", ())


def test_a_refusal_tells_the_headers_of_its_head_only_the_first_of_each():
    head = b"HTTP/1.1 401 No\r\nWWW-AUTHENTICATE: Basic\r\nwww-authenticate: Bearer\r\nX-Other: x\r\n"
    refusal, _ = read(head + b"Transfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\nRetry-After: 1\r\n\r\n")
    assert (refusal.status, refusal.body) == (401, b"no")
    assert refusal.headers == (("WWW-Authenticate", "Basic"),)


@pytest.mark.parametrize("value", [b"\xff", "\u200b".encode(), b""])
def test_headers_of_a_refusal_that_cannot_be_printed_are_left_out(value):
    refusal, _ = read(b"HTTP/1.1 400 No\r\nAllow: %b\r\nRetry-After: 2\r\nContent-Length: 0\r\n\r\n" % value)
    assert refusal.headers == (("Retry-After", "2"),)


@pytest.mark.parametrize("size", [10, 11])
@pytest.mark.parametrize("framing", ["length", "chunks", "end"])
def test_a_body_may_be_as_large_as_the_limit_and_no_larger(size, framing):
    body = b"x" * size
    data = {
        "length": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (size, body),
        "chunks": CHUNKED + b"".join(b"1\r\nx\r\n" for _ in body) + b"0\r\n\r\n",
        "end": b"HTTP/1.1 200 OK\r\n\r\n" + body,
    }[framing]
    if size == 10:
        assert read(data, max_bytes=10, ended=True)[0] == body
        return
    with pytest.raises(errors.UpstreamBroken, match="larger than 10 bytes"):
        read(data, max_bytes=10)


def test_a_length_over_the_limit_is_enough_to_refuse():
    with pytest.raises(errors.UpstreamBroken, match="larger than 10 bytes"):
        read(b"HTTP/1.1 400 Bad\r\nContent-Length: 11\r\n\r\n", max_bytes=10)


ENDLESS = {
    "a header": (b"HTTP/1.1 200 OK\r\nA: ", b"x" * 1024),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 200),
    "a reason phrase": (b"HTTP/1.1 200 ", b"x" * 1024),
    "informational answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 40),
    "a chunk extension": (CHUNKED + b"1;", b"x" * 1024),
    "a chunk size": (CHUNKED, b"0" * 1024),
    "a trailer": (CHUNKED + b"1\r\nx\r\n0\r\nA: ", b"x" * 1024),
    "trailers": (CHUNKED + b"1\r\nx\r\n0\r\n", b"A: b\r\n" * 200),
    "line ends": (b"", b"\r\n" * 512),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_is_no_body_and_does_not_end_is_broken_off_at_64_kibibytes(name):
    begin, more = ENDLESS[name]
    reader = Read()
    fed = 0
    with pytest.raises(errors.UpstreamBroken):  # noqa: PT012 - the last of them raises
        for data in (begin, *[more] * 100):
            if data:
                reader.feed(data)
                fed += len(data)
    assert fed < 64 * 1024


def test_a_head_of_60_kilobytes_is_fine():
    data = b"HTTP/1.1 200 OK\r\nA: %b\r\nContent-Length: 5\r\n\r\nhello" % (b"x" * 60_000)
    assert read(data, *range(0, len(data), 1000)) == (b"hello", True)


def test_a_large_answer_in_many_pieces_is_whole():
    body = bytes(range(256)) * 4096
    data = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    outcome, again = read(data, *range(0, len(data), 10_007), max_bytes=len(body))
    assert again
    assert type(outcome) is bytes
    assert outcome == body


def test_tiny_chunks_take_little_more_memory_than_what_is_in_them():
    reader = Read(10_000_000)
    chunks = b"2\r\nab\r\n" * 8000
    reader.feed(CHUNKED)
    tracemalloc.start()
    try:
        for _ in range(50):
            reader.feed(chunks)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    assert bare(reader.feed(b"0\r\n\r\n")) == b"ab" * 400_000


@hypothesis.given(strategies.binary(max_size=200), strategies.lists(strategies.integers(0, 260), max_size=6))
def test_no_bytes_at_all_bring_anything_but_an_outcome_or_a_clean_error(tail, cuts):
    told = []
    for begin in (b"", b"HTTP/1.1 200 OK\r\n", CHUNKED):
        data = begin + tail
        reader = Read(50)
        edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
        try:
            for start, stop in itertools.pairwise(edges):
                if start < stop:
                    reader.feed(data[start:stop])
        except errors.UpstreamBroken as error:
            told.append(str(error))
    assert all(told)


@hypothesis.given(strategies.binary(max_size=80), strategies.data())
def test_a_body_comes_back_whole_from_any_chunks_in_any_pieces(body, data):
    sizes = data.draw(strategies.lists(strategies.integers(1, 20), max_size=20))
    chunks, at = [], 0
    for size in sizes:
        if body[at : at + size]:
            chunks.append(b"%x\r\n%b\r\n" % (len(body[at : at + size]), body[at : at + size]))
        at += size
    message = CHUNKED + b"".join(chunks) + b"0\r\n\r\n"
    cuts = data.draw(strategies.lists(strategies.integers(1, len(message)), max_size=10))
    assert read(message, *cuts) == (body[:at], True)


def test_trailers_are_none_of_the_headers():
    reader = Read()
    trailers = b"Inference-Header-Content-Length: 3\r\nTransfer-Encoding: gzip\r\n\r\n"
    outcome = reader.feed(CHUNKED + b"1\r\nx\r\n0\r\n" + trailers)
    assert outcome.headers == {b"transfer-encoding": b"chunked"}
    assert outcome.fields == []


@pytest.mark.parametrize("status", [102, 110, 199])
def test_an_informational_answer_with_a_body_is_none(status):
    early = b"HTTP/1.1 %d x\r\nContent-Length: 5\r\n\r\nearly" % status
    with pytest.raises(errors.UpstreamBroken, match="and a body" if status > 102 else "not valid HTTP"):
        read(early + COMPLETE["length"][0])


def test_a_large_piece_of_a_body_leaves_room_for_what_is_none_behind_it():
    reader = connection.LenientReader()
    reader.feed(memoryview(CHUNKED))
    size = reader.most_overhead - len(b"3fff9\r\n")
    part = reader.feed(memoryview(b"3fff9\r\n" + b"x" * size))
    assert len(part.body) == size
    assert reader.feed(memoryview(b"\r\n")).error is None


def told(reader: connection.AnswerReader, *pieces: bytes) -> tuple[object, ...] | None:
    """What these pieces of an answer come to, and whether another may follow it; None if that is an error."""
    informed, heads, bodies, trailers = [], [], [], []
    for piece in filter(None, pieces):
        part = reader.feed(memoryview(piece))
        if part.error:
            return None
        informed += [head[:6] for head in part.informed]
        heads += [part.head[:6]] if part.head else []
        bodies.append(part.body)
        trailers += [part.trailers] if part.trailers is not None else []
    return informed, heads, b"".join(bodies), trailers, reader.is_spent, reader.state


_WHOLE = strategies.sampled_from([
    *(data for data, _ in COMPLETE.values()), b"\r\n" + COMPLETE["length"][0], COMPLETE["length"][0] + b"more",
    b"HTTP/1.1 200 OK\nContent-Length: 4\n\n\r\n\r\n", b"HTTP/1.1 204 \r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 404 No\r\nDate: Mon\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\nhi",
    b"HTTP/1.1 103 Early Hints\r\nConnection: close\r\n\r\n", b"HTTP/1.0 100 Continue\r\n\r\n",
])  # fmt: skip
_CHANGED = strategies.tuples(
    _WHOLE,
    strategies.integers(0, 200),
    strategies.integers(0, 3),
    strategies.one_of(strategies.binary(max_size=3), _WHOLE),
).map(lambda drawn: drawn[0][: drawn[1]] + drawn[3] + drawn[0][drawn[1] + drawn[2] :])


@hypothesis.given(
    strategies.lists(
        strategies.tuples(strategies.one_of(_WHOLE, _WHOLE, _CHANGED), strategies.booleans()), min_size=1, max_size=6
    )
)
def test_an_answer_whose_head_came_before_is_what_the_parser_makes_of_it(answers):
    whole, cut = connection.LenientReader(), connection.LenientReader()
    for data, is_head in [*answers, *answers]:
        whole.is_head = cut.is_head = is_head
        one, other = told(whole, data), told(cut, data[:1], data[1:])
        assert one == other
        if one is None or whole.is_spent or whole.state is not connection.State.AWAITED:
            whole.close()
            cut.close()
            whole, cut = connection.LenientReader(), connection.LenientReader()


def test_an_informational_answer_that_ends_the_connection_is_none():
    reader = connection.LenientReader()
    reader.feed(memoryview(COMPLETE["length"][0]))
    part = reader.feed(memoryview(b"HTTP/1.1 100 Continue\r\nConnection: close\r\n\r\n"))
    assert str(part.error) == "the predictor's answer has the status 100 and ends the connection"


@pytest.mark.parametrize("end", [b"\nContent-Length: 4\n\n\r\n", b"\r\nContent-Length: 4\n\r\n"])
def test_a_head_that_ends_in_a_line_without_cr_is_not_remembered_with_the_body_behind_it(end: bytes) -> None:
    start = b"HTTP/1.1 200 OK" + end
    reader, alone = connection.LenientReader(), connection.LenientReader()
    reader.feed(memoryview(start + b"\r\n\r\n\r\n"))
    found, expected = (each.feed(memoryview(start + b"\r\nabcd")) for each in (reader, alone))
    assert (found.body, reader.is_spent) == (expected.body, alone.is_spent)
    assert reader.is_spent
