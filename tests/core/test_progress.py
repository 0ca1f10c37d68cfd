"""The progress display: what it shows, when, and that it costs nothing where nobody looks."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from torchlift.core import progress as progress_module
from torchlift.core.progress import Progress


def _console(width: int = 140) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def _raw(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _lines(console: Console) -> list[str]:
    """What is on the screen in the end: the last frame, line by line."""
    frame = _raw(console).replace("\x1b[?25h", "").split("\x1b[2K")[-1]
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", frame).splitlines() if line.strip()]


def test_a_phase_shows_its_steps_and_latest_numbers() -> None:
    console = _console()
    with Progress(console=console, delay=0, interval=0) as progress:
        progress.start("warm-up", total_steps=40)
        for step in range(1, 11):
            time.sleep(0.001)
            progress.update(step, objective=1 / step, psnr=21.5 if step == 3 else None, epoch=step / 4, gap=None)
        line = _lines(console)[-1]
    assert line.startswith("warm-up ")
    assert " 10/40 " in line
    assert "objective 0.1  epoch 2.5" in line  # None leaves a number out
    assert re.search(r"[\d.]+ steps/s +00:00 < 00:0\d$", line)


def test_numbers_stay_until_they_are_replaced() -> None:
    console = _console()
    with Progress(console=console, delay=0, interval=0) as progress:
        progress.start("main", total_steps=10)
        progress.update(1, objective=3.0, psnr=21.5)
        progress.update(2, objective=2.0)
    assert "objective 2  psnr 21.5" in _lines(console)[-1]


def test_phases_stay_below_each_other_with_their_last_numbers() -> None:
    console = _console()
    with Progress(console=console, delay=0, interval=100) as progress:  # all but the first updates are skipped
        for name, steps in (("first", 5), ("second", 7)):
            progress.start(name, total_steps=steps)
            for step in range(1, steps + 1):
                progress.update(step, objective=float(step))
    first, second = _lines(console)[-2:]
    assert re.match(r"first .* 5/5 .*objective 5", first)
    assert re.match(r"second .* 7/7 .*objective 7", second)


def test_the_bar_follows_what_ends_first() -> None:
    def filled(total_steps: int | None, time_limit: float | None) -> float | None:
        console = _console()
        with Progress(console=console, delay=0, interval=0) as progress:
            progress.start("main", total_steps, time_limit)
            time.sleep(0.05)
            progress.update(5)
            assert progress._bar is not None
            task = progress._bar.tasks[0]
            return None if task.total is None else task.completed / task.total

    assert filled(10, None) == pytest.approx(0.5)
    assert filled(10, 1000.0) == pytest.approx(0.5)
    by_time = filled(1000, 0.1)
    assert by_time is not None and 0.5 <= by_time <= 1
    assert filled(1000, 0.01) == 1.0
    assert filled(None, None) is None


def test_time_left_is_the_shorter_one() -> None:
    console = _console()
    with Progress(console=console, delay=0, interval=0) as progress:
        progress.start("main", 10**6, time_limit=90)
        progress.update(1)
        time.sleep(0.01)
        progress.update(2)
    assert re.search(r"00:00 < 01:(30|29)$", _lines(console)[-1])


def test_a_resumed_phase_does_not_count_the_steps_before() -> None:
    console = _console()
    with Progress(console=console, delay=0, interval=0) as progress:
        progress.start("main", 10**6)
        progress.update(500_000, samples=32_000_000)
        time.sleep(0.02)
        progress.update(500_001, samples=32_000_064)
    found = re.search(r"(\d+) samples/s", _lines(console)[-1])
    assert found is not None
    assert 64 / 1.0 < float(found[1]) <= 64 / 0.02


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_lines_fit_the_terminal(width: int) -> None:
    console = _console(width)
    with Progress(console=console, delay=0, interval=0) as progress:
        progress.start("main", 500)
        for step in (1, 2):
            time.sleep(0.002)
            progress.update(step, objective=0.1234567, psnr=20.0, epoch=1.5, gap=1e-3, learning_rate=1e-3)
        line = _lines(console)[-1]
    assert len(line) <= width
    assert "…" not in line and "2/500" in line
    assert ("learning rate 0.001" in line) is (width == 200)
    assert ("objective 0.1235" in line) is (width > 60)


def test_messages_are_printed_as_they_are() -> None:
    console = _console()
    with Progress(console=console, delay=0, interval=0) as progress:
        progress.start("main", 10)
        progress.update(1)
        progress.message("best so far: [bold]21.5[/bold]")
        progress.update(2)
    assert "best so far: [bold]21.5[/bold]" in _raw(console)


def test_quick_runs_are_silent() -> None:
    console = _console()
    with Progress(console=console) as progress:
        progress.start("main", 10)
        for step in range(10):
            progress.update(step, objective=1.0)
    assert _raw(console) == ""


def test_the_display_appears_after_the_delay() -> None:
    console = _console()
    with Progress(console=console, delay=0.05) as progress:
        progress.start("main", 10)
        progress.update(1)
        assert _raw(console) == ""
        time.sleep(0.06)
        progress.update(2)
        assert "2/10" in _raw(console)


@pytest.mark.parametrize("quiet", [True, False])
def test_nothing_is_shown_where_nobody_looks(quiet: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=quiet)  # quiet on a terminal; not quiet, but no terminal
    with Progress(quiet=quiet, console=console, delay=0, interval=0) as progress:
        progress.start("main", 10)
        progress.update(1, objective=1.0)
        progress.message("text")
    assert file.getvalue() == ""


def test_without_a_terminal_rich_is_not_even_imported() -> None:
    code = (
        "import runpy, sys\n"
        f"Progress = runpy.run_path({progress_module.__file__!r})['Progress']\n"  # alone: torch takes seconds to load
        "with Progress(delay=0, interval=0) as progress:\n"
        "    progress.start('main', 10)\n"
        "    progress.update(1)\n"
        "print('rich' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


def test_a_missing_standard_error_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with Progress(delay=0) as progress:
        progress.start("main", 10)
        progress.update(1)


def test_an_interruption_gives_the_terminal_back() -> None:
    console = _console()
    with pytest.raises(KeyboardInterrupt), Progress(console=console, delay=0, interval=0) as progress:  # noqa: PT012
        progress.start("main", 10)
        progress.update(3)
        raise KeyboardInterrupt
    assert _raw(console).count("\x1b[?25l") == _raw(console).count("\x1b[?25h") == 1  # cursor hidden, then shown
    assert "3/10" in _lines(console)[-1]
    progress.update(4)  # after the end nothing happens
    assert "4/10" not in _raw(console)


def test_what_a_program_prints_to_a_file_stays_there(capsys: pytest.CaptureFixture[str]) -> None:
    console = _console()
    with Progress(console=console, delay=0, interval=0) as progress:
        progress.start("main", 10)
        progress.update(1)
        print('{"json": 1}')
    assert capsys.readouterr().out == '{"json": 1}\n'
    assert "json" not in _raw(console)


@pytest.mark.parametrize("quiet", [True, False])
def test_skipped_updates_cost_little(quiet: bool) -> None:
    """As much as a few calls of a function that does nothing with the same numbers."""

    def nothing(step: int, *, samples: int | None = None, **numbers: float | None) -> None: ...

    def seconds(update: Callable[..., None]) -> float:
        began = time.process_time()
        for step in range(2000):
            update(step, objective=1.0, gap=0.1, psnr=20.0, epoch=0.5)
        return time.process_time() - began

    with Progress(quiet=quiet, console=_console(), delay=1000) as progress:
        progress.start("main", 10**6)
        ratio = min(seconds(progress.update) / seconds(nothing) for _ in range(5))
    assert ratio < 20
