"""A progress display for long runs: silent for short ones, and free where nobody looks."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from torchlift.core.checks import check_size

if TYPE_CHECKING:
    import rich.progress
    from rich.console import Console

_WHOLE = 1000
"""The length of a full bar, in the units that rich counts."""

_BAR = 8
"""Characters that a bar has at least."""


class Progress:
    """One line per phase: bar, steps, epoch, the latest numbers, speed, time taken and time left.

        with Progress() as progress:
            progress.start("warm-up", total_steps=500, time_limit=60)
            for step in range(1, 501):
                ...
                progress.update(step, objective=objective, epoch=step / 50)

    A phase ends with its steps or its time, whichever comes first; the bar
    shows the one that is further. Nothing appears when standard error is not a
    terminal, or before a second has passed. There is no thread: the display
    changes only inside calls, at most five times a second.

    Arguments:
        quiet: show nothing at all.
        console: where to draw; standard error by default.
        delay: seconds before the display appears.
        interval: seconds between two refreshes.
    """

    def __init__(
        self, *, quiet: bool = False, console: Console | None = None, delay: float = 1.0, interval: float = 0.2
    ) -> None:
        self._console = console
        self._shown = not quiet and (_stream_is_terminal(sys.stderr) if console is None else console.is_terminal)
        self._delay = delay
        self._interval = interval
        self._bar: rich.progress.Progress | None = None
        self._phase: _Phase | None = None
        self._opened = self._next = time.perf_counter()

    def __enter__(self) -> Progress:
        self._opened = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Show the last numbers and give the terminal back, also after Ctrl-C."""
        try:
            self._finish_phase()
        finally:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def start(self, description: str, total_steps: int | None = None, time_limit: float | None = None) -> None:
        """Begin a phase, below the ones before it. Steps are counted within the phase."""
        if not self._shown:
            return
        self._finish_phase()
        self._phase = _Phase(description, total_steps, time_limit)
        self._next = max(self._opened + self._delay, time.perf_counter())

    def update(self, step: int, *, samples: int | None = None, **numbers: float | None) -> None:
        """Note how far the phase is.

        Arguments:
            step: steps made in this phase.
            samples: samples seen in this phase; the speed then counts them instead of steps.
            numbers: such as objective, psnr, epoch, gap; each stays until it is
                replaced. Narrow terminals leave out the last ones.
        """
        if type(step) is not int or not (samples is None or type(samples) is int):  # the usual case makes no calls
            step = check_size("Progress.update step", step, minimum=0)
            samples = None if samples is None else check_size("Progress.update samples", samples, minimum=0)
        phase = self._phase
        if phase is None:
            return
        phase.note(step, samples, numbers)
        now = time.perf_counter()
        if now >= self._next:
            self._next = now + self._interval
            self._draw(phase, now)

    def message(self, text: str) -> None:
        """A line above the display."""
        if self._shown:
            self._terminal().print(text, markup=False, highlight=False)

    def _finish_phase(self) -> None:
        phase, self._phase = self._phase, None
        if phase is not None and (self._bar is not None or time.perf_counter() >= self._opened + self._delay):
            self._draw(phase, time.perf_counter())

    def _draw(self, phase: _Phase, now: float) -> None:
        if self._bar is None:
            self._bar = _new_bar(self._terminal())  # kept before it starts, so that an interruption can stop it
            self._bar.start()
        bar = self._bar
        fraction = phase.fraction(now)
        if phase.task is None:
            total = None if fraction is None else _WHOLE
            phase.task = bar.add_task(phase.description, total=total, steps="", numbers="", speed="", times="")
        phase.measure(now)
        steps, speed, times = phase.steps(), phase.speed(), phase.times(now)
        room = bar.console.width - len(phase.description + steps + speed + times) - _BAR - 6
        bar.update(
            phase.task,
            completed=_WHOLE * (fraction or 0.0),
            steps=steps,
            numbers=phase.text(room),
            speed=speed,
            times=times,
        )
        bar.refresh()

    def _terminal(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(stderr=True)
        return self._console


class _Phase:
    """The latest numbers of a phase, and its speed."""

    def __init__(self, description: str, total_steps: int | None, time_limit: float | None) -> None:
        self.description = description
        self.total_steps = total_steps
        self.time_limit = time_limit
        self.task: rich.progress.TaskID | None = None
        self.began = self._measured_at = time.perf_counter()
        self._step = 0
        self._samples: int | None = None
        self._numbers: dict[str, float | None] = {}
        # Steps and samples of the last measurement; a resumed phase does not begin at 0.
        self._measured: tuple[int, int | None] | None = None
        self._rates: tuple[float, float] | None = None

    def note(self, step: int, samples: int | None, numbers: dict[str, float | None]) -> None:
        self._step = step
        self._samples = samples
        self._numbers.update(numbers)
        if self._measured is None:
            self._measured = (step, samples)
            self._measured_at = time.perf_counter()

    def measure(self, now: float) -> None:
        """Steps and samples per second since the last measurement, smoothed."""
        passed = now - self._measured_at
        if self._measured is None or passed <= 0 or self._step == self._measured[0]:
            return
        steps, samples = self._step - self._measured[0], (self._samples or 0) - (self._measured[1] or 0)
        new = (steps / passed, samples / passed)
        old = self._rates or new
        self._rates = (0.7 * old[0] + 0.3 * new[0], 0.7 * old[1] + 0.3 * new[1])
        self._measured, self._measured_at = (self._step, self._samples), now

    def fraction(self, now: float) -> float | None:
        """The part that is done, by steps or by time; None where neither has an end."""
        parts = []
        if self.total_steps:
            parts.append(self._step / self.total_steps)
        if self.time_limit:
            parts.append((now - self.began) / self.time_limit)
        return min(max(parts), 1.0) if parts else None

    def steps(self) -> str:
        return f"{self._step}/{self.total_steps}" if self.total_steps else f"step {self._step}"

    def text(self, room: int) -> str:
        """The first numbers that fit into so many characters."""
        line = ""
        for name, value in self._numbers.items():
            part = "" if value is None else f"{name.replace('_', ' ')} {value:.4g}"
            longer = f"{line}  {part}".strip()
            if len(longer) > room:
                break
            line = longer
        return line

    def speed(self) -> str:
        if self._rates is None:
            return ""
        return f"{self._rates[0]:.3g} steps/s" if self._samples is None else f"{self._rates[1]:.0f} samples/s"

    def times(self, now: float) -> str:
        """Taken and left: "1:10 < 3:20"."""
        taken, left = now - self.began, []
        if self.total_steps and self._rates is not None and self._rates[0] > 0:
            left.append(max(self.total_steps - self._step, 0) / self._rates[0])
        if self.time_limit:
            left.append(max(self.time_limit - taken, 0.0))
        return f"{_clock(taken)} < {_clock(min(left))}" if left else _clock(taken)


def _clock(seconds: float) -> str:
    """Minutes and seconds, and hours and days where there are some."""
    return str(timedelta(seconds=round(seconds))).removeprefix("0:")


def _stream_is_terminal(stream: TextIO | None) -> bool:
    """Programs without a console have None instead of a stream."""
    return stream is not None and stream.isatty()


def _new_bar(console: Console) -> rich.progress.Progress:
    # rich is imported when there is something to show: quick runs do without
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    def text(field: str, style: str = "none") -> TextColumn:
        return TextColumn(f"{{task.{field}}}", style=style, markup=False, table_column=Column(no_wrap=True))

    columns = (
        text("description", "bold"),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=_BAR)),
        text("fields[steps]"),
        text("fields[numbers]", "cyan"),
        text("fields[speed]"),
        text("fields[times]", "dim"),
    )
    # What a program prints to a file must not end up in the display.
    redirect = _stream_is_terminal(sys.stdout)
    return Progress(*columns, console=console, auto_refresh=False, expand=True, redirect_stdout=redirect)
