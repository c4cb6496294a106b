"""Arrow and parquet tables, and folders saved by ``datasets``: tokens or text by column.

Arrow files are mapped; parquet is decoded a row group at a time. No column is ever concatenated.

Shapes: D documents, R runs (stretches of documents that lie end to end in one buffer).
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from corpus.parts import CorpusFile, CorpusFormatError, Format
from corpus.runs import Read, Runs, grouped_reader, join_rows, rows_of

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_FILE_MAGIC = b"ARROW1"
_PARQUET_SUFFIXES = (".parquet", ".pq")
_SCAN_ROWS = 4096
_CACHED_GROUPS = 2


def read_table(path: Path, tokens_column: str | None, format_: str) -> CorpusFile:
    """Open an arrow or parquet file, or a folder saved by ``datasets``, by its column of ids.

    Raises
    ------
    CorpusFormatError
        A broken file, no such column or several that could be meant, a null id in a document.
    """
    try:
        if path.is_dir():
            return _read_folder(path, tokens_column)
        if is_parquet(path):
            return _read_parquet(path, tokens_column)
        chunks, dtype = _arrow_tokens(path, tokens_column)
        return _of_chunks(path, chunks, dtype=dtype, format_=_arrow_format(format_))
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise CorpusFormatError(
            f"{path}: cannot be read as a table ({error}); it is cut or damaged, copy it again"
        ) from error


def read_dataset(dataset: Any, tokens_column: str | None = None) -> CorpusFile:
    """Open a ``datasets.Dataset`` that is at hand, with the index map of ``select``/``shuffle``.

    Raises
    ------
    CorpusFormatError
        As ``read_table``.
    """
    name = Path(f"dataset-{dataset._fingerprint}")
    table = dataset.data.table
    column = _token_column(table.schema, tokens_column, name)
    indices = dataset._indices
    return _of_chunks(
        name,
        table.column(column).chunks,
        dtype=_value_dtype(table.schema, column),
        format_="hf",
        order=None if indices is None else indices.column(0).to_numpy().astype(np.int64),
    )


def _read_folder(folder: Path, tokens_column: str | None) -> CorpusFile:
    files, order = folder_files(folder)
    found = [_arrow_tokens(file, tokens_column) for file in files]
    dtypes = {dtype for _, dtype in found}
    if len(dtypes) > 1:
        raise CorpusFormatError(
            f"{folder}: its files hold ids of several types, {sorted(map(str, dtypes))}; save the "
            "data set again with save_to_disk"
        )
    return _of_chunks(
        folder,
        [chunk for chunks, _ in found for chunk in chunks],
        dtype=dtypes.pop(),
        format_="hf",
        order=order,
    )


def folder_files(folder: Path) -> tuple[list[Path], npt.NDArray[np.int64] | None]:
    """List the data files of a folder saved by ``datasets``, and its index map where it has one.

    Raises
    ------
    CorpusFormatError
        ``state.json`` is broken or names no files.
    """
    state = _state(folder)
    files = [folder / entry["filename"] for entry in state["_data_files"]]
    return files, _saved_order(folder, state)


def _saved_order(folder: Path, state: dict[str, Any]) -> npt.NDArray[np.int64] | None:
    """Read the index map that older releases of ``datasets`` saved beside the data."""
    names = [entry["filename"] for entry in state.get("_indices_data_files") or ()]
    if not names:
        return None
    chunks = [chunk for name in names for chunk in arrow_column(folder / name, "indices")]
    none = np.empty(0, np.int64)
    return np.concatenate([none, *(chunk.to_numpy().astype(np.int64) for chunk in chunks)])


def _state(folder: Path) -> dict[str, Any]:
    try:
        state = json.loads((folder / "state.json").read_bytes())
    except ValueError as error:
        raise CorpusFormatError(
            f"{folder}/state.json: not JSON ({error}); copy it again"
        ) from error
    if not isinstance(state, dict) or not state.get("_data_files"):
        raise CorpusFormatError(
            f"{folder}/state.json: lists no data files; save the data set again with save_to_disk"
        )
    return state


def _of_chunks(
    path: Path,
    chunks: Sequence[pa.Array],
    *,
    dtype: np.dtype[Any],
    format_: Format,
    order: npt.NDArray[np.int64] | None = None,
) -> CorpusFile:
    """Chunks of a mapped column, in file order or in that of an index map."""
    firsts = np.cumsum([0, *map(len, chunks)])
    rows = join_rows(
        [rows_of(chunk, path, int(at)) for chunk, at in zip(chunks, firsts, strict=False)], dtype
    )
    if order is not None:
        num_rows = int(firsts[-1])
        if order.size and (int(order.min()) < 0 or int(order.max()) >= num_rows):
            raise CorpusFormatError(
                f"{path}: its index map names row {order.max()} of {num_rows}; save it again"
            )
        rows = rows.take(order)
    documents = rows.without_nulls()
    return CorpusFile(
        path=path,
        format=format_,
        dtype=dtype,
        doc_ends_D=np.cumsum(documents.length_D, dtype=np.int64),
        read=Runs(documents).read,
        skipped_documents=rows.length_D.size - documents.length_D.size,
    )


def _read_parquet(path: Path, tokens_column: str | None) -> CorpusFile:
    """Lengths in one pass that keeps no tokens; tokens by row group when they are asked for."""
    file = pq.ParquetFile(path)
    column = _token_column(file.schema_arrow, tokens_column, path)
    lengths = [np.empty(0, np.int64)]
    group_ends, num_null, row, total = [], 0, 0, 0
    for group in range(file.num_row_groups):
        for batch in file.iter_batches(_SCAN_ROWS, row_groups=[group], columns=[column]):
            documents = rows_of(batch.column(0), path, row).without_nulls()
            num_null += batch.num_rows - documents.length_D.size
            row += batch.num_rows
            lengths.append(documents.length_D)
            total += int(documents.length_D.sum())
        group_ends.append(total)
    dtype = _value_dtype(file.schema_arrow, column)
    load = _group_loader(file, column, path, dtype)
    return CorpusFile(
        path=path,
        format="parquet",
        dtype=dtype,
        doc_ends_D=np.cumsum(np.concatenate(lengths), dtype=np.int64),
        read=grouped_reader(np.array(group_ends, np.int64), load, dtype),
        skipped_documents=num_null,
    )


def _group_loader(
    file: pq.ParquetFile, column: str, path: Path, dtype: np.dtype[Any]
) -> Callable[[int], Read]:
    """Decode row groups, keeping the last few; one thread at a time reads the file."""
    lock = threading.Lock()

    @lru_cache(_CACHED_GROUPS)
    def load(group: int) -> Read:
        chunks = file.read_row_group(group, columns=[column]).column(0).chunks
        rows = join_rows([rows_of(chunk, path, 0) for chunk in chunks], dtype)
        return Runs(rows.without_nulls()).read

    def locked(group: int) -> Read:
        with lock:
            return load(group)

    return locked


def _arrow_format(asked: str) -> Format:
    return "parquet" if asked == "parquet" else "hf"


def _arrow_tokens(path: Path, wanted: str | None) -> tuple[list[pa.Array], np.dtype[Any]]:
    """Map the chunks of the token column, and the type of its ids."""
    schema = open_arrow(path, None).schema
    column = _token_column(schema, wanted, path)
    return arrow_column(path, column), _value_dtype(schema, column)


def arrow_column(path: Path, column: str) -> list[pa.Array]:
    """Map the chunks of one column of an arrow file or stream."""
    field = open_arrow(path, None).schema.get_field_index(column)
    return [batch.column(0) for batch in batches_of(open_arrow(path, [field]))]


def open_arrow(path: Path, fields: list[int] | None) -> Any:
    """Open a mapped arrow file or stream; ``fields`` limits it to those columns.

    Raises
    ------
    CorpusFormatError
        A file that is cut short.
    """
    options = pa.ipc.IpcReadOptions(included_fields=fields or [])
    if path.stat().st_size < len(_END_OF_STREAM):
        raise CorpusFormatError(
            f"{path}: {path.stat().st_size} bytes are no arrow file; copy it again"
        )
    mapped = pa.memory_map(str(path))
    if mapped.read_at(len(_FILE_MAGIC), 0) == _FILE_MAGIC:
        return pa.ipc.open_file(mapped, options=options)
    tail = mapped.read_at(len(_END_OF_STREAM), mapped.size() - len(_END_OF_STREAM))
    reader = pa.ipc.open_stream(mapped, options=options)
    if tail != _END_OF_STREAM:
        raise CorpusFormatError(
            f"{path}: the arrow stream has no end mark; the file is cut short, or its writer was "
            "not closed: copy or write it again"
        )
    return reader


def batches_of(reader: Any) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of an arrow file or stream."""
    if hasattr(reader, "num_record_batches"):
        for at in range(reader.num_record_batches):
            yield reader.get_batch(at)
    else:
        yield from reader


def is_parquet(path: Path) -> bool:
    """Tell parquet from arrow, by name or by its first bytes."""
    if path.suffix in _PARQUET_SUFFIXES:
        return True
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _token_column(schema: pa.Schema, wanted: str | None, path: Path) -> str:
    """``wanted``, else ``input_ids``, else the only column of integer lists."""
    candidates: list[str] = [field.name for field in schema if _is_token_type(field.type)]
    if wanted is None and "input_ids" in candidates:
        return "input_ids"
    if wanted is not None:
        if wanted in candidates:
            return wanted
        found = f"a column of {schema.field(wanted).type}" if wanted in schema.names else "none"
        raise CorpusFormatError(
            f"{path}: column {wanted!r} of integer lists needed, found {found}; columns of integer "
            f"lists are {candidates}: name one with --tokens-column"
        )
    if len(candidates) != 1:
        described = candidates or [f"{field.name}: {field.type}" for field in schema][:8]
        raise CorpusFormatError(
            f"{path}: one column of integer lists needed, found {described}; name the column of "
            "token ids with --tokens-column, or, for text, use `staircase corpus build`"
        )
    (only,) = candidates
    return only


def _is_token_type(kind: pa.DataType) -> bool:
    is_list = (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
    return bool(is_list and pa.types.is_integer(kind.value_type))


def _value_dtype(schema: pa.Schema, column: str) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(schema.field(column).type.value_type.to_pandas_dtype())
    return dtype
