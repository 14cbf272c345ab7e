"""A load that checks every answer against its question, for as long as something is done to the cluster.

    with checking.load(cluster.ingress, host, "/v1/models/echo:predict") as load:
        ...
    assert not load.report.wrong

It runs in a thread with an event loop of its own, so tests stay as plain as the commands in them.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
import threading
import time
import types
from collections.abc import Callable, Iterator

import aiohttp

from e2e.live import questions, reports

# Longer than every timeout on the way: no answer after that means that the request was forgotten.
ANSWER_SECONDS = 30.0
# Instances that an answer could be mixed up with.
REMEMBERED = 200_000
START_SECONDS = 60.0
SETTLED = 50
POLL_SECONDS = 0.05


class Load:
    """A running load. `report` has its results so far, and all of them after the end."""

    def __init__(self, ingress: str, host: str, path: str, callers: int, rate: float, seed: int | None) -> None:
        self._url = ingress.rstrip("/") + path
        self._headers = {"Host": host, "Content-Type": "application/json"}
        self._callers = callers
        self._rate = rate
        self._seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        # All that changes while it runs; written in the load's thread, read in others.
        self._outcomes: list[reports.Outcome] = []
        self._recent: collections.deque[str] = collections.deque()
        self._texts: set[str] = set()
        self._resent = 0
        self._asked = 0
        self._stop = threading.Event()
        self._right = 0
        self._start = time.monotonic()
        self._counted_from = 0.0  # seconds after the start
        self._end: float | None = None
        self._error: BaseException | None = None

    @property
    def now(self) -> float:
        """Seconds since the load began to count: a moment to ask `report.recovery` about."""
        return self._clock() - self._counted_from

    @property
    def report(self) -> reports.Report:
        since = self._counted_from
        counted = (each for each in tuple(self._outcomes) if each.sent >= since)
        outcomes = tuple(each._replace(sent=each.sent - since, over=each.over - since) for each in counted)
        end = self._clock() if self._end is None else self._end
        return reports.Report(outcomes, end - since, self._resent)

    def wait_for_right(self, count: int, within: float = START_SECONDS) -> None:
        """Returns when so many more answers were right. Raises TimeoutError, with the report, after `within` s."""
        wanted = self._right + count
        self._wait(lambda: self._right >= wanted, f"{count} right answers", within)

    def wait_until_settled(self, within: float = START_SECONDS) -> None:
        """Begins to count once SETTLED answers in a row were right. Raises as `wait_for_right` does.

        Each replica of an ingress controller learns of a new host in its own time, and until then says 404.
        """

        def is_settled() -> bool:
            latest = self._outcomes[-SETTLED:]
            return len(latest) == SETTLED and all(each.is_right for each in latest)

        self._wait(is_settled, f"{SETTLED} right answers in a row", within)
        self._counted_from = self._clock()

    def _wait(self, question: Callable[[], bool], what: str, within: float) -> None:
        deadline = time.monotonic() + within
        while not question():
            self.raise_own_error()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what} within {within:g} s:\n{self.report}")
            time.sleep(POLL_SECONDS)

    def _clock(self) -> float:
        return time.monotonic() - self._start

    def stop(self) -> None:
        """Lets the callers finish the requests that they have sent."""
        self._stop.set()

    def raise_own_error(self) -> None:
        """Raises what went wrong in this client itself, if something did."""
        if self._error is not None:
            raise self._error

    # --- in the load's thread ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, trace_configs=[trace]) as session:
            await asyncio.gather(*(self._call(session, number) for number in range(self._callers)))
        self._end = self._clock()

    async def _call(self, session: aiohttp.ClientSession, number: int) -> None:
        """One caller: the next question as soon as the last is answered, or when the rate allows it."""
        chance = random.Random(self._seed * 1000 + number)
        while not self._stop.is_set():
            if self._rate:
                await self._wait_for_turn()
            question = questions.ask(chance)
            self._remember(question)
            sent = self._clock()
            kind, words = await self._outcome(session, question)
            self._outcomes.append(reports.Outcome(sent, self._clock(), kind, words))
            if kind == questions.Verdict.RIGHT:
                self._right += 1
            else:
                await asyncio.sleep(0.05)  # a refused caller waits before its next request

    async def _wait_for_turn(self) -> None:
        turn, self._asked = self._start + self._asked / self._rate, self._asked + 1
        late = time.monotonic() - turn
        if late > 1.0:  # requests that were missed while nothing was answered are not made up for
            self._asked += int(late * self._rate)
        await asyncio.sleep(max(0.0, -late))

    async def _outcome(self, session: aiohttp.ClientSession, question: questions.Question) -> tuple[str, str]:
        """Sends a question. Returns a kind as of reports.Outcome, and the text of the answer or error."""
        for _ in range(2):
            reused: dict[str, bool] = {}
            try:
                return await self._answer_to(session, question, reused)
            except aiohttp.ServerDisconnectedError:
                # The server may close an idle connection at any moment, also just before a request on it arrives. To
                # send the request again is allowed where that is known to be safe (RFC 9110, 9.2.2): a prediction is.
                if not reused:
                    return "hung up", ""
                self._resent += 1
            except TimeoutError:
                return "no answer in time", ""
            except aiohttp.ClientError as error:
                return _kind_of(error), str(error)
        return "hung up", ""

    async def _answer_to(
        self, session: aiohttp.ClientSession, question: questions.Question, reused: dict[str, bool]
    ) -> tuple[str, str]:
        sending = session.post(self._url, data=question.body, headers=self._headers, trace_request_ctx=reused)
        async with sending as answer:
            body = await answer.read()
        if answer.status != 200:
            return str(answer.status), " ".join(body.decode(errors="replace").split())
        verdict = questions.judge(question, body, self._texts)
        words = "" if verdict is questions.Verdict.RIGHT else body.decode(errors="replace")
        return verdict, words

    def _remember(self, question: questions.Question) -> None:
        self._recent.extend(question.texts)
        self._texts.update(question.texts)
        while len(self._recent) > REMEMBERED:
            self._texts.discard(self._recent.popleft())

    def serve(self) -> None:
        """Runs until `stop`, in the thread that calls it."""
        try:
            asyncio.run(self._run())
        except BaseException as error:  # a fault of this client's own is raised where the load ends
            self._error = error


async def _note_reuse(session: aiohttp.ClientSession, context: types.SimpleNamespace, parameters: object) -> None:
    context.trace_request_ctx["reused"] = True


def _kind_of(error: aiohttp.ClientError) -> str:
    kinds = (
        (aiohttp.ClientConnectorError, "not connected"),
        (aiohttp.ClientPayloadError, "answer cut off"),
        (aiohttp.ClientOSError, "connection reset"),
    )
    return next((name for kind, name in kinds if isinstance(error, kind)), type(error).__name__)


@contextlib.contextmanager
def load(
    ingress: str, host: str, path: str, *, callers: int = 8, rate: float = 0, seed: int | None = None
) -> Iterator[Load]:
    """Keeps so many callers busy until the block ends, then waits for the answers to their last requests.

    `ingress` is a base URL, `host` the Host header, `rate` requests per second at most, by all callers together
    (0: no limit). The block begins, and the counting with it, once the answers are right; raises TimeoutError where
    they never are.
    """
    with running(Load(ingress, host, path, callers, rate, seed)) as made:
        made.wait_until_settled()
        yield made


@contextlib.contextmanager
def running(made: Load) -> Iterator[Load]:
    """The same for a load that is made already, without waiting for an answer."""
    with in_thread(made.serve, made.stop, ANSWER_SECONDS * 2):
        yield made
    made.raise_own_error()


@contextlib.contextmanager
def in_thread(work: Callable[[], object], stop: Callable[[], object], seconds: float) -> Iterator[None]:
    """Runs `work` in a thread while the block runs; `stop` tells it to end, for which it has so many seconds."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(seconds)
