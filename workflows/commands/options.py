"""Options that several commands share."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

_FORMATS = ("auto", "megatron", "flat", "datatrove", "hf", "parquet")
_OPTIONS = (
    click.option(
        "--format",
        "format_",
        type=click.Choice(_FORMATS),
        default="auto",
        show_default=True,
        help="What the files are; auto goes by name and content.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["uint16", "int32", "uint32"]),
        help="Token type of a flat file, which does not say it itself.",
    ),
    click.option(
        "--eod", type=click.IntRange(min=0), metavar="ID", help="Token that ends a document."
    ),
    click.option(
        "--tokens-column",
        metavar="NAME",
        help="Column of token ids  [default: input_ids, else the only column of integer lists]",
    ),
    click.option(
        "--vocab-size", type=click.IntRange(min=1), metavar="V", help="Number of token ids."
    ),
    click.option(
        "--tokenizer",
        type=click.Path(path_type=Path),
        metavar="tokenizer.json",
        help="Tokenizer that made the corpus; says V and the special tokens.",
    ),
    click.option(
        "--special",
        metavar="IDS|tokenizer.json",
        help="Tokens that top:N leaves out: ids with commas, or the tokenizer that has them.",
    ),
)


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the [input] options; it receives them as ``input``, an ``InputOptions``."""

    @wraps(command)
    def with_input(
        *args: Any,
        format_: str,
        dtype: str | None,
        eod: int | None,
        tokens_column: str | None,
        vocab_size: int | None,
        tokenizer: Path | None,
        special: str | None,
        **rest: Any,
    ) -> Any:
        from corpus.store import InputOptions

        options = InputOptions(
            format=format_,
            dtype=dtype,
            eod=eod,
            tokens_column=tokens_column,
            vocab_size=vocab_size,
            tokenizer=tokenizer,
            special=_special(special),
        )
        return command(*args, input=options, **rest)

    for option in reversed(_OPTIONS):
        with_input = option(with_input)
    return with_input


def _special(text: str | None) -> tuple[int, ...] | Path | None:
    """Ids with commas, or else a path."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if all(part.isascii() and part.isdigit() for part in parts):
        return tuple(int(part) for part in parts)
    path = Path(text)
    if not path.is_file():
        raise click.UsageError(
            f"--special {text}: neither token ids with commas (0,1,2) nor a tokenizer file."
        )
    return path
