"""Where tasks run: in this process, in processes of this machine, or on a Dask cluster.

A task is a module-level function and small arguments; what it makes lies on disk. Results come
back in the order of completion, with the number of their task.
"""

import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_CONNECT_SECONDS = 10
_TRIES = 3
_FREE_PORT = "127.0.0.1:0"
"""Of the scheduler's pages: without an address Dask takes 8787, and warns where it is in use."""


class Runner(Protocol):
    """Runs tasks."""

    workers: int
    """How many run at once."""

    def run(
        self,
        function: Callable[..., T],
        arguments: Sequence[tuple[Any, ...]],
        at_once: int | None = None,
    ) -> Iterator[tuple[int, T]]:
        """Call ``function`` with each of ``arguments``; yield (number, result) as they end.

        ``at_once`` keeps so many tasks in flight at most.
        """

    def everywhere(self, function: Callable[..., T], *arguments: Any) -> list[T]:
        """Call ``function`` once in every process that runs tasks."""


class InProcess:
    """One after the other, here."""

    workers = 1

    def run(
        self,
        function: Callable[..., T],
        arguments: Sequence[tuple[Any, ...]],
        at_once: int | None = None,
    ) -> Iterator[tuple[int, T]]:
        """Call and yield, in order."""
        for number, one in enumerate(arguments):
            yield number, function(*one)

    def everywhere(self, function: Callable[..., T], *arguments: Any) -> list[T]:
        """Call it here."""
        return [function(*arguments)]


class OnDask:
    """On the workers of a Dask client; a task whose worker dies runs again elsewhere."""

    def __init__(self, client: Any, workers: int) -> None:
        self._client = client
        self.workers = workers

    def run(
        self,
        function: Callable[..., T],
        arguments: Sequence[tuple[Any, ...]],
        at_once: int | None = None,
    ) -> Iterator[tuple[int, T]]:
        """Submit, and yield as they end; on an error the rest is cancelled and it is raised."""
        from distributed import KilledWorker, as_completed

        numbers: dict[Any, int] = {}

        def submit(number: int) -> Any:
            future = self._client.submit(function, *arguments[number], pure=False)
            numbers[future] = number
            return future

        most = len(arguments) if at_once is None else min(at_once, len(arguments))
        waiting = iter(range(most, len(arguments)))
        ended = as_completed([submit(number) for number in range(most)])
        try:
            for future in ended:
                if (number := next(waiting, None)) is not None:
                    ended.add(submit(number))
                yield numbers.pop(future), future.result()
        except KilledWorker as error:
            raise RuntimeError(
                f"{_TRIES} workers in a row died over the same task (out of memory?): {error}; "
                "lower --memory or --partition-tokens, then go on with --resume"
            ) from error
        finally:
            self._client.cancel(list(numbers))

    def everywhere(self, function: Callable[..., T], *arguments: Any) -> list[T]:
        """Call it on every worker."""
        return list(self._client.run(function, *arguments).values())


@contextmanager
def open_runner(
    workers: int, scheduler: str | None = None, environment: Mapping[str, Any] | None = None
) -> Iterator[Runner]:
    """Open what runs tasks: one worker is this process, more are processes of this machine.

    ``environment`` is added to that of processes that are begun here.

    Raises
    ------
    RuntimeError
        No scheduler answers at the address, or it has no workers.
    """
    if scheduler is None and workers == 1:
        yield InProcess()
    elif scheduler is None:
        with _local_client(workers, environment or {}) as client:
            yield OnDask(client, workers)
    else:
        with _remote_client(scheduler) as client:
            yield OnDask(client, _workers_of(client, scheduler))


@contextmanager
def _local_client(workers: int, environment: Mapping[str, Any]) -> Iterator[Any]:
    import dask
    from distributed import Client, LocalCluster

    before = "distributed.nanny.pre-spawn-environ"
    settings = {
        before: {**dask.config.get(before), **environment},
        "distributed.scheduler.allowed-failures": _TRIES,
        "distributed.admin.system-monitor.gil.enabled": False,
        "distributed.worker.profile.enabled": False,
    }
    with dask.config.set(settings), ExitStack() as stack:
        with _interrupts_held_back():
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                scheduler_kwargs={"dashboard_address": _FREE_PORT},
                memory_limit=0,  # --memory is kept by block sizes; Dask must not pause or kill
                silence_logs=logging.CRITICAL,
            )
            client = stack.enter_context(Client(stack.enter_context(cluster)))
        yield client


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Let processes and threads begun meanwhile never see Ctrl-C; it reaches us at the end.

    A terminal sends it to the whole group. Workers that die of it would be started again, and
    complain, while this process is closing them.
    """
    resource_tracker.ensure_running()  # multiprocessing lifts the block when it starts this
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


@contextmanager
def _remote_client(scheduler: str) -> Iterator[Any]:
    from distributed import Client

    try:
        client = Client(scheduler, timeout=_CONNECT_SECONDS)
    except (OSError, ValueError, TimeoutError) as error:
        raise RuntimeError(
            f"{scheduler}: no Dask scheduler answers within {_CONNECT_SECONDS} s ({error}); start "
            "one with `dask scheduler`, or leave --scheduler out to use this machine"
        ) from error
    with client:
        yield client


def _workers_of(client: Any, scheduler: str) -> int:
    threads = client.nthreads()
    if not threads:
        raise RuntimeError(
            f"{scheduler}: the scheduler has no workers; start some with `dask worker {scheduler}`"
        )
    return sum(threads.values())


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
