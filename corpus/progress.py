"""What long work tells its caller: a stage with a total, and how much of it is done.

The terminal draws it (``workflows/terminal.py``); a library user passes nothing.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

Advance = Callable[[float], None]


class Progress(Protocol):
    """Receives the stages of long work."""

    def stage(self, title: str, total: float | None, unit: str) -> AbstractContextManager[Advance]:
        """Open a stage of ``total`` units (None: unknown); call the yielded with each advance."""
        ...


class Silent:
    """The default: nobody is watching."""

    def stage(self, title: str, total: float | None, unit: str) -> AbstractContextManager[Advance]:
        """Accept every advance and show nothing."""
        return nullcontext(lambda amount: None)


SILENT: Progress = Silent()
