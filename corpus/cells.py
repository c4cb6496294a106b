"""The text column of an arrow or parquet file, or of a folder saved by ``datasets``, by batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from corpus.parts import CorpusFormatError
from corpus.tables import batches_of, folder_files, is_parquet, open_arrow

Cells = list[bytes | None]
_ROWS = 256


class TextColumnError(ValueError):
    """A table whose text cannot be read; the reason, without the path."""


def text_cells(path: Path, column: str, block_bytes: int) -> Iterator[tuple[Cells, float]]:
    """Cells in row order, a block at a time, and the share of the table that each block is.

    A block holds about ``block_bytes``, or one longer cell. Null cells are None; the bytes are not
    checked to be UTF-8 here.

    Raises
    ------
    TextColumnError
        No such column, one that is not text, or a file that is cut or damaged.
    """
    try:
        files, order = folder_files(path) if path.is_dir() else ([path], None)
        if order is not None:
            yield from _mapped_cells(files, column, order)
            return
        tables = [_batches(file, column) for file in files]
        total = sum(rows for rows, _ in tables)
        for _, batches in tables:
            for batch in batches:
                yield from _blocks(_as_binary(batch, column), block_bytes, total)
    except (pa.ArrowException, CorpusFormatError, OSError) as error:
        raise TextColumnError(
            f"cannot be read as a table ({error}); the file is cut or damaged"
        ) from error


def _batches(path: Path, column: str) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Count the rows, and yield the batches of the one column."""
    if is_parquet(path):
        file = pq.ParquetFile(path)
        _check_column(file.schema_arrow, column)
        return file.metadata.num_rows, file.iter_batches(_ROWS, columns=[column])
    schema = open_arrow(path, None).schema
    _check_column(schema, column)
    held = list(batches_of(open_arrow(path, [schema.get_field_index(column)])))
    return sum(batch.num_rows for batch in held), iter(held)


def _check_column(schema: pa.Schema, column: str) -> None:
    if column not in schema.names:
        raise TextColumnError(
            f"no column {column!r}, found {schema.names[:8]}; name it with --text-column"
        )
    kind = schema.field(column).type
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = (
        pa.types.is_string(inner)
        or pa.types.is_large_string(inner)
        or pa.types.is_string_view(inner)
        or pa.types.is_null(inner)
    )
    if not is_text:
        raise TextColumnError(
            f"column {column!r} is {kind}, text is needed; name the text with --text-column"
        )


def _as_binary(batch: pa.RecordBatch, column: str) -> pa.Array:
    """Text as bytes, so that a bad byte is the worker's to report, with its row."""
    cells = batch.column(column)
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if pa.types.is_string_view(cells.type):
        return cells.cast(pa.binary_view())
    return cells.cast(pa.large_binary())


def _blocks(cells: pa.Array, block_bytes: int, total: int) -> Iterator[tuple[Cells, float]]:
    held: Cells = []
    size = 0
    for start in range(0, len(cells), _ROWS):
        for cell in cells.slice(start, _ROWS).to_pylist():
            held.append(cell)
            size += len(cell or b"") + 1
            if size >= block_bytes:
                yield held, len(held) / total
                held, size = [], 0
    if held:
        yield held, len(held) / total


def _mapped_cells(files: list[Path], column: str, order: Any) -> Iterator[tuple[Cells, float]]:
    """Cells in the order of a saved index map."""
    chunks = [_as_binary(batch, column) for file in files for batch in _batches(file, column)[1]]
    cells = pa.chunked_array(chunks, pa.large_binary())
    for start in range(0, len(order), _ROWS):
        rows = order[start : start + _ROWS]
        yield cells.take(pa.array(rows)).to_pylist(), len(rows) / len(order)
