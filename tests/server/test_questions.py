"""GETs that the fast lane passes on: what the predictor is sent and the client told, whether heads repeat or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from carpool.scheduling import ledger
from carpool_sidecar import drain, metrics
from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server.fast import questions
from carpool_sidecar.upstream import connection

_DATE = b"Date: Mon, 23 Nov 2026 05:33:53 GMT\r\n"


class Relay:
    """Keeps what it was sent, and answers with the bytes it is told to."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.answer = b""
        self._reader = connection.PassedAnswerReader(connection.KnownHeads(), 1000)

    def post(self, target, headers, body, timeout, reply, head=b""):
        self.sent.append(head)
        reply(self._reader.feed(memoryview(self.answer)))
        return self


@pytest.fixture
def relay():
    return Relay()


@pytest.fixture
def life():
    return drain.Lifecycle(ledger.Ledger())


@pytest.fixture
def asked(relay, life):
    """Asks a question, and returns what the client is told."""
    asking, told = questions.Questions(relay, life, metrics.Metrics()), []

    def ask(head: bytes, answer: bytes, peer=("10.0.0.1", 5)):
        relay.answer = answer
        assert asking.ask(head, peer, lambda *answered: told.append(answered)) is not None
        return told.pop()

    return ask


def question(*lines: bytes) -> bytes:
    return b"\r\n".join((b"GET /v1/models HTTP/1.1", b"Host: h", *lines, b"", b""))


def answer(body: bytes, lines: bytes = _DATE) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%b\r\n%b" % (len(body), lines, body)


def test_answers_with_equal_heads_have_their_own_bodies(asked):
    for body in (b"[1]", b"[2]", b"[3]", b"[22]"):
        assert asked(question(), answer(body)) == (answer(body), False)


def test_an_answer_without_a_date_gets_that_of_its_own_time(asked, monkeypatch):
    monkeypatch.setattr(questions.time, "time", lambda: 0.0)
    assert b"Date: Thu, 01 Jan 1970 00:00:00 GMT" in asked(question(), answer(b"[]", b""))[0]
    monkeypatch.setattr(questions.time, "time", lambda: 3600.0)
    assert b"Date: Thu, 01 Jan 1970 01:00:00 GMT" in asked(question(), answer(b"[]", b""))[0]


def test_an_answer_says_that_its_connection_ends_only_where_it_does(asked, life):
    kept = asked(question(), answer(b"[]"))
    life.parting = True
    parted = asked(question(), answer(b"[]"))
    assert parted == (kept[0].replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), True)
    life.parting = False
    assert asked(question(), answer(b"[]")) == kept


def test_each_question_is_passed_on_with_who_asked_it_and_where(asked, relay):
    for peer, host in ((b"10.0.0.1", b"h"), (b"10.0.0.2", b"h"), (b"10.0.0.1", b"i:80")):
        asked(question(b"Accept: */*").replace(b"Host: h", b"Host: " + host), answer(b"[]"), (peer.decode(), 5))
        sent = relay.sent.pop().split(b"\r\n")
        quoted = b'"' + host + b'"' if b":" in host else host
        assert sent == [
            b"GET /v1/models HTTP/1.1", b"Host: " + host, b"Accept: */*", b"X-Forwarded-For: " + peer,
            b"X-Forwarded-Proto: http", b"X-Forwarded-Host: " + host,
            b"Forwarded: for=" + peer + b";host=" + quoted + b";proto=http", b"", b"",
        ]  # fmt: skip


NAMES = (
    "Accept", "Cookie", "X-Request-ID", "Keep-Alive", "Proxy-Authorization", "Connection", "User-Agent", "Content-Type",
    "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded",
)  # fmt: skip
OFTEN = {"Accept", "Cookie", "X-Request-ID", "Keep-Alive", "Proxy-Authorization"}


def is_plain(fields):
    names = [name for name, _ in fields]
    return all(name in OFTEN or names.count(name) == 1 for name in names)


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.text("abc, ;=", max_size=8)), max_size=8).filter(is_plain),
    st.sampled_from(["h", "h:80", ""]),
    st.sampled_from(["10.0.0.1", "::ffff:10.0.0.1", "fe80::1", ""]),
    st.sampled_from([str.lower, str.title, str.upper]),
)
def test_the_predictor_is_sent_all_that_is_not_of_this_connection_as_by_the_general_server(
    fields, host, peer, spelling
):
    fields = [(name, "keep-alive" if name == "Connection" else value.strip(" ")) for name, value in fields]
    lines = [f"{spelling(name)}:{value}" for name, value in fields]
    head = "\r\n".join(["GET /v1/models HTTP/1.1", f"Host: {host}", *lines, "", ""]).encode()
    relay = Relay()
    questions.Questions(relay, drain.Lifecycle(ledger.Ledger()), metrics.Metrics()).ask(
        head, (peer, 5), lambda *answered: None
    )
    [sent] = relay.sent
    expected = headers_.end_to_end(CIMultiDict([("Host", host), *fields]))
    headers_.add_forwarding(expected, peer, "http", host)
    start, *told = sent.decode().removesuffix("\r\n\r\n").split("\r\n")
    pairs = [tuple(line.split(":", 1)) for line in told]
    assert start == "GET /v1/models HTTP/1.1"
    assert sorted((name.lower(), value.strip()) for name, value in pairs) == sorted(
        (name.lower(), value) for name, value in expected.items()
    )
    assert told[0] == f"Host: {host}"


@pytest.mark.parametrize(
    "line",
    [
        b"host: x", b"accept : b", b"TE: x", b"Connection: close", b"a b: c", b"Upgrade: x", b"ETag: x",
        b"Content-Length: 0", b"Content-Type: a\r\ncontent-type: b", b"User-Agent: kube-probe/1.30",
        b"K-Network-Probe: queue", b"a: \x80", b"Forwarded: for=a\r\nForwarded: for=b", b" folded",
    ],
)  # fmt: skip
def test_odd_heads_are_left_to_the_general_server(relay, life, line):
    asking = questions.Questions(relay, life, metrics.Metrics())
    assert asking.ask(question(b"Accept: a", line), None, lambda *answered: None) is None
    assert relay.sent == []


def test_answers_are_counted_once_each_by_their_status(relay, life):
    counters = metrics.Metrics()
    asking = questions.Questions(relay, life, counters)
    for status in (b"200 OK", b"200 OK", b"404 Not Found", b"200 OK"):
        relay.answer = answer(b"[]").replace(b"200 OK", status)
        asking.ask(question(), None, lambda *answered: None)
    counted = {labels: count for labels, count in counters.requests.read().items() if labels[0] == "passthrough"}
    assert counted == {("passthrough", "200"): 3, ("passthrough", "404"): 1}


def test_an_answer_that_cannot_be_passed_on_as_it_is_is_left_to_the_general_server(asked):
    assert asked(question(), answer(b"[]", b"A: \xff\r\n")) == (None, False)
    assert asked(question(), answer(b"[]").replace(b"200 OK", b"200 O\x01")) == (None, False)


def test_an_answers_trailers_are_none_of_its_headers(asked):
    start = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + _DATE + b"\r\n"
    told, _ = asked(question(), start + b"2\r\n[]\r\n0\r\nSet-Cookie: a\r\nX-Sum: 9\r\n\r\n")
    assert told == b"HTTP/1.1 200 OK\r\n" + _DATE + b"Transfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n"


def test_space_behind_a_value_is_none_of_it(asked):
    told, _ = asked(question(), answer(b"[]", _DATE + b"A: b \t\r\n"))
    assert told == answer(b"[]", _DATE + b"A: b\r\n")
