"""The benchmark's child processes: found ready, explained when they fail, gone at the end."""

from __future__ import annotations

import os
import sys

import psutil
import pytest

from benchmarks import processes
from tests import loopback

SERVE = """
import http.server, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 503)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""


def test_a_child_is_ready_once_its_page_answers_200_and_is_gone_afterwards() -> None:
    (port,) = loopback.free_ports(1)
    with processes.running("server", [sys.executable, "-c", SERVE, str(port)]) as child:
        child.wait_until_ready(processes.ready_url(port), timeout=30, pause=0.01)
        assert child.is_running()
        with pytest.raises(processes.ChildFailed, match=r"not ready after 0 s"):
            child.wait_until_ready(f"http://{processes.HOST}:{port}/other", timeout=0)
    assert not child.is_running()
    assert not psutil.pid_exists(child.pid)


def test_a_child_that_ends_early_is_explained_by_its_output() -> None:
    (port,) = loopback.free_ports(1)
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with (
        processes.running("predictor", command) as child,
        pytest.raises(processes.ChildFailed, match="predictor ended with exit code 1") as caught,
    ):
        child.wait_until_ready(processes.ready_url(port), timeout=30, pause=0.01)
    assert caught.value.log == "no such model"


def test_a_child_that_logs_an_error_is_not_waited_for() -> None:
    (port,) = loopback.free_ports(1)
    program = "import signal; print('12:00:00 ERROR   no driver', flush=True); signal.pause()"
    with (
        processes.running("predictor", [sys.executable, "-c", program]) as child,
        pytest.raises(processes.ChildFailed, match="logged an error") as caught,
    ):
        child.wait_until_ready(processes.ready_url(port), timeout=30, pause=0.01)
    assert caught.value.log == "12:00:00 ERROR   no driver"


def test_a_child_is_stopped_when_the_block_fails() -> None:
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    with pytest.raises(KeyboardInterrupt), processes.running("waiter", command) as child:
        raise KeyboardInterrupt
    assert not psutil.pid_exists(child.pid)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin processes")
def test_a_child_runs_on_the_cores_it_was_given_and_we_keep_ours() -> None:
    ours = os.sched_getaffinity(0)
    core = {max(ours)}
    with processes.running("waiter", [sys.executable, "-c", "import signal; signal.pause()"], core) as child:
        assert set(psutil.Process(child.pid).cpu_affinity() or ()) == core
    assert os.sched_getaffinity(0) == ours
