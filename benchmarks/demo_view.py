"""How the demo looks: spinners, bars and tables on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import answers, load

DIRECT, BATCHED = "straight to the predictor", "through the sidecar"
PLAIN_WIDTH = 110
DISTURBED = 0.10  # share of all usable cores


class View:
    """Everything the demo prints."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        # Without a terminal: no colours and no cursor movement, whatever the environment says.
        self._console = (
            Console(highlight=False)
            if self.is_terminal
            else Console(width=PLAIN_WIDTH, highlight=False, force_terminal=False, no_color=True)
        )

    def say(self, text: str = "") -> None:
        self._console.print(text)

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """A spinner with a clock while something starts, and a line that it has."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with self._progress(columns) as progress:
            task = progress.add_task(what, total=None)
            yield
            seconds = progress.tasks[task].elapsed or 0.0
        self.say(f"[green]✓[/] {what} [dim]{seconds:.1f} s[/]")

    @contextlib.contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[], None]]:
        """A progress bar; the function it gives advances it by one."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with self._progress((*columns, TimeElapsedColumn())) as progress:
            task = progress.add_task(what, total=total)
            yield lambda: progress.advance(task)
        self.say(f"[green]✓[/] {what} [dim]{total:,} requests[/]")

    def results(
        self, title: str, direct: load.Measurement, batched: load.Measurement, mean_batch: float | None
    ) -> None:
        """The table of the two runs of an act."""
        table = Table(title=escape(title), title_justify="left", header_style="bold")
        table.add_column("")
        for title in ("requests/s", "p50", "p99", "mean batch size", "speed-up"):
            table.add_column(title, justify="right")
        table.add_row("without the sidecar", *_figures(direct), "1.0", "1.0x")
        mean = "?" if mean_batch is None else f"{mean_batch:.1f}"
        speed_up = f"[bold green]{batched.rate / direct.rate:.1f}x[/]"
        table.add_row("[bold]with the sidecar[/]", *_figures(batched), mean, speed_up)
        self.say()
        self._console.print(table)

    def samples(self, shared: answers.Shared, recorder: answers.Recorder, sentences: list[str]) -> None:
        """Two answers of one batch."""
        title = f"Two answers with batchId {shared.batch_id}"
        table = Table("sentence", "embedding", title=title, title_justify="left", header_style="bold")
        for number in (shared.first, shared.second):
            numbers = ", ".join(f"{value:+.4f}" for value in recorder.embedding(number)[:3])
            table.add_row(escape(shorten(sentences[number])), f"{numbers}, …")
        self._console.print(table)

    def neighbours(self, share: float) -> None:
        """Says so if other programs kept this machine busy, because the figures are worth less then."""
        if share > DISTURBED:
            text = f"Other programs used {share:.0%} of these cores meanwhile; run it again on a quieter machine."
            self.say(f"[yellow]{text}[/]")

    def failure(self, problem: str, advice: str, log: str = "") -> None:
        """What went wrong, the end of the log that explains it, and what to do."""
        self.say(f"[bold red]The demo failed:[/] {escape(problem)}")
        if log:
            self.say(f"[dim]the end of its output:[/]\n{escape(log)}")
        self.say(f"[bold]Next step:[/] {escape(advice)}")

    def _progress(self, columns: tuple[object, ...]) -> Progress:
        return Progress(*columns, console=self._console, transient=True, disable=not self.is_terminal)  # type: ignore[arg-type]


def shorten(sentence: str, width: int = 44) -> str:
    """The beginning of a sentence, cut between words."""
    if len(sentence) <= width:
        return sentence
    return sentence[: width - 1].rsplit(" ", 1)[0] + " …"


def _figures(measured: load.Measurement) -> list[str]:
    return [f"{measured.rate:,.0f}", f"{measured.p50 * 1000:,.0f} ms", f"{measured.p99 * 1000:,.0f} ms"]
