"""``staircase corpus``: train a tokenizer, build a corpus, look into one."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from workflows.commands.options import input_options
from workflows.commands.order import order_command
from workflows.terminal import print_json, say, terminal_progress

if TYPE_CHECKING:
    from corpus.store import InputOptions

_SOURCES = click.argument(
    "sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SOURCE..."
)
_TEXT_COLUMN = click.option(
    "--text-column", default="text", show_default=True, help="Key or column that holds the text."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


@click.group()
def corpus_command() -> None:
    """Tokenised corpora: build them from text, look into them."""


@corpus_command.command("train-tokenizer")
@_SOURCES
@click.option("--vocab-size", type=int, required=True, help="Number of tokens, at least 257.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="tokenizer.json")
@_TEXT_COLUMN
@click.option("--overwrite", is_flag=True, help="Replace an existing tokenizer.")
@_JSON
def train_tokenizer_command(
    sources: tuple[Path, ...],
    vocab_size: int,
    out: Path,
    text_column: str,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Train a byte-level BPE tokenizer on text."""
    from corpus.tokenize import train_tokenizer

    result = train_tokenizer(
        sources,
        vocab_size=vocab_size,
        out=out,
        text_column=text_column,
        overwrite=overwrite,
        progress=terminal_progress(),
    )
    if as_json:
        print_json(result)
        return
    say(f"{out}: {result['vocab_size']} tokens from {result['documents']} documents")
    if result["vocab_size"] < vocab_size:
        say(f"the text is too small for the {vocab_size} tokens asked for")


@corpus_command.command("build")
@_SOURCES
@click.option(
    "--tokenizer", type=click.Path(path_type=Path), required=True, help="tokenizer.json to use."
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Prefix of .bin, .idx and .json."
)
@_TEXT_COLUMN
@click.option(
    "--append-eod/--no-append-eod",
    default=True,
    show_default=True,
    help="End each document with the end token.",
)
@click.option("--eod-token", default="<|endoftext|>", show_default=True, help="The end token.")
@click.option(
    "--allow-special",
    is_flag=True,
    help="Let special-token text in documents become special tokens; plain text otherwise.",
)
@click.option(
    "--on-error",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="Stop at a broken record, or leave it out and list it.",
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes  [default: all cores]")
@click.option("--overwrite", is_flag=True, help="Replace an existing corpus.")
@_JSON
def build_command(
    sources: tuple[Path, ...],
    tokenizer: Path,
    out: Path,
    text_column: str,
    append_eod: bool,
    eod_token: str,
    allow_special: bool,
    on_error: Literal["fail", "skip"],
    workers: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Tokenise text into a corpus that is counted and trained on alike.

    A SOURCE is jsonl, parquet, arrow, a folder saved by `datasets`, or any other file, which is
    one document; .gz and .zst are read as what they hold; a folder is its files, sorted.
    """
    from corpus.tokenize import build_corpus

    result = build_corpus(
        sources,
        tokenizer=tokenizer,
        out=out,
        text_column=text_column,
        append_eod=append_eod,
        eod_token=eod_token,
        allow_special=allow_special,
        on_error=on_error,
        workers=workers,
        overwrite=overwrite,
        progress=terminal_progress(),
    )
    if as_json:
        print_json(result)
    else:
        _describe_build(result)


def _describe_build(result: dict[str, Any]) -> None:
    say(
        f"{result['corpus']}: {result['documents']} documents ({result['empty_documents']} empty, "
        f"{result['skipped_documents']} skipped), {result['tokens']} tokens, {result['dtype']}"
    )
    for text, times in result["special_text_seen"].items():
        say(f"{text!r} stood in documents {times} times; it was read as {result['special_text']}")
    for problem in result["problems"]:
        say(problem)
    if result["num_problems"] > len(result["problems"]):
        say(f"... {result['num_problems']} problems in all")


@corpus_command.command("inspect")
@click.argument(
    "paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="CORPUS..."
)
@input_options
@click.option("--top", type=click.IntRange(min=0), default=20, show_default=True)
@_JSON
def inspect_command(
    paths: tuple[Path, ...], top: int, as_json: bool, input: "InputOptions"
) -> None:
    """Say what a corpus holds, and what is wrong with it."""
    from corpus.inspection import describe, inspect_corpus

    result = inspect_corpus(list(paths), input, top=top, progress=terminal_progress())
    if as_json:
        print_json(result)
        return
    for line in describe(result):
        click.echo(line)


corpus_command.add_command(order_command)
