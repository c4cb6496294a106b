"""``staircase signatures``: look into stores, check them, merge and export them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workflows.commands.semantics import semantics_command
from workflows.terminal import print_json, say, terminal_progress

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from signatures.store import Signatures

_STORE = click.argument("store", type=click.Path(path_type=Path), metavar="STORE")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
_FAILED = 1


@click.group()
def signatures_command() -> None:
    """Signature stores: look into them, check them, merge and export them."""


signatures_command.add_command(semantics_command)


@signatures_command.command("inspect")
@_STORE
@_JSON
def inspect_command(store: Path, as_json: bool) -> None:
    """Say what a store holds and where it came from."""
    from signatures.description import describe_store

    described = describe_store(store)
    if as_json:
        print_json(described)
        return
    for line in _readable(described):
        click.echo(line)


@signatures_command.command("verify")
@_STORE
@_JSON
def verify_command(store: Path, as_json: bool) -> int:
    """Read a whole store and re-derive what it says of itself; exit 1 when something is wrong."""
    from signatures.memory import keep_freed_memory
    from signatures.store import verify_store

    keep_freed_memory()
    problems = verify_store(store, progress=terminal_progress())
    if as_json:
        print_json({"ok": not problems, "problems": problems})
    else:
        for problem in problems:
            click.echo(problem)
        click.echo(f"{store}: {f'{len(problems)} problem(s)' if problems else 'sound'}")
    return _FAILED if problems else 0


@signatures_command.command("merge")
@click.argument(
    "stores", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="STORE..."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The new store.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes; default all cores.")
@click.option("--overwrite", is_flag=True, help="Replace an existing store.")
@_JSON
def merge_command(
    stores: tuple[Path, ...],
    out: Path,
    workers: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Add the counts of stores: the parts of one count, or more corpus."""
    import os

    from signatures.memory import keep_freed_memory
    from signatures.merge import merge_stores

    keep_freed_memory()
    result = merge_stores(
        stores,
        out,
        overwrite=overwrite,
        workers=workers or os.cpu_count() or 1,
        progress=terminal_progress(),
    )
    if as_json:
        print_json(result)
        return
    say(f"{out}: {result['entries']} entries, {result['pairs']} pairs of {len(stores)} stores")


@signatures_command.command("export")
@_STORE
@click.option("--out", type=click.Path(path_type=Path), required=True, help="FILE.npz to write.")
@click.option("--anchor", type=int, help="Only this anchor of a first-order store: (V, C).")
@_JSON
def export_command(store: Path, out: Path, anchor: int | None, as_json: bool) -> None:
    """Write the integer counts for scipy.sparse.load_npz."""
    from signatures.export import export_npz
    from signatures.store import open_signatures

    result = export_npz(open_signatures(store), out, anchor=anchor, progress=terminal_progress())
    if as_json:
        print_json(result)
        return
    say(f"{out}: {result['shape'][0]} x {result['shape'][1]}, {result['entries']} entries")


@signatures_command.command("neighbors")
@_STORE
@click.argument("token")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="tokenizer.json; TOKEN may then be text, and texts are printed.",
)
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True)
@_JSON
def neighbors_command(
    store: Path, token: str, tokenizer: Path | None, top: int, as_json: bool
) -> None:
    """List the tokens whose next-token signatures are closest to TOKEN's, by cosine.

    TOKEN is an id or, with --tokenizer, text that is one token; digits are an id.
    """
    from signatures.neighbors import nearest_tokens
    from signatures.store import open_signatures

    signatures = open_signatures(store)
    words = None if tokenizer is None else _tokenizer_of(signatures, tokenizer)
    number = _token_number(token, words)
    found = nearest_tokens(signatures, number, top=top, progress=terminal_progress())
    rows = [
        {"token": i, "text": None if words is None else words.decode([i], False), "cosine": cosine}
        for i, cosine in found
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        text = "" if row["text"] is None else f"  {row['text']!r}"
        click.echo(f"{row['cosine']:.6f}  {row['token']:>7}{text}")


def _tokenizer_of(signatures: "Signatures", path: Path) -> "Tokenizer":
    """Load the tokenizer at ``path``, refusing one that the store was not counted with."""
    from tokenizers import Tokenizer

    from corpus.tokenizer import tokenizer_hash

    found, counted = tokenizer_hash(path), signatures.spec.tokenizer
    if counted is not None and found != counted:
        raise ValueError(
            f"{path}: tokenizer hash {found[:12]}, but {signatures.where} was counted with "
            f"{counted[:12]}; name the tokenizer of that corpus"
        )
    return Tokenizer.from_file(str(path))


def _token_number(token: str, words: "Tokenizer | None") -> int:
    """Read TOKEN as an id, else as text of one token."""
    if token.isascii() and token.isdigit():
        return int(token)
    if words is None:
        raise ValueError(f"TOKEN is {token!r}, an id is needed; for text name a --tokenizer")
    known = words.token_to_id(token)
    if known is not None:
        return int(known)
    ids = words.encode(token, add_special_tokens=False).ids
    if len(ids) != 1:
        pieces = [words.decode([i], False) for i in ids]
        raise ValueError(f"{token!r} is {len(ids)} tokens, {pieces}; text of one token is needed")
    return int(ids[0])


def _readable(described: dict[str, Any]) -> list[str]:
    """Lines for people: one a key, nested keys joined by a dot."""
    lines = []
    for key, value in described.items():
        if isinstance(value, dict) and value:
            lines += [f"{key}.{line}" for line in _readable(value)]
        elif key == "corpus":
            lines += [f"corpus  {source}" for source in value]
        else:
            lines.append(f"{key}  {'-' if value is None else value}")
    return lines
