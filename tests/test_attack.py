"""The harness of `make attack`: it attacks loopback only, within bounds, and a missed target never passes."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import Callable
from typing import Any

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.attack import __main__ as program
from benchmarks.attack import (
    attack,
    attacker,
    backend,
    catalogue,
    conformance,
    frames,
    link,
    run,
    tables,
    target,
    verdicts,
    victim,
)
from tests import loopback
from tests.server.grpc.peer import Peer

SECONDS = 5.0


def trial(**changed: Any) -> verdicts.Trial:
    """An attack that was held."""
    kinds = (victim.RPC, victim.HTTP, victim.PING)
    good = {
        when: {kind: verdicts.Seen(200, p50=0.002, p99=0.02) for kind in kinds}
        for when in ("before", "during", "after")
    }
    memory = {"memory_before": 100.0, "memory_peak": 200.0, "memory_after": 120.0}
    return verdicts.Trial("ping", "PING", "carpool", told=target.Told(), **{**good, **memory, **changed})


def during(kind: str = victim.RPC, **seen: Any) -> dict[str, verdicts.Seen]:
    others = {each: verdicts.Seen(200, p50=0.002, p99=0.02) for each in (victim.RPC, victim.HTTP, victim.PING)}
    return others | {kind: verdicts.Seen(**{"calls": 200, "p99": 0.02, **seen})}


# --- only loopback, only so much ---------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["10.0.0.1", "192.0.2.7", "0.0.0.0", "::", "example.com", "localhost", "", "127.1"])
def test_whatever_is_no_address_of_loopback_is_never_attacked(host: str) -> None:
    with pytest.raises(target.NotLoopback):
        target.Target(host, 1, 2, SECONDS)


def test_the_attackers_process_refuses_another_host(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--host", "192.0.2.7", "--grpc-port", "1", "--http-port", "2", "--seconds", "1"]
    with pytest.raises(SystemExit) as ended:
        attacker.main(["ping", *where])
    assert ended.value.code == 2
    assert "'192.0.2.7' is not a loopback address" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1"])
def test_loopback_may_be_attacked(host: str) -> None:
    assert target.Target(host, 1, 2, SECONDS).host == host


def test_an_attack_ends_at_its_bounds() -> None:
    to = target.Target(loopback.HOST, 1, 2, SECONDS)
    to.spend_bytes(target.MOST_BYTES)
    with pytest.raises(target.Exhausted, match="bytes"):
        to.spend_bytes(1)
    for _ in range(target.MOST_CONNECTIONS):
        to.spend_connection()
    with pytest.raises(target.Exhausted, match="connections"):
        to.spend_connection()
    assert to.told.bytes_sent == target.MOST_BYTES
    over = target.Target(loopback.HOST, 1, 2, 0.0)
    with pytest.raises(target.Exhausted, match="time"):
        over.spend_bytes(1)
    with pytest.raises(target.Exhausted, match="time"):
        over.spend_connection()
    assert target.Target(loopback.HOST, 1, 2, 1e9).seconds == target.MOST_SECONDS


async def test_what_an_attack_did_and_how_it_was_ended_is_told() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(100_000)
        calm = (11).to_bytes(4)
        writer.write(frames.frame(frames.RST_STREAM, 0, 1, calm) + frames.frame(frames.GOAWAY, 0, 0, bytes(4) + calm))
        writer.write_eof()
        while await reader.read(1 << 20):
            pass
        writer.close()

    server = await asyncio.start_server(hang_up, loopback.HOST, 0)
    port = server.sockets[0].getsockname()[1]
    to = target.Target(loopback.HOST, port, 0, SECONDS)

    async def strike(to: target.Target) -> None:
        async with link.http2(to) as one:
            await one.flood(frames.ping(), 1_000_000)
            await one.linger()

    told = await attacker.carry_out(attack.Attack("x", "x", attack.again(strike, 2)), to)
    server.close()
    await server.wait_closed()
    assert (told.connections, told.cut, told.resets) == (2, 2, 2)
    assert told.last_words == {"GOAWAY ENHANCE_YOUR_CALM": 2}
    assert told.bytes_sent >= 200_000
    assert target.Told.from_json(told.as_json()) == told
    assert "2 of 2 cut (GOAWAY ENHANCE_YOUR_CALM x 2)" in tables.ending(told)


# --- what is sent and what comes back ----------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1000), max_size=5), st.integers(1, 64))
def test_the_servers_last_words_are_found_however_they_are_cut(sizes: list[int], step: int) -> None:
    sent = b"".join(frames.frame(frames.DATA, 0, 1, b"\x07" * size) for size in sizes)
    sent += frames.frame(frames.RST_STREAM, 0, 1, bytes(4)) + frames.frame(frames.GOAWAY, 0, 0, bytes(8) + b"why")
    told = target.Told()
    watch = link.Watch(told)
    words = [watch(sent[at : at + step]) for at in range(0, len(sent), step)]
    assert [each for each in words if each] == ["GOAWAY NO_ERROR"]
    assert told.resets == 1


def test_blocks_say_the_fields_wherever_they_are_sent() -> None:
    fields = frames.call(backend.INFER, (b"x", b"1"), method=b"GET")
    block = frames.block(fields)
    decoder = hpack.Decoder()
    for _ in range(2):
        assert tuple(decoder.decode(block, raw=True)) == fields
    first, short = frames.indexed(fields)
    decoder = hpack.Decoder()
    assert tuple(decoder.decode(first, raw=True)) == tuple(decoder.decode(short, raw=True)) == fields
    assert len(short) < len(first)


def test_every_attack_has_a_name_of_its_own_and_can_be_chosen() -> None:
    from benchmarks.attack.kinds import calls, floods, garbage, heads, http, hung, streams, unread

    kinds = (calls, floods, garbage, heads, http, hung, streams, unread)
    assert len(catalogue.ALL) == sum(len(kind.ATTACKS) for kind in kinds) > 60
    assert [each.name for each in catalogue.select(["ping", "http-bomb-"], "carpool")] == [
        "ping", "http-bomb-numbers", "http-bomb-brackets", "http-bomb-large",
    ]  # fmt: skip
    assert catalogue.select(["http-"], "grpcio") == []
    assert len(catalogue.select([], "grpcio")) > 40
    with pytest.raises(ValueError, match="unknown attack 'pinggg'"):
        catalogue.select(["pinggg"], "carpool")


# --- victims and verdicts ----------------------------------------------------------------------------------------


async def test_victims_notice_answers_that_are_not_theirs() -> None:
    until = asyncio.Event()
    peer = Peer()
    numbers = itertools.count(1)

    async def answer(messages: Any, context: Any) -> None:
        number = next(numbers)
        sent = [message async for message in messages]
        answers = await backend.infer(sent[0], None)
        if number > 2:
            until.set()
        await context.write(answers if number == 1 else await backend.infer(b"", None))

    peer.methods[backend.INFER] = answer
    await peer.start()
    victims = victim.Victims(peer.port, None)
    await victims.run(until)
    await peer.stop()
    outcomes = [each.outcome for each in victims.samples if each.kind == victim.RPC]
    assert outcomes.count(victim.OK) == 1
    assert outcomes.count(victim.WRONG) == len(outcomes) - 1 >= 2


def test_an_attack_that_was_held_has_missed_nothing() -> None:
    assert trial().misses() == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"during": during(wrong=1)}, "1 wrong answers of gRPC"),
        ({"before": during(wrong=1)}, "1 wrong answers of gRPC"),
        ({"after": during(wrong=1)}, "1 wrong answers of gRPC"),
        ({"during": during(failed=3)}, "3 of 200 calls of gRPC failed"),
        ({"before": during(failed=1)}, "1 calls of gRPC failed before the attack"),
        ({"after": during(failed=1)}, "1 calls of gRPC failed after the attack"),
        ({"during": during(p99=0.101)}, "p99 of gRPC 101 ms, not 100"),
        ({"during": during(victim.PING, p99=0.2)}, "p99 of PING 200 ms, not 100"),
        ({"during": during(victim.HTTP, calls=0)}, "no calls of HTTP"),
        ({"memory_after": 161.0}, "61 MB kept"),
        ({"memory_peak": 1100.0}, "peak of 1100 MB"),
        ({"death": "exit status -11: x"}, "the server died, exit status -11: x"),
        ({"trouble": "the attacker failed: x"}, "the attacker failed: x"),
    ],
)
def test_a_missed_target_is_told_and_fails_the_run(changed: dict[str, Any], words: str) -> None:
    missed = trial(**changed)
    assert missed.misses() == [words]
    assert run.Outcome([trial(), missed]).missed == 1
    assert run.Outcome([trial()]).missed == 0
    table = Console(file=io.StringIO(), width=400)
    table.print(tables.trials([missed], markdown=False))
    assert words in table.file.getvalue()  # type: ignore[attr-defined]


def test_on_a_busy_machine_a_victim_may_be_three_times_as_slow_as_before_and_the_table_says_so() -> None:
    busy = trial(before=during(p99=0.05), during=during(p99=0.14))
    assert busy.misses() == []
    assert busy.is_busy
    assert not trial().is_busy
    assert trial(before=during(p99=0.05), during=during(p99=0.16)).misses() == ["p99 of gRPC 160 ms, not 150"]


def test_how_late_the_victims_own_process_was_woken_is_not_the_servers_fault() -> None:
    assert trial(during=during(victim.LATE, p99=9.0)).misses() == []
    assert trial(before=during(p99=1.0), during=during(p99=0.6)).misses() == ["p99 of gRPC 600 ms, not 500"]
    late = during(victim.LATE, p99=0.05) | {victim.RPC: verdicts.Seen(200, p99=0.16)}
    assert trial(during=late).misses() == ["p99 of gRPC 160 ms, not 150"]


def test_what_plain_grpcio_does_not_hold_fails_no_run() -> None:
    missed = trial(death="exit status 1")
    missed.server = "grpcio"
    assert run.Outcome([missed]).missed == 0


# --- others' tools -----------------------------------------------------------------------------------------------


def report(*failed: str) -> str:
    cases = [f'<testcase classname="{name}"><failure/></testcase>' for name in failed]
    return (
        f'<testsuites><testsuite package="http2/4.2"><testcase classname="x"/>{"".join(cases)}</testsuite></testsuites>'
    )


def test_h2spec_may_fail_in_the_one_case_that_is_expected() -> None:
    (check,) = conformance.read_report(report(conformance.EXPECTED))
    assert check.has_passed
    assert check.words == "1 of 2 passed, 1 failed as expected"


def test_any_other_failure_of_h2spec_is_one() -> None:
    summary, failure = conformance.read_report(report(conformance.EXPECTED, "Sends a frame"))
    assert not summary.has_passed
    assert failure == (conformance.H2SPEC, "http2/4.2: Sends a frame", False, "")
    assert run.Outcome([], [summary]).missed == 1


def test_a_report_without_cases_has_not_passed() -> None:
    assert not conformance.read_report("<testsuites/>")[0].has_passed


@pytest.mark.parametrize(("variable", "is_fine"), [("", True), ("0", True), ("1", False)])
def test_without_go_the_tools_are_skipped_unless_skips_are_forbidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, variable: str, is_fine: bool
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv(run.NO_SKIPS, variable)
    say: Callable[[str], None] = lambda words: None  # noqa: E731
    (check,) = run.check(conformance.H2SPEC, tmp_path, say)
    assert check.has_passed is is_fine
    assert check.words == "skipped: no Go toolchain on PATH"


def test_a_missed_target_is_the_exit_status(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    results = [trial(), trial(death="exit status 1")]

    def attack_none(chosen: run.Plan, outcome: run.Outcome, say: Any) -> Any:
        outcome.trials.append(results.pop(0))
        yield

    monkeypatch.setattr(run, "carry_out", attack_none)
    arguments = ["--only", "ping", "--json", str(tmp_path / "attack.json")]
    assert [program.main(arguments), program.main(arguments)] == [0, 1]
    assert "the server died, exit status 1" in (tmp_path / "attack.json").read_text()
