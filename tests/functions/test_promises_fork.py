"""After a fork the parent's calls are answered, the child's copies of them say that they are closed, and both go on."""

from __future__ import annotations

import pytest

from tests.functions.programs import run_program

FUNCTIONS = """
entered = threading.Event()
release = threading.Event()

@carpool.batched(max_batch_size=2, max_latency=0.0, max_in_flight=1)
def held(items):
    entered.set()
    release.wait(10)
    return [2 * item for item in items]

@carpool.batched(max_batch_size=2, max_latency=0.0, max_in_flight=1)
async def held_async(items):
    entered.set()
    while not release.is_set():
        await asyncio.sleep(0.001)
    return [2 * item for item in items]

def seen(future):
    try:
        return future.result(5)
    except Exception as error:
        return type(error).__name__

def in_child(work):
    '''Runs work in a forked child, which must end by itself.'''
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:
            say("child failed:", repr(error))
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    if status:
        say("child ended with", status)
"""

AN_ANSWER_EACH = """
in_child(lambda: say({name}(1).result(5)))
say({name}(2).result(5))
"""

both = pytest.mark.parametrize("name", ["held", "held_async"])


@both
def test_a_fork_with_running_and_pending_calls(name: str) -> None:
    said = run_program(
        FUNCTIONS
        + f"""
futures = [{name}(item) for item in range(5)]
entered.wait()
def child():
    say("child", [seen(future) for future in futures])
    release.set()
    say("child", {name}(21).result(5))
in_child(child)
release.set()
say("parent", [seen(future) for future in futures])
say("parent", {name}(22).result(5))
"""
    )
    assert said == [f"child {['Closed'] * 5}", "child 42", "parent [0, 2, 4, 6, 8]", "parent 44"]


@both
def test_a_fork_before_the_first_call(name: str) -> None:
    said = run_program(FUNCTIONS + "release.set()" + AN_ANSWER_EACH.format(name=name))
    assert said == ["2", "4"]


@both
def test_a_fork_of_an_idle_function(name: str) -> None:
    said = run_program(FUNCTIONS + f"release.set()\n{name}(0).result()" + AN_ANSWER_EACH.format(name=name))
    assert said == ["2", "4"]


@both
def test_a_fork_of_a_fork(name: str) -> None:
    said = run_program(
        FUNCTIONS
        + f"""
release.set()
say({name}(0).result(5))
def child():
    pending = {name}(1)
    in_child(lambda: say({name}(2).result(5), seen(pending) in (2, "Closed")))
    say(pending.result(5))
in_child(child)
say({name}(3).result(5))
"""
    )
    assert said == ["0", "4 True", "2", "6"]


@both
def test_a_fork_from_another_thread(name: str) -> None:
    said = run_program(
        FUNCTIONS
        + f"""
futures = [{name}(item) for item in range(5)]
entered.wait()
def child():
    say("child", [seen(future) for future in futures])
    release.set()
    say("child", {name}(21).result(5))
thread = threading.Thread(target=in_child, args=(child,))
thread.start()
thread.join()
release.set()
say("parent", [seen(future) for future in futures])
"""
    )
    assert said == [f"child {['Closed'] * 5}", "child 42", "parent [0, 2, 4, 6, 8]"]


def test_a_fork_from_within_the_function() -> None:
    """The thread that runs the function is the child's main thread then."""
    said = run_program(
        FUNCTIONS
        + """
futures = []
ready = threading.Event()
@carpool.batched(max_batch_size=2, max_latency=0.0, max_in_flight=1)
def forks(items):
    ready.wait()
    def child():
        say("child", sorted({str(seen(future)) for future in futures}))
    if 0 in items: in_child(child)
    return items
futures += [forks(item) for item in range(4)]
ready.set()
say("parent", [seen(future) for future in futures])
"""
    )
    assert said == ["child ['Closed']", "parent [0, 1, 2, 3]"]


def test_a_fork_in_a_running_loop() -> None:
    said = run_program(
        FUNCTIONS
        + """
@carpool.batched(max_latency=0.0)
async def echo(items):
    await asyncio.sleep(0)
    return items
async def parent():
    await echo(0)
    pending = [echo(item) for item in range(3)]
    def child():
        asyncio._set_running_loop(None)  # what os.fork leaves to who forks: the loop of the parent
        say("child", [seen(future) for future in pending])
        async def main():
            return [await echo(item) for item in range(3)]
        say("child", asyncio.run(main()))
        say("child", echo(7).result(5))
    in_child(child)
    say("parent", [await future for future in pending])
asyncio.run(parent())
"""
    )
    assert said == [f"child {['Closed'] * 3}", "child [0, 1, 2]", "child 7", "parent [0, 1, 2]"]


@both
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(name: str, method: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    module = tmp_path_factory.mktemp("module")
    (module / "batchers.py").write_text(
        """
import asyncio, time, carpool
@carpool.batched(max_latency=0.0)
def held(items):
    time.sleep(0.01)
    return [2 * item for item in items]
@carpool.batched(max_latency=0.0)
async def held_async(items):
    await asyncio.sleep(0.01)
    return [2 * item for item in items]
def work(name, queue):
    queue.put(globals()[name](21).result(10))
"""
    )
    said = run_program(
        f"""
        sys.path.insert(0, {str(module)!r})
        import multiprocessing, batchers
        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            queue = context.SimpleQueue()
            pending = [batchers.{name}(item) for item in range(5)]
            processes = [context.Process(target=batchers.work, args=({name!r}, queue)) for _ in range(2)]
            for each in processes: each.start()
            say([queue.get() for _ in processes])
            for each in processes: each.join()
            say([each.exitcode for each in processes], [each.result(5) for each in pending])
        """
    )
    assert said == ["[42, 42]", "[0, 0] [0, 2, 4, 6, 8]"]


@both
def test_a_child_that_ends_by_itself_is_not_held_by_the_threads_of_its_parent(name: str) -> None:
    said = run_program(
        FUNCTIONS
        + f"""
pending = [{name}(item) for item in range(5)]
entered.wait()
pid = os.fork()
if not pid:
    sys.exit(7)  # runs the handlers at exit, with copies of the parent's open calls
say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
release.set()
say([each.result(5) for each in pending])
"""
    )
    assert said == ["7", "[0, 2, 4, 6, 8]"]


@both
def test_a_child_whose_own_calls_are_pending_answers_them_at_exit(name: str) -> None:
    said = run_program(
        FUNCTIONS
        + f"""
release.set()
say({name}(1).result(5))
pid = os.fork()
if not pid:
    {name}(2).add_done_callback(lambda future: say("child", future.result()))
    sys.exit(0)
say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    )
    assert said == ["2", "child 4", "0"]


@both
def test_callbacks_of_the_parents_calls_run_once_in_the_parent(name: str) -> None:
    """In the child the copies are refused; a callback that would run there could answer a request a second time."""
    said = run_program(
        FUNCTIONS
        + f"""
future = {name}(1)
entered.wait()
parent = os.getpid()
future.add_done_callback(lambda done: say("parent" if os.getpid() == parent else "child", seen(done)))
in_child(lambda: say("child sees", seen(future)))
release.set()
future.result(5)
"""
    )
    assert said.count("parent 2") == 1
    assert said[0] in ("child sees Closed", "child Closed")
    assert sorted(said)[-1] == "parent 2"


@both
def test_forks_while_other_threads_call_without_a_pause(name: str) -> None:
    """A lock that is held at the moment of a fork would never be released in the child."""
    said = run_program(
        FUNCTIONS
        + f"""
release.set()
stop = threading.Event()
def hammer():
    while not stop.is_set():
        for future in [{name}(item) for item in range(8)]:
            if future.result(10) % 2: say("wrong")
threads = [threading.Thread(target=hammer) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(25):
    in_child(lambda: None if {name}(21).result(5) == 42 else say("wrong"))
stop.set()
for thread in threads: thread.join()
say("done")
"""
    )
    assert said == ["done"]


@both
def test_a_fork_while_another_thread_makes_the_first_call(name: str) -> None:
    said = run_program(
        FUNCTIONS
        + f"""
from carpool.functions import batcher
making, forked = threading.Event(), threading.Event()
def make_tracing(made):
    making.set()
    forked.wait(10)
release.set()
batcher.trace_all(make_tracing)
thread = threading.Thread(target=lambda: say({name}(1).result(5)))
thread.start()
making.wait()
batcher.trace_all(None)
in_child(lambda: say("child", {name}(2).result(5)))
forked.set()
thread.join()
"""
    )
    assert said == ["child 4", "2"]


def test_a_fork_while_another_thread_looks_who_waits_for_whom() -> None:
    said = run_program(
        """
from carpool.functions import waiting

@carpool.batched
def inner(items):
    return [2 * item for item in items]

@carpool.batched
def outer(items):
    return [inner(item).result(5) for item in items]

looking, forked = threading.Event(), threading.Event()
def look():
    with waiting._noting:
        looking.set()
        forked.wait(10)
thread = threading.Thread(target=look)
thread.start()
looking.wait()
pid = os.fork()
if not pid:
    # It would get the identifier of the thread that looks, which may take the lock again.
    threading.Thread(target=forked.wait, args=(10,), daemon=True).start()
    say(outer(1).result(5))
    os._exit(0)
os.waitpid(pid, 0)
forked.set()
thread.join()
say(outer(2).result(5))
"""
    )
    assert said == ["2", "4"]


def test_a_fork_in_the_midst_of_taking_calls_while_a_batch_ends() -> None:
    """What makes calls equal may be anybody's code, and the end of a batch waits behind it."""
    said = run_program(
        FUNCTIONS
        + """
import traceback

class Key:
    forks = False
    def __hash__(self):
        if Key.forks and "_do_all" in [each.name for each in traceback.extract_stack()]:
            Key.forks = False
            release.set()
            while not ended.is_set(): time.sleep(0.001)
            time.sleep(0.05)  # the end of the batch is queued
            pids.append(os.fork())
        return 1
    def __eq__(self, other):
        return type(other) is Key

ended, pids = threading.Event(), []

@carpool.batched
def keyed(items, key=None):
    if items == ["held"]:
        entered.set()
        release.wait(10)
        ended.set()
    return list(items)

key = Key()
keyed("first", key).result(5)
held = keyed("held")
entered.wait()  # no thread of the function is idle, so this one takes the next call in
Key.forks = True
second = keyed("second", key)
deadline = time.monotonic() + 10
while not pids and time.monotonic() < deadline: time.sleep(0.001)
if pids == [0]:
    say("child", seen(second), keyed("third").result(5))
    os._exit(0)
say("parent", seen(second), seen(held))
while os.waitpid(pids[0], os.WNOHANG) == (0, 0):
    if time.monotonic() > deadline:
        say("the child hangs")
        os.kill(pids[0], signal.SIGKILL)
    time.sleep(0.01)
""",
        errors=None,  # the child logs that its scheduler was left in the midst of something
    )
    assert sorted(said) == ["child Closed third", "parent second held"]


def test_a_method_and_a_stream_in_a_child() -> None:
    said = run_program(
        FUNCTIONS
        + """
class Model:
    @carpool.batched
    def double(self, items):
        return [2 * item for item in items]
@carpool.batched
def count(items):
    for step in range(3):
        if step == 1: entered.set(); release.wait(10)
        yield [step for item in items]
model = Model()
say(model.double(1).result(5))
stream = count("a")
say(next(iter(stream)))
entered.wait()
def child():
    release.set()
    say(model.double(2).result(5), list(count("b")))
    try:
        say(list(stream))
    except carpool.Closed:
        say("closed")
in_child(child)
release.set()
say(list(stream))
"""
    )
    assert said == ["2", "0", "4 [0, 1, 2]", "closed", "[1, 2]"]


@both
def test_a_fork_while_threads_wait_for_calls_that_they_share(name: str) -> None:
    said = run_program(
        FUNCTIONS.replace("max_in_flight=1)", 'max_in_flight=1, dedupe="in_flight")')
        + f"""
shared = [{name}(1), {name}(1)]
entered.wait(5)
locked, forked = threading.Event(), threading.Event()
def wait_as_concurrent_futures_does():
    with shared[0]._condition:
        locked.set()
        forked.wait(10)
waiting = threading.Thread(target=wait_as_concurrent_futures_does)
waiting.start()
locked.wait(5)
in_child(lambda: say(*map(seen, shared)))
forked.set()
release.set()
say(*map(seen, shared))
waiting.join()
"""
    )
    assert said == ["Closed Closed", "2 2"]


def test_no_batch_of_a_child_has_an_id_of_its_parents() -> None:
    said = run_program("""
    import os

    f = carpool.batched(lambda items: [carpool.batch().id for _ in items])
    f(0).result(10)
    child = os.fork()
    say(f(1).result(10))
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    """)
    assert len(set(said)) == 2


def test_a_fork_while_another_thread_hands_out_results() -> None:
    """It has taken them from where they wait, and in the child it is not there to go on."""
    said = run_program(
        FUNCTIONS
        + """
from carpool.functions import batcher
hands_out, may_go_on = threading.Event(), threading.Event()
plain = batcher.Batcher._hand_out
def slow(self, answers):
    hands_out.set()
    may_go_on.wait(10)
    plain(self, answers)
batcher.Batcher._hand_out = slow
release.set()
futures = [held(1), held.map([2, 3])]
hands_out.wait(10)
in_child(lambda: say("child", [seen(future) for future in futures]))
may_go_on.set()
say("parent", [seen(future) for future in futures])
"""
    )
    assert said == ["child ['Closed', 'Closed']", "parent [2, [4, 6]]"]


@pytest.mark.parametrize("taken", [True, False], ids=["being taken", "queued"])
def test_a_fork_while_another_thread_takes_calls(taken: bool) -> None:
    said = run_program(
        FUNCTIONS
        + f"""
from carpool.functions import batcher
takes, may_go_on = threading.Event(), threading.Event()
plain = batcher.Batcher._submit
def slow(self, *args):
    takes.set()
    may_go_on.wait(10)
    plain(self, *args)
batcher.Batcher._submit = slow
release.set()
futures = []
threads = [threading.Thread(target=lambda: futures.append(held(1)))]
made = []
new = batcher.Batcher.submit
def submit(self, call, loop):
    made.append(call.futures[0])
    new(self, call, loop)
batcher.Batcher.submit = submit
threads[0].start()
takes.wait(10)
if not {taken}: made.append(held(2))
def child():
    batcher.Batcher._submit = plain
    say("child", {{seen(future) for future in made}}, seen(held(3)))
in_child(child)
may_go_on.set()
threads[0].join()
say("parent", {{seen(future) for future in made}} <= {{2, 4}})
"""
    )
    assert said == ["child {'Closed'} 6", "parent True"]


def test_what_the_parent_was_about_to_close_is_open_in_the_child() -> None:
    said = run_program(
        FUNCTIONS
        + """
release.set()
say(held(1).result(5))
made = held._site.batchers[0]
with made._lock:
    closing = []
    thread = threading.Thread(target=lambda: closing.append(made.close()))
    thread.start()  # somebody else is at it, so it is queued
    thread.join()
    pid = os.fork()
if not pid:
    say("child", seen(closing[0]), seen(held(2)))
    os._exit(0)
os.waitpid(pid, 0)
made.mark()
say("parent", seen(closing[0]), seen(held(3)))
"""
    )
    assert said == ["2", "child None 4", "parent None Closed"]


def test_threads_of_a_child_get_the_result_of_a_future_that_threads_of_its_parent_wait_for() -> None:
    said = run_program(
        FUNCTIONS
        + """
future = carpool.Future()
def waiting(number):
    found = []
    threads = [threading.Thread(target=lambda: found.append(future.result())) for _ in range(number)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    return threads, found
def told(threads, found):
    future.set_result(7)
    for thread in threads:
        thread.join(5)
    return found
parents = waiting(2)
in_child(lambda: say("child", told(*waiting(3))))
say("parent", told(*parents))
"""
    )
    assert said == ["child [7, 7, 7]", "parent [7, 7]"]
