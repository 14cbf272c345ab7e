"""GETs that the fast lane passes on: what the predictor is sent and the client told, whether heads repeat or not."""

from __future__ import annotations

import pytest

from carpool.scheduling import ledger
from carpool_sidecar import drain, metrics
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


@pytest.mark.parametrize("line", [b"host: x", b"Accept: b", b"TE: x", b"Connection: close", b"a b: c", b"Upgrade: x"])
def test_odd_heads_are_left_to_the_general_server_also_when_their_names_were_met_before(relay, life, line):
    asking = questions.Questions(relay, life, metrics.Metrics())
    for _ in range(3):
        assert asking.ask(question(b"Accept: a", line), None, lambda *answered: None) is None
    assert relay.sent == []
