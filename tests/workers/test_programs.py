"""Whole programs that start workers: how they define models, and that no worker outlives them, however they end."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

Program = Callable[..., subprocess.Popen[str]]

HOLDING = """
    import sys, threading, time
    from carpool.workers import pool
    from tests.workers import models

    if __name__ == "__main__":
        there = pool.processes(models.Holding, __import__("pathlib").Path(sys.argv[1])).on("cpu")
        there(["pid"])
"""


class Held:
    """The reading end of a pipe that a worker has open for writing."""

    def __init__(self, pipe: pathlib.Path) -> None:
        self.file = pipe.open("rb")  # returns once the worker has the other end

    def ends(self) -> bool:
        """Wait until nobody has the other end any more."""
        return self.file.read() == b""


@pytest.fixture
def hold(pipe: pathlib.Path) -> Iterator[Callable[[], Held]]:
    made: list[Held] = []

    def hold() -> Held:
        made.append(Held(pipe))
        return made[-1]

    yield hold
    for each in made:
        each.file.close()


@pytest.mark.parametrize("work", ["pid", "for ever", "sleep"])
def test_no_worker_outlives_a_kill_9_of_its_program_idle_or_busy(
    program: Program, pipe: pathlib.Path, hold: Callable[[], Held], work: str
) -> None:
    source = f"""{HOLDING}
        threading.Thread(target=there, args=(["{work}"],), daemon=True).start()
        time.sleep(0.1)
        print("working", flush=True)
        time.sleep(3600)
    """
    running = program(source, pipe)
    held = hold()
    assert running.stdout
    assert running.stdout.readline() == "working\n"
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert held.ends()


@pytest.mark.parametrize("last", ["pass", "sys.exit(0)", "raise SystemExit", "there.stop()"])
def test_a_program_that_ends_takes_its_workers_along(
    program: Program, pipe: pathlib.Path, hold: Callable[[], Held], last: str
) -> None:
    running = program(f"{HOLDING}        {last}\n", pipe)
    assert hold().ends()
    assert running.communicate()[1] == ""
    assert running.returncode == 0


def test_a_program_that_raises_takes_its_workers_along(
    program: Program, pipe: pathlib.Path, hold: Callable[[], Held]
) -> None:
    running = program(f"{HOLDING}        raise RuntimeError('the end')\n", pipe)
    assert hold().ends()
    assert running.communicate()[1].endswith("RuntimeError: the end\n")


def test_after_a_fork_both_sides_have_workers_of_their_own(program: Program) -> None:
    running = program("""
        import os, sys, warnings
        from carpool.workers import pool
        from tests.workers import models

        if __name__ == "__main__":
            warnings.simplefilter("ignore")  # Python 3.12 warns of forks in programs with threads
            there = pool.processes(models.Telling).on("cpu")
            about = lambda: there([("about",)])[0]
            first = about()
            child = os.fork()
            if child == 0:
                second, _, calls = about()
                there.stop()
                os._exit(0 if second != first[0] and calls == 1 else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert about() == (first[0], "cpu", 2)
            there.stop()
    """)
    assert running.communicate()[1] == ""
    assert running.returncode == 0


def test_a_forked_child_does_not_keep_the_workers_of_its_parent_alive(
    program: Program, pipe: pathlib.Path, hold: Callable[[], Held]
) -> None:
    source = f"""{HOLDING}
        import os, warnings
        warnings.simplefilter("ignore")
        if os.fork() == 0:
            sys.stdin.read()
            os._exit(0)
        os.kill(os.getpid(), 9)
    """
    read, write = os.pipe()  # the child lives until this is closed
    before = os.dup(0)
    os.dup2(read, 0)
    try:
        program(source, pipe)
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(read)
    try:
        assert hold().ends()
    finally:
        os.close(write)


def test_a_model_of_the_main_module_works_if_the_program_is_guarded(program: Program) -> None:
    running = program("""
        import os
        from carpool.workers import pool

        class Wrong(Exception): ...

        class Model:
            def __init__(self, device): self.device = device
            def __call__(self, items):
                if items == [0]:
                    raise Wrong("of the main module")
                return [(self.device, item, os.getpid()) for item in items]

        if __name__ == "__main__":
            with pool.processes(Model).on("cpu") as there:
                device, item, process = there([1])[0]
                assert (device, item) == ("cpu", 1) and process != os.getpid()
                try:
                    there([0])
                except Wrong as error:
                    print("caught", error)
    """)
    assert running.communicate() == ("caught of the main module\n", "")


def test_a_program_without_a_guard_is_told_to_have_one(program: Program) -> None:
    running = program("""
        from carpool.workers import pool

        class Model:
            def __init__(self, device): ...
            def __call__(self, items): return items

        pool.processes(Model).on("cpu")([1])
    """)
    words = running.communicate()[1]
    assert 'if __name__ == "__main__":' in words
    assert running.returncode == 1


def test_a_model_that_has_no_file_is_refused_at_once() -> None:
    source = "from carpool.workers import pool\nclass Model:\n def __call__(self, items): ...\npool.processes(Model)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert "TypeError: Model is defined in a session without a file" in done.stderr


def test_a_model_of_a_module_makes_no_worker_import_the_main_module(program: Program) -> None:
    running = program("""
        print("imported", flush=True)
        from carpool.workers import pool
        from tests.workers import models

        with pool.processes(models.Doubling).on("cpu") as there:  # no guard is needed
            print(there([2]))
    """)
    assert running.communicate() == ("imported\n[4]\n", "")
