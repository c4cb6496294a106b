"""From raw records to text: what a worker does before it tokenises.

A record is a text, or the reason why it is none.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from corpus.sources import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A record that is no text."""

    number: int
    reason: str


def texts_of(block: Block, text_column: str) -> Iterator[str | Fault]:
    """Each record of ``block`` as text, or as the fault in it; blank lines hold no record."""
    for number, record in enumerate(block.records, start=block.first):
        try:
            if block.kind == "text":
                yield _cell(record)
            elif record is not None and record.strip():
                yield _json_text(record, text_column)
        except _BrokenRecordError as error:
            yield Fault(number=number, reason=str(error))


class _BrokenRecordError(Exception):
    """Why a record is no text."""


def _cell(record: bytes | None) -> str:
    if record is None:
        raise _BrokenRecordError("the text is null")
    return _decoded(record)


def _json_text(line: bytes, text_column: str) -> str:
    try:
        row = json.loads(_decoded(line))
    except (ValueError, RecursionError) as error:
        raise _BrokenRecordError(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise _BrokenRecordError(f"a JSON {type(row).__name__} where an object is needed")
    if text_column not in row:
        raise _BrokenRecordError(
            f"no key {text_column!r}, found {sorted(row)[:8]}; name it with --text-column"
        )
    text = row[text_column]
    if text is None:
        raise _BrokenRecordError(f"{text_column!r} is null")
    if not isinstance(text, str):
        raise _BrokenRecordError(f"{text_column!r} is a {type(text).__name__}, text is needed")
    if b"\\u" in line:
        _refuse_surrogates(text)
    return text


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _BrokenRecordError(
            f"not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start} ({error.reason})"
        ) from error


def _refuse_surrogates(text: str) -> None:
    """JSON can spell half a character; no encoding can write it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _BrokenRecordError(
            f"lone surrogate U+{ord(text[error.start]):04X} at character {error.start}"
        ) from error
