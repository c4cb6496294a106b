"""``staircase count``: what a corpus says about its tokens, exactly."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click

from workflows.commands.options import input_options
from workflows.terminal import print_json, say, terminal_progress

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Bytes with a unit, such as 4GB (10^9) or 4GiB (2^30)."""
    if value is None:
        return None
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is no size; a number and a unit, like 4GB.")
    number, unit, binary = match.groups()
    scale = (_BINARY if binary and unit else _UNITS)[unit.lower()]
    return int(float(number) * scale)


def _part(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """I/N: one of N parts."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is no part; I/N is needed, like 3/16.")
    return int(match[1]), int(match[2])


_SCOPE_OPTIONS = (
    click.option(
        "--scope",
        "kind",
        type=click.Choice(["document", "packed"]),
        default="document",
        show_default=True,
        help="Pairs inside documents, or of the stream that a trainer packs.",
    ),
    click.option(
        "--seq-length", type=click.IntRange(min=1), metavar="L", help="Inputs a sample (packed)."
    ),
    click.option(
        "--order",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Samples of a run, from `staircase corpus order` (packed).",
    ),
    click.option(
        "--window",
        type=click.IntRange(min=1),
        metavar="W",
        help="Context tokens before a position (document; not for next-token).",
    ),
)

_COUNT_OPTIONS = (
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="Processes on this machine  [default: as the work and the cores allow]",
    ),
    click.option("--scheduler", metavar="tcp://..", help="Dask scheduler of an existing cluster."),
    click.option(
        "--part",
        callback=_part,
        metavar="I/N",
        help="Count one of N parts (I modulo N); `signatures merge` joins them.",
    ),
    click.option(
        "--partition-tokens",
        type=click.IntRange(min=1),
        metavar="N",
        help="Tokens counted at once  [default: as many as memory allows]",
    ),
    click.option("--halves", is_flag=True, help="Count even documents (samples) apart as well."),
    click.option(
        "--memory",
        callback=_size,
        metavar="SIZE",
        help="Bound of all processes together, like 4GB  [default: half of what is free]",
    ),
    click.option("--resume", is_flag=True, help="Go on where an interrupted count stopped."),
    click.option("--overwrite", is_flag=True, help="Replace the store, or an unfinished count."),
)


def _with(options: tuple[Any, ...], command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


def scope_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the [scope] options; it receives them as ``scope``, a ``Scope``."""

    @wraps(command)
    def with_scope(
        *args: Any,
        kind: Any,
        seq_length: int | None,
        order: Path | None,
        window: int | None,
        **rest: Any,
    ) -> Any:
        from signatures.scope import Scope

        scope = Scope(kind=kind, seq_length=seq_length, order=order, window=window)
        return command(*args, scope=scope, **rest)

    return _with(_SCOPE_OPTIONS, with_scope)


def count_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the [count options]; it receives them as ``options``, ``CountOptions``."""

    @wraps(command)
    def with_options(*args: Any, **rest: Any) -> Any:
        from dataclasses import fields

        from signatures.scope import CountOptions

        names = [field.name for field in fields(CountOptions)]
        return command(*args, options=CountOptions(**{n: rest.pop(n) for n in names}), **rest)

    return _with(_COUNT_OPTIONS, with_options)


@click.group(name="count")
def count_command() -> None:
    """Count a corpus into a signature store: exact integers, at any size."""


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` what all counts take."""
    options = (
        click.argument("corpus", nargs=-1, required=True, type=click.Path(path_type=Path)),
        click.option("--out", required=True, type=click.Path(path_type=Path), metavar="STORE"),
        input_options,
        scope_options,
        count_options,
        click.option("--dry-run", is_flag=True, help="Predict memory, disk and time only."),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    )
    return _with(options, command)


@count_command.command("next-token")
@_common
def next_token(
    corpus: tuple[Path, ...], out: Path, dry_run: bool, as_json: bool, **settings: Any
) -> None:
    """Count which token follows which in CORPUS (prefixes, files or folders; several as one)."""
    from signatures.memory import keep_freed_memory

    keep_freed_memory()
    if dry_run:
        from signatures.estimate import estimate_next_token

        found = estimate_next_token(corpus, out=out, progress=terminal_progress(), **settings)
        print_json(found) if as_json else _predict(found, "pairs")
        return
    from signatures.count import count_next_token

    _count(count_next_token, corpus, out, as_json, "pairs", **settings)


_WHICH = "top:N | rank:A-B | all | FILE"
_anchors = click.option(
    "--anchors", required=True, metavar=_WHICH, help="Tokens whose contexts are counted."
)
_context_tokens = click.option(
    "--context-tokens",
    default="all",
    show_default=True,
    metavar=_WHICH,
    help="Tokens that are looked for before an anchor.",
)


@count_command.command("first-order")
@_common
@_anchors
@_context_tokens
@click.option(
    "--min-count",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Leave out entries of a smaller count; what is dropped is recorded.",
)
def first_order(anchors: str, context_tokens: str, min_count: int, **settings: Any) -> None:
    """Count which token follows an anchor, and which were present before it, in CORPUS."""
    from signatures.contexts import ContextOptions

    contexts = ContextOptions(
        kind="first-order", anchors=anchors, context_tokens=context_tokens, min_count=min_count
    )
    _count_contexts(contexts=contexts, counted="entries", **settings)


@count_command.command("projected")
@_common
@_anchors
@_context_tokens
@click.option("--columns", type=click.IntRange(min=1), metavar="R", help="Columns of random signs.")
@click.option("--seed", type=click.IntRange(min=0), metavar="S", help="Of the random signs.")
@click.option(
    "--matrix",
    type=click.Path(path_type=Path),
    metavar="FILE.npy",
    help="Integers from -128 to 127 instead, a row for each context token.",
)
def projected(
    anchors: str,
    context_tokens: str,
    columns: int | None,
    seed: int | None,
    matrix: Path | None,
    **settings: Any,
) -> None:
    """Sum a matrix over what was present before, for each anchor and label, in CORPUS."""
    from signatures.contexts import ContextOptions

    contexts = ContextOptions(
        kind="projected",
        anchors=anchors,
        context_tokens=context_tokens,
        columns=columns,
        seed=seed,
        matrix=matrix,
    )
    _count_contexts(contexts=contexts, counted="rows", **settings)


def _count_contexts(
    corpus: tuple[Path, ...],
    out: Path,
    dry_run: bool,
    as_json: bool,
    counted: str,
    **settings: Any,
) -> None:
    from signatures.memory import keep_freed_memory

    keep_freed_memory()
    if dry_run:
        from signatures.context_estimate import estimate_contexts

        found = estimate_contexts(corpus, out=out, progress=terminal_progress(), **settings)
        print_json(found) if as_json else _predict(found, counted)
        return
    from signatures.context_count import count_contexts

    _count(count_contexts, corpus, out, as_json, counted, **settings)


def _count(
    count: Callable[..., dict[str, Any]],
    corpus: tuple[Path, ...],
    out: Path,
    as_json: bool,
    counted: str,
    **settings: Any,
) -> None:
    with _resumable(out):
        result = count(corpus, out=out, progress=terminal_progress(), **settings)
    for notice in result["notices"]:
        say(notice)
    print_json(result) if as_json else _tell(result, counted)


@contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Tell whoever interrupts a count what is kept of it."""
    from signatures.scratch import scratch_folder

    try:
        yield
    except KeyboardInterrupt:
        if (folder := scratch_folder(out)).exists():
            say(f"finished partitions are kept in {folder}; go on with --resume")
        raise


def _predict(found: dict[str, Any], counted: str) -> None:
    say(f"{found['tokens']:,} tokens, about {found['entries']:,} distinct {counted}")
    say(f"memory {found['memory_bytes'] / 1e9:.2f} GB with {found['workers']} worker(s)")
    say(
        f"disk {found['disk_bytes'] / 1e9:.3f} GB, and {found['scratch_bytes'] / 1e9:.3f} GB of "
        "scratch until it is complete"
    )
    say(f"about {found['seconds']:.0f} s; {'it fits' if found['fits'] else 'it does not fit'}")


def _tell(result: dict[str, Any], counted: str) -> None:
    say(
        f"{result['tokens']:,} tokens of {result['documents']:,} documents: {result['pairs']:,} "
        f"pairs, {result['entries']:,} distinct {counted}"
    )
    say(f"{result['seconds']:.1f} s, {result['tokens_per_second'] / 1e6:.1f} M tokens/s")
    say(f"store: {result['store']}")
