"""Code that breaks into a call at any step (a signal handler, a finalizer, Ctrl-C) neither hangs nor harms it.

A trace function that runs at each bytecode of the library stands for the signal: handlers run between two of them, too.
So every place where a signal may come is tried, one after the other.
"""

from __future__ import annotations

import pytest

from tests.functions.programs import run_program

INTRUDER = """
import carpool.functions
home = os.path.dirname(carpool.functions.__file__)
sys._getframe().f_trace_opcodes = True  # Python 3.12 tells of opcodes only where some frame has asked before settrace

class Intruder:
    '''Runs `act` once, between the bytecodes `place` and `place + 1` that this thread executes in the library.'''
    def __init__(self, place, act):
        self.left, self.act = place, act
    def __enter__(self):
        sys.settrace(self.enter)
    def __exit__(self, *_):
        sys.settrace(None)
    def enter(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(home): return None
        frame.f_trace = self.step  # first: Python 3.14 tells of opcodes only where a trace function is there when asked
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step
    def step(self, frame, event, argument):
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                frame.f_trace = None
                self.act()
        return self.step

def everywhere(work, act, most=4000):
    '''Does the work again and again, with an intruder at each next place, until it is through before that place.'''
    for place in range(1, most):
        intruder = Intruder(place, act)
        with intruder:
            work()
        if intruder.left > 0:
            say("all places", place > 20)
            return
    say("more places than", most)

def seen(future):
    try:
        return future.result(5)
    except carpool.CarpoolError as error:
        return type(error).__name__

gate = threading.Event()

@carpool.batched(max_latency=0.0, max_batch_size=8)
def f(items):
    return [2 * item for item in items]

other = carpool.batched(lambda items: [2 * item for item in items], max_latency=0.0)

@carpool.batched(max_latency=0.0, max_batch_size=8)
async def g(items):
    return [2 * item for item in items]

@carpool.batched(max_latency=0.0, max_batch_size=1, max_in_flight=1)
def held(items):
    gate.wait(20)
    return items
"""

ACTS = {
    "calls the same function": "act = lambda: late.append(f(21))",
    "calls another function": "act = lambda: late.append(other(21))",
    "maps": "act = lambda: late.append(f.map([21, 21]))",
    "cancels": "act = lambda: waiting[0].cancel()",
    "cancels and asks for statistics": "act = lambda: (waiting[0].cancel(), f.stats(), f.configure(max_batch_size=8))",
    "is done with a callback": "act = lambda: f(21).add_done_callback(lambda done: late.append(done))",
}

WORKS = {
    "a call": "f(1)",
    "a call of an async function": "g(1)",
    "a map": "f.map([1, 2, 3])",
    "a cancellation": "f(1).cancel()",
    "a wait": "f(1).result(5)",
    "statistics": "f.stats()",
    "a change": "f.configure(max_latency=0.0)",
    "a callback": "f(1).add_done_callback(id)",
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("work", WORKS)
def test_a_signal_handler_in_the_midst_of_anything(work: str, act: str) -> None:
    said = run_program(
        INTRUDER
        + f"""
late, made, waiting = [], [], [f(0)]
{ACTS[act]}
def work():
    waiting[:] = [f(0)]
    made.append({WORKS[work]})
f(0).result(); g(0).result(); other(0).result()
everywhere(work, act)
from concurrent.futures import Future
left = [each for each in (*late, *made) if isinstance(each, Future)]
for each in left:
    if not each.cancelled() and seen(each) is None and not each.done(): say("unanswered")
say({{seen(each) in (42, [42, 42]) for each in late}} <= {{True}})
say(f(5).result(5), g(5).result(5))
""",
        seconds=40,
        checks=False,
    )
    assert said == ["all places True", "True", "10 10"]


ALARMS = """
class Alarms:
    '''Sends this process `number` alarms, each half a millisecond after the handler of the one before has ended.

    A timer that each round of a loop arms anew would never fire where a round is shorter than that.
    '''
    def __init__(self, act, number):
        self.act, self.left, self.until = act, number, time.monotonic() + 15
        signal.signal(signal.SIGALRM, self.handle)
        self.arm()
    def arm(self):
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
    def handle(self, *_):
        self.act()
        self.left -= 1
        if self.left > 0: self.arm()
    def ringing(self):
        return self.left > 0 and time.monotonic() < self.until
"""


def test_real_signals_while_calls_are_made_and_cancelled() -> None:
    said = run_program(
        INTRUDER
        + ALARMS
        + """
late = []
def act():
    late.append(f(21))
    late.append(g(21))
    f(0).cancel()
alarms = Alarms(act, 500)
while alarms.ringing():
    futures = [f(1), g(1), f.map([1, 1])]
    futures[0].cancel()
    futures[1].result(5); futures[2].result(5)
say({seen(each) for each in late}, len(late))
""",
        errors=None,
    )
    assert said == ["{42} 1000"]


def test_a_signal_handler_in_a_running_loop() -> None:
    said = run_program(
        INTRUDER
        + ALARMS
        + """
late = []
async def main():
    alarms = Alarms(lambda: late.append(f(21)), 200)
    while alarms.ringing():
        if await asyncio.gather(f(1), g(2)) != [2, 4]: say("wrong")
    say({await each for each in late}, len(late))
asyncio.run(main())
"""
    )
    assert said == ["{42} 200"]


def test_a_call_within_a_callback_within_a_call() -> None:
    """Callbacks run in whoever settles the future: in `cancel`, or in the function's own thread."""
    said = run_program(
        INTRUDER
        + """
late = []
future = held(1)
waits = held(2)
waits.add_done_callback(lambda _: late.append(f(21)))
waits.add_done_callback(lambda _: late.append(held(3)))
waits.cancel()
future.add_done_callback(lambda _: late.append(held(4)))
future.add_done_callback(lambda _: late.append(f(21)) or late.append(f(21).result(5)) )
gate.set()
say(future.result(5))
for _ in range(100):
    if len(late) == 5: break
    time.sleep(0.02)
say(sorted(each if isinstance(each, int) else each.result(5) for each in late))
"""
    )
    assert said == ["1", "[3, 4, 42, 42, 42]"]


def test_an_interrupt_while_results_are_handed_over_leaves_nobody_waiting() -> None:
    said = run_program(
        INTRUDER
        + """
from concurrent.futures import ThreadPoolExecutor
from carpool.functions import futures

loop = asyncio.new_event_loop()

async def awaited(future):
    return await future

def interrupt():
    raise KeyboardInterrupt

for place in range(1, 4000):
    here = [futures.Future() for _ in range(4)]
    tasks = [loop.create_task(awaited(future)) for future in here[:2]]
    loop.run_until_complete(asyncio.sleep(0))
    pool = ThreadPoolExecutor(2)
    threads = [pool.submit(future.result, 5) for future in here[2:]]
    while not all(future._waiting for future in here):
        time.sleep(0.0001)
    intruder = Intruder(place, interrupt)
    try:
        with intruder:
            futures.settle([(future, 1, None) for future in here])
    except KeyboardInterrupt:
        futures.settle([(future, 1, None) for future in here])  # as a batcher does
    begin = time.monotonic()
    answers = [thread.result() for thread in threads] + loop.run_until_complete(asyncio.gather(*tasks))
    if answers != [1] * 4 or time.monotonic() - begin > 2:
        say("lost", place, answers)
    pool.shutdown()
    if intruder.left > 0:
        break
say("all places", place > 20)
"""
    )
    assert said == ["all places True"]
