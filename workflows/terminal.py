"""What a person at a terminal sees: progress on stderr, one JSON object on stdout."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from corpus.progress import Advance

_SECONDS_BETWEEN_LINES = 10.0


def print_json(result: Any) -> None:
    """Write ``result`` as one JSON object on stdout; an undefined number is null."""
    sys.stdout.write(json.dumps(_defined(result), allow_nan=False, ensure_ascii=False) + "\n")


def say(text: str) -> None:
    """Write a line for people, on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def terminal_progress() -> "BarProgress | LineProgress":
    """Bars on a terminal, a line every few seconds in a log file."""
    return BarProgress() if sys.stderr.isatty() else LineProgress()


class BarProgress:
    """One bar a stage, with rate and time left."""

    @contextmanager
    def stage(self, title: str, total: float | None, unit: str) -> Iterator[Advance]:
        """Draw a bar until the stage ends; it stays on screen."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.progress import TimeRemainingColumn as TimeLeft

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeLeft(),
        )
        with Progress(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(title, total=total, rate="")
            started = time.monotonic()

            def advance(amount: float) -> None:
                bars.advance(task, amount)
                done = bars.tasks[task].completed
                bars.update(task, rate=_rate(done, time.monotonic() - started, unit))

            yield advance
            bars.update(task, total=bars.tasks[task].completed)


class LineProgress:
    """A line at the start, every ten seconds, and at the end: for logs and pipes."""

    @contextmanager
    def stage(self, title: str, total: float | None, unit: str) -> Iterator[Advance]:
        """Print lines to stderr until the stage ends."""
        started = last = time.monotonic()
        done = 0.0
        say(f"{title} ...")

        def advance(amount: float) -> None:
            nonlocal done, last
            done += amount
            now = time.monotonic()
            if now - last >= _SECONDS_BETWEEN_LINES:
                last = now
                say(_line(title, done, total, now - started, unit))

        yield advance
        seconds = time.monotonic() - started
        say(f"{title}: {_scaled(done)} {unit} in {seconds:.1f} s ({_rate(done, seconds, unit)})")


def _line(title: str, done: float, total: float | None, seconds: float, unit: str) -> str:
    rate = _rate(done, seconds, unit)
    if not total or not done:
        return f"{title}: {_scaled(done)} {unit}, {rate}"
    left = seconds * (total - done) / done
    return f"{title}: {100 * done / total:.0f} %, {rate}, {left:.0f} s left"


def _rate(done: float, seconds: float, unit: str) -> str:
    return f"{_scaled(done / seconds)} {unit}/s" if seconds > 0 else ""


def _scaled(number: float) -> str:
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.1f} {suffix}"
    return f"{number:.3g}"


def _defined(value: Any) -> Any:
    """Replace NaN and infinity by None, NumPy scalars by Python numbers, paths by text."""
    if isinstance(value, dict):
        return {str(key): _defined(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_defined(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, float) and not (abs(value) < float("inf")):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
