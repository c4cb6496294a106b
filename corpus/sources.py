"""Text sources as blocks of raw records, one pass, in order, bounded memory.

Nothing is parsed here: a block carries bytes (a line, a whole file, a cell of a table) and its
place, and the worker that tokenises it also decodes it (``corpus.records``).
"""

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import zstandard

RecordKind = Literal["json", "text"]
_READ = 1 << 20
_INFLATE = 1 << 16
"""Compressed bytes a step: what one step can grow to stays bounded."""
_TABLES = {".parquet", ".pq", ".arrow", ".feather", ".ipc"}
_JSON_LINES = {".jsonl", ".ndjson", ".json"}
_BOM = b"\xef\xbb\xbf"


class SourceError(ValueError):
    """A text source that cannot be read; the message names file, place and remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Records of one source that are tokenised together."""

    source: int
    """Number of the source file."""
    path: str
    kind: RecordKind
    unit: str
    """What a number counts in messages: line, row or file."""
    first: int
    """Number of the first record, from 1 for lines, from 0 for rows."""
    records: list[bytes | None]
    """None: a null cell."""
    broken: str | None = None
    """Why nothing more comes from this source, when it ends before its time."""
    source_bytes: int = 0
    """Bytes of the source file read since the block before: what progress counts."""


@dataclass(slots=True, kw_only=True)
class Source:
    """One file of text, or one folder saved by ``datasets``."""

    path: Path
    sha256: str | None = None
    """Of the bytes as they stand on disk; known once the source has been read."""
    size: int = 0
    opener: Callable[["Source", int, "SourceOptions"], Iterator[Block]] = field(repr=False)


class SourceOptions(Protocol):
    """What reading needs to know."""

    @property
    def text_column(self) -> str:
        """Name of the column or key of the text."""
        ...

    @property
    def block_bytes(self) -> int:
        """Text of about this size makes a block."""
        ...


def find_sources(paths: Sequence[Path | str] | Path | str) -> list[Source]:
    """Find the files that ``paths`` name, in the given order; a folder is its files, sorted.

    Raises
    ------
    SourceError
        A folder with no files, a data set of several splits.
    FileNotFoundError
        Nothing stands at a path.
    """
    listed = [paths] if isinstance(paths, Path | str) else list(paths)
    found = [source for path in listed for source in _sources_at(Path(path))]
    if not found:
        raise SourceError("no text source given; name at least one file or folder")
    return found


def _sources_at(path: Path) -> Iterator[Source]:
    if not path.exists():
        raise FileNotFoundError(f"{path}: not found; a file or folder of text is needed")
    if not path.is_dir():
        yield _file_source(path)
        return
    if (path / "state.json").is_file():
        yield Source(path=path, size=_folder_size(path), opener=_read_table)
        return
    if (path / "dataset_dict.json").is_file():
        splits = sorted(entry.name for entry in path.iterdir() if entry.is_dir())
        raise SourceError(f"{path}: holds the splits {splits}; name the folder of one of them")
    files = [one for one in path.rglob("*") if one.is_file() and not _hidden(one, path)]
    if not files:
        raise SourceError(f"{path}: a folder with no files in it; files of text are needed")
    for one in sorted(files, key=lambda file: file.relative_to(path).as_posix()):
        yield _file_source(one)


def _file_source(path: Path) -> Source:
    if path.suffix.lower() in _TABLES:
        opener: Callable[[Source, int, SourceOptions], Iterator[Block]] = _read_table
    elif _inner_suffix(path) in _JSON_LINES:
        opener = _read_lines
    else:
        opener = _read_whole
    return Source(path=path, size=path.stat().st_size, opener=opener)


def read_blocks(sources: Sequence[Source], options: SourceOptions) -> Iterator[Block]:
    """Every source's blocks in order; fills in each source's hash when it has been read."""
    for number, source in enumerate(sources):
        yield from source.opener(source, number, options)


def _read_lines(source: Source, number: int, options: SourceOptions) -> Iterator[Block]:
    """Lines of JSON, in blocks."""
    stream = _Stream(source)
    pending: list[bytes | None] = []
    first = size = 0
    for line in _lines(stream):
        pending.append(line)
        size += len(line) + 1
        if size >= options.block_bytes:
            yield _line_block(source, number, first, pending, stream)
            first, pending, size = first + len(pending), [], 0
    yield _line_block(source, number, first, pending, stream)


def _line_block(
    source: Source, number: int, first: int, lines: list[bytes | None], stream: "_Stream"
) -> Block:
    broken = stream.broken and f"{stream.broken} after line {first + len(lines)}"
    return Block(
        source=number,
        path=str(source.path),
        kind="json",
        unit="line",
        first=first + 1,
        records=lines,
        broken=broken,
        source_bytes=stream.taken(),
    )


def _lines(stream: "_Stream") -> Iterator[bytes]:
    """Lines end with LF alone; a last line needs no end, unless the file is cut there."""
    begun: list[bytes] = []
    mark = _BOM
    for chunk in stream:
        head, *rest = chunk.split(b"\n")
        begun.append(head)
        if rest:
            yield b"".join(begun).removeprefix(mark)
            mark = b""
            yield from rest[:-1]
            begun = rest[-1:]
    last = b"".join(begun).removeprefix(mark)
    if last and stream.broken is None:
        yield last


def _read_whole(source: Source, number: int, options: SourceOptions) -> Iterator[Block]:
    """One document: the whole file."""
    stream = _Stream(source)
    text = b"".join(stream).removeprefix(_BOM)
    yield Block(
        source=number,
        path=str(source.path),
        kind="text",
        unit="file",
        first=1,
        records=[] if stream.broken else [text],
        broken=stream.broken,
        source_bytes=stream.taken(),
    )


def _read_table(source: Source, number: int, options: SourceOptions) -> Iterator[Block]:
    """Cells of the text column, a block at a time."""
    from corpus.cells import TextColumnError, text_cells  # pyarrow takes half a second to import

    row, broken = 0, None
    source.sha256 = _hash_files(source.path)
    cells_of = text_cells(source.path, options.text_column, options.block_bytes)
    while broken is None:
        cells: list[bytes | None] = []
        share = 0.0
        try:
            cells, share = next(cells_of)
        except StopIteration:
            return
        except TextColumnError as error:
            broken = str(error)
        yield Block(
            source=number,
            path=str(source.path),
            kind="text",
            unit="row",
            first=row,
            records=cells,
            broken=broken,
            source_bytes=int(share * source.size),
        )
        row += len(cells)


def _hash_files(path: Path) -> str:
    """SHA-256 of a file; of a folder, of its files' bytes in the order of their names."""
    digest = hashlib.sha256()
    files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
    for one in files:
        with one.open("rb") as file:
            while chunk := file.read(_READ):
                digest.update(chunk)
    return digest.hexdigest()


class _Stream:
    """The decompressed bytes of a file, hashed on the way; says why it ended early."""

    def __init__(self, source: Source) -> None:
        self.broken: str | None = None
        self._source = source
        self._read = 0

    def __iter__(self) -> Iterator[bytes]:
        raw = self._raw()
        suffix = self._source.path.suffix.lower()
        if suffix == ".gz":
            yield from self._inflate(raw, lambda: zlib.decompressobj(wbits=31), "gzip")
        elif suffix in (".zst", ".zstd"):
            make = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj
            yield from self._inflate(raw, make, "zstd")
        else:
            yield from raw

    def taken(self) -> int:
        """Bytes read from the file since this was asked last."""
        read, self._read = self._read, 0
        return read

    def _raw(self) -> Iterator[bytes]:
        digest = hashlib.sha256()
        with self._source.path.open("rb") as file:
            while chunk := file.read(_READ):
                digest.update(chunk)
                self._read += len(chunk)
                yield chunk
        self._source.sha256 = digest.hexdigest()

    def _inflate(self, raw: Iterator[bytes], make: Callable[[], Any], kind: str) -> Iterator[bytes]:
        """Members or frames end to end; the file must end where one does."""
        machine: Any = None
        for chunk in _pieces(raw):
            while chunk and self.broken is None:
                if machine is None:
                    chunk = chunk.lstrip(b"\0") if kind == "gzip" else chunk  # padding of tapes
                    machine = make() if chunk else None
                    continue
                try:
                    out = machine.decompress(chunk)
                except (zlib.error, zstandard.ZstdError) as error:
                    self.broken = f"broken {kind} data ({error})"
                    break
                if out:
                    yield out
                chunk = machine.unused_data if machine.eof else b""
                machine = None if machine.eof else machine
        if machine is not None and self.broken is None:
            self.broken = f"the {kind} file is cut short"


def _pieces(raw: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in raw:
        for start in range(0, len(chunk), _INFLATE):
            yield chunk[start : start + _INFLATE]


def _inner_suffix(path: Path) -> str:
    """Return the suffix below that of a compressed file."""
    inner = path.stem if path.suffix.lower() in (".gz", ".zst", ".zstd") else path.name
    return Path(inner).suffix.lower()


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
