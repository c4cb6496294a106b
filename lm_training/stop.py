"""SIGTERM asks a run to save and end; schedulers send it before they take the machine away."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StopRequest:
    """Whether this process was asked to stop."""

    asked = False


@contextmanager
def stop_on_sigterm() -> Iterator[StopRequest]:
    """Note a SIGTERM instead of dying by it, in the main thread; elsewhere change nothing."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(signum: int, frame: object) -> None:
        request.asked = True

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield request
    finally:
        signal.signal(signal.SIGTERM, before)
