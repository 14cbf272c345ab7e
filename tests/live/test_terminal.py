"""`top` and `tap`: what they print of a stream, whom they let go, and what they say when there is none."""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import pathlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http import server

import pytest

from carpool.scheduling import messages
from carpool_sidecar import admin_client
from carpool_sidecar.app import cli
from carpool_sidecar.live import event_stream, events_client, page, recorder, tap_command, top_view
from tests import loopback
from tests.live.test_snapshots import Stand as Snapshots

ROOT = pathlib.Path(__file__).parents[2]
LOADED = """
import sys
before = set(sys.modules)
from carpool_sidecar.app import cli
try:
    cli.main({argv!r})
except SystemExit:
    print(*sorted(set(sys.modules) - before))
"""


def told(name, reason="full", path="/v1/models/m:predict", ids=("r1", None), error=None, requests=2):
    return recorder.Told(
        name, reason, path, "abc123", 1000.0, 1000.25, 12.5, 3, 32, requests,
        recorder.Members(list(ids), [250_000] * len(ids)), error,
    )  # fmt: skip


def batches(*all_of_them, seen=None):
    return event_stream._event(b"batches", recorder.Batches(seen or len(all_of_them), list(all_of_them)))


def snapshots(count=12):
    stand, made = Snapshots(), []
    stand.submit("/v1/models/m:predict", 40)
    for _ in range(count):
        stand.now += 0.25
        stand.counters.predicted(200, 0.01)
        made.append(event_stream._event(b"snapshot", stand.take()))
    return made


HELLO = event_stream._event(b"hello", {"may_write": True})


class Stream(server.ThreadingHTTPServer):
    """Answers each request for /events with the next of some streams, in pieces as they are given, then ends it."""

    def __init__(self, *streams: list[bytes], status: int = 200) -> None:
        self.streams = list(streams)
        self.status = status
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def port(self) -> str:
        return str(self.server_address[1])


class _Handler(server.BaseHTTPRequestHandler):
    server: Stream

    def do_GET(self) -> None:
        pieces = self.server.streams.pop(0) if self.server.streams else [b"closed\n"]
        self.send_response(self.server.status)
        self.send_header("Content-Type", "text/event-stream" if self.server.status == 200 else "text/plain")
        self.end_headers()
        with contextlib.suppress(OSError):
            for piece in pieces:
                self.wfile.write(piece)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def stream(*streams: list[bytes], status: int = 200) -> Iterator[Stream]:
    with Stream(*streams, status=status) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def run(capsys, *argv):
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    captured = capsys.readouterr()
    return end.value.code, captured.out, captured.err


def tap(capsys, *pieces, argv=(), count="1"):
    with stream([HELLO, batches(), *pieces]) as serving:
        return run(capsys, "tap", "--admin-port", serving.port, "--count", count, *argv)


def test_tap_prints_a_line_for_each_batch(capsys):
    status, out, err = tap(capsys, batches(told("a"), told("b", "idle", error="timeout"), seen=2), count="2")
    assert (status, err) == (0, "")
    one, other = out.splitlines()
    assert one.split()[1:] == [
        "full", "3/32", "2", "req", "wait", "250.0", "ms", "predictor", "12.5", "ms", "/v1/models/m:predict", "r1",
    ]  # fmt: skip
    assert "FAILED timeout" in other


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--path", "*/rank*"], "c"),
        (["--reason", "idle,hold"], "b"),
        (["--request-id", "wanted-*"], "d"),
        (["--failed"], "e"),
        (["--path", "/v1/*", "--reason", "full", "--request-id", "wanted-2"], "d"),
    ],
)
def test_tap_prints_only_what_was_asked_for(capsys, argv, expected):
    batch = batches(
        told("a"), told("b", "idle"), told("c", path="/v1/models/rank:predict"), told("d", ids=["x", "wanted-2"]),
        told("e", error="timeout"), seen=5,
    )  # fmt: skip
    status, out, _ = tap(capsys, batch, argv=[*argv, "--json"])
    assert status == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == [expected]


def test_tap_tells_of_batches_that_were_too_many(capsys):
    _, _, err = tap(capsys, batches(told("a"), seen=31))
    assert err == "carpool-sidecar tap: 30 batches were too many to tell\n"


def test_tap_connects_again_and_says_so(capsys):
    first = [HELLO, batches(), batches(told("a"), seen=1)]
    second = [HELLO, batches(told("old"), seen=9), batches(told("b"), seen=10)]
    with stream(first, second) as serving:
        status, out, err = run(capsys, "tap", "--admin-port", serving.port, "--count", "2", "--json")
    assert status == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["a", "b"]
    assert err == "carpool-sidecar tap: ended the stream\n"


def test_what_callers_chose_cannot_steer_the_terminal(capsys):
    _, out, _ = tap(capsys, batches(told("a", path="/p\x1b[2J", ids=["r\x07\x9b"]), seen=1))
    assert "\x1b" not in out
    assert "/p?[2J  r??" in out


def test_a_reason_that_does_not_exist_is_a_clear_error(capsys):
    status, _, err = run(capsys, "tap", "--reason", "fulll")
    assert status == 2
    assert "--reason: got 'fulll': must be a comma-separated list of closed, drain, due" in err


def test_tap_knows_all_reasons():
    assert set(messages.Reason) == tap_command._REASONS


@pytest.mark.parametrize("word", ["top", "tap"])
def test_a_sidecar_that_is_not_there_is_one_line_and_status_1(capsys, word):
    (port,) = loopback.free_ports(1)
    status, _, err = run(capsys, word, "--admin-port", str(port))
    assert status == 1
    assert err == (
        f"carpool-sidecar {word}: error: the admin port 127.0.0.1:{port} cannot be reached: Connection refused; "
        "are --admin-host and --admin-port those of the sidecar?\n"
    )


@pytest.mark.parametrize("word", ["top", "tap"])
def test_the_sidecars_own_words_are_told(capsys, word):
    with stream([b"8 viewers look at this sidecar already\n"], status=503) as serving:
        status, _, err = run(capsys, word, "--admin-port", serving.port)
    assert status == 1
    assert "answered 503: 8 viewers look at this sidecar already\n" in err


def test_a_server_that_says_nothing_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        events = events_client.read(admin_client.Address("127.0.0.1", silent.getsockname()[1]), patience=0.05)
        with pytest.raises(admin_client.Unreachable, match=r"said nothing for 0.05 s"):
            next(events)


def test_a_port_that_is_none_is_a_clear_error(capsys):
    status, _, err = run(capsys, "top", "--admin-port", "x")
    assert status == 2
    assert "got 'x': must be a port from 1 to 65535" in err


def test_top_prints_json_for_scripts_once_it_knows_rates(capsys):
    with stream([HELLO, batches(told("a")), *snapshots()]) as serving:
        status, out, _ = run(capsys, "top", "--once", "--json", "--admin-port", serving.port)
    shown = json.loads(out)
    assert status == 0
    assert shown["rates"]["answers"] == 4.0
    assert shown["window"] >= 2.0
    assert [batch["id"] for batch in shown["latest"]] == ["a"]


def test_top_prints_a_screen_without_a_terminal(capsys):
    with stream([HELLO, batches(told("a"), told("b", error="timeout")), *snapshots()]) as serving:
        status, out, _ = run(capsys, "top", "--admin-port", serving.port)
    assert status == 0
    for words in ("window policy", "answers/s", "queues: 8 instances in 1 queue", "8 of 32", "full: timeout", "12.5"):
        assert words in out


def test_the_view_fits_the_screen_and_keeps_what_is_out_of_date(capsys):
    from rich import console

    stand = Snapshots()
    value = json.loads(event_stream._event(b"snapshot", stand.take()).partition(b"data: ")[2])
    many = [json.loads(event_stream._event(b"x", told(str(n))).partition(b"data: ")[2]) for n in range(40)]
    for height in (24, 40):
        screen = console.Console(width=100, height=height, record=True)
        screen.print(top_view.render(value, many, height, "the admin port said nothing; trying again"))
        lines = screen.export_text().splitlines()
        assert len(lines) <= max(height, 27)
        assert "trying again" in lines[1]


@pytest.mark.parametrize("argv", [["tap", "--admin-port", "1"], ["top", "--admin-port", "1"]])
def test_the_commands_load_nothing_that_takes_long(argv):
    ended = subprocess.run(
        [sys.executable, "-c", LOADED.format(argv=argv)], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(ended.stdout.split())
    assert {"asyncio", "aiohttp", "pydantic", "msgspec", "uvloop", "rich"} & loaded == set()


def test_every_reason_has_a_colour_on_the_page_and_in_the_terminal():
    style = importlib.resources.files(page).joinpath("style.css").read_text()
    assert [str(reason) for reason in messages.Reason if f"--{reason}: " not in style] == []
    assert set(messages.Reason) <= set(top_view._COLOURS)


def test_top_needs_only_those_packages_that_the_image_has():
    left_out = ("pygments", "markdown_it", "mdurl")  # sidecar/Dockerfile leaves them out: they are 10 MB
    without = f"import sys\nsys.modules.update(dict.fromkeys({left_out!r}))\n"
    with stream([HELLO, batches(told("a")), *snapshots()]) as serving:
        program = f"{without}from carpool_sidecar.app import cli\ncli.main(['top', '--admin-port', '{serving.port}'])"
        command = [sys.executable, "-c", program]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "window policy" in ended.stdout
    assert all(name in (ROOT / "sidecar" / "Dockerfile").read_text() for name in left_out)
