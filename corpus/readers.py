"""Finds out what a path holds and opens it; flat and datatrove files are read here.

Shapes: N tokens, D documents.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from corpus.megatron import bin_path, idx_path, read_megatron
from corpus.parts import (
    CorpusFile,
    CorpusFormatError,
    DocumentEnds,
    Tokens,
    map_tokens,
)

FORMATS = frozenset({"auto", "megatron", "flat", "datatrove", "hf", "parquet"})
FLAT_DTYPES: dict[str, np.dtype[np.integer[Any]]] = {
    "uint16": np.dtype("<u2"),
    "int32": np.dtype("<i4"),
    "uint32": np.dtype("<u4"),
}
_SUFFIXES = {
    ".ds": "datatrove",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "hf",
    ".feather": "hf",
    ".ipc": "hf",
}
_SCAN_BLOCK = 1 << 22
_NOT_FLAT = {b"\x93NUMPY": "a NumPy .npy file", b"MMIDIDX": "a Megatron index", b"PAR1": "parquet"}


class ReadOptions(Protocol):
    """The part of ``InputOptions`` that decides how bytes are read."""

    @property
    def format(self) -> str:
        """``auto``, or what every path is to be read as."""
        ...

    @property
    def dtype(self) -> str | None:
        """Token type of a flat file."""
        ...

    @property
    def eod(self) -> int | None:
        """Id that ends the documents of a flat file."""
        ...

    @property
    def tokens_column(self) -> str | None:
        """Column of a table that holds the ids."""
        ...


def read_files(paths: Sequence[Path], options: ReadOptions) -> list[CorpusFile]:
    """Open every file that ``paths`` name, in order; a file named twice is read twice, and said.

    Raises
    ------
    CorpusFormatError, FileNotFoundError
        As ``corpus.store.open_corpus``.
    """
    files: list[CorpusFile] = []
    seen: dict[tuple[int, int], Path] = {}
    for path in paths:
        for kind, place in _find(path if path.name else path.resolve(), options.format):
            notice = _notice_repeat(kind, place, seen)
            files.append(_open(kind, place, options, notice))
    _check_named_dtype(files, options.dtype)
    return files


def _check_named_dtype(files: Sequence[CorpusFile], named: str | None) -> None:
    """Refuse a type that the files contradict, unless it is meant for a flat file among them."""
    if named is None or any(file.format in ("flat", "datatrove") for file in files):
        return
    for file in files:
        if file.dtype.name != named:
            raise CorpusFormatError(
                f"{file.path}: holds {file.dtype.name} by its own account, --dtype says {named}; "
                "leave --dtype out, it is for flat files"
            )


def _notice_repeat(kind: str, place: Path, seen: dict[tuple[int, int], Path]) -> tuple[str, ...]:
    anchor = bin_path(place) if kind == "megatron" else place
    if not anchor.exists():
        return ()
    status = anchor.stat()
    first = seen.setdefault((status.st_dev, status.st_ino), place)
    if first is place:
        return ()
    return (f"{place}: the same file as {first}, given twice; its tokens count twice",)


def _open(kind: str, place: Path, options: ReadOptions, notices: tuple[str, ...]) -> CorpusFile:
    if kind == "megatron":
        file = read_megatron(place)
    elif kind == "flat":
        file = read_flat(place, options.dtype, options.eod)
    elif kind == "datatrove":
        file = read_datatrove(place, options.dtype)
    else:
        from corpus.tables import read_table  # pyarrow takes half a second to import

        file = read_table(place, options.tokens_column, kind)
    return replace(file, notices=file.notices + notices)


def _find(path: Path, wanted: str) -> Iterator[tuple[str, Path]]:
    """Format and place of each file that ``path`` names."""
    if path.name.endswith(".partial"):
        raise CorpusFormatError(
            f"{path}: what an unfinished build left behind; run the build again"
        )
    prefix = _megatron_prefix(path) if wanted in ("auto", "megatron") else None
    if prefix is not None:
        yield "megatron", prefix
    elif path.is_dir():
        yield from _find_in_folder(path, wanted)
    elif wanted == "megatron":
        yield wanted, path
    elif wanted == "flat" and not path.exists() and bin_path(path).is_file():
        yield wanted, bin_path(path)
    else:
        yield _kind_of(path, wanted), _without_index_suffix(path)


def _megatron_prefix(path: Path) -> Path | None:
    """Return the prefix when ``path`` is one, or is a file of a pair that has an index."""
    if not path.name:  # the root folder
        return None
    if idx_path(path).is_file() or (bin_path(path).is_file() and not path.exists()):
        return path
    if path.suffix in (".bin", ".idx") and (
        path.suffix == ".idx" or path.with_name(path.stem + ".idx").is_file()
    ):
        return path.with_name(path.stem)
    return None


def _without_index_suffix(path: Path) -> Path:
    return path.with_name(path.stem) if path.name.endswith(".ds.index") else path


def _kind_of(path: Path, wanted: str) -> str:
    place = _without_index_suffix(path)
    if not place.exists():
        raise FileNotFoundError(
            f"{place}: not found; a corpus is a Megatron prefix (PREFIX.bin and PREFIX.idx), a "
            "token file or a folder"
        )
    if wanted != "auto":
        return wanted
    if place.suffix in _SUFFIXES:
        return _SUFFIXES[place.suffix]
    if place.suffix == ".bin":
        return "flat"
    raise CorpusFormatError(
        f"{place}: the name does not say the format; name it with --format, or, for text, make a "
        "corpus of it with `staircase corpus build`"
    )


def _find_in_folder(folder: Path, wanted: str) -> Iterator[tuple[str, Path]]:
    """Find a folder saved by ``datasets``, or the token files of a folder, sorted by name."""
    if (folder / "state.json").is_file():
        yield "hf", folder
        return
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        raise CorpusFormatError(
            f"{folder}: holds the splits {splits}; name one, for example {folder / splits[0]}"
            if splits
            else f"{folder}: a data set with no splits in it"
        )
    found = sorted(_files_of(folder, wanted), key=lambda one: one[1].name)
    kinds = sorted({kind for kind, _ in found})
    if not found:
        raise CorpusFormatError(
            f"{folder}: no token files in it (.bin with .idx, .bin, .ds, .arrow, .parquet); for "
            "text, make a corpus of it with `staircase corpus build`"
        )
    if len(kinds) > 1:
        raise CorpusFormatError(
            f"{folder}: holds files of several formats ({', '.join(kinds)}); name the files, or "
            "one format with --format"
        )
    yield from found


def _files_of(folder: Path, wanted: str) -> Iterator[tuple[str, Path]]:
    for path in folder.iterdir():
        if not path.is_file() or path.name.startswith("."):
            continue
        kind = _SUFFIXES.get(path.suffix)
        if path.suffix == ".idx":
            kind, path = "megatron", path.with_name(path.stem)
        elif path.suffix == ".bin" and not path.with_name(path.stem + ".idx").is_file():
            kind = "flat"
        if kind is not None and wanted in ("auto", kind):
            yield kind, path


def read_flat(path: Path, dtype: str | None, eod: int | None) -> CorpusFile:
    """Open a file that is nothing but tokens.

    With ``eod`` a document ends after each such token; what follows the last one is a document
    too. Without it the file is one document and its borders are unknown.

    Raises
    ------
    CorpusFormatError
        No type named, or a size that is not a multiple of its width.
    """
    if dtype is None:
        raise CorpusFormatError(
            f"{path}: a flat file does not say its token type; name it with --dtype "
            f"({', '.join(FLAT_DTYPES)}), or put the index {path.stem}.idx beside it"
        )
    token_type = _flat_dtype(dtype)
    _refuse_other_files(path)
    size = path.stat().st_size
    if size % token_type.itemsize:
        raise CorpusFormatError(
            f"{path}: {size} bytes found, a multiple of {token_type.itemsize} needed for "
            f"{token_type.name} tokens; the file is cut short, or --dtype is not its type"
        )
    mapped = map_tokens(path, token_type)
    tokens_N = mapped.tokens_N
    ends = np.array([tokens_N.size] if tokens_N.size else [], np.int64)
    notices: tuple[str, ...] = ()
    if eod is not None:
        ends = _ends_after(tokens_N, eod)
        if tokens_N.size and tokens_N[-1] != eod:
            notices = (
                f"{path}: does not end with the end token {eod}; its last document may be cut",
            )
    return CorpusFile(
        path=path,
        format="flat",
        dtype=token_type,
        doc_ends_D=ends,
        read=mapped.read,
        release=mapped.release,
        borders="unknown" if eod is None else "known",
        notices=notices,
    )


def _flat_dtype(name: str) -> np.dtype[np.integer[Any]]:
    if name not in FLAT_DTYPES:
        raise ValueError(f"--dtype {name}: unknown, needed one of {', '.join(FLAT_DTYPES)}")
    return FLAT_DTYPES[name]


def _refuse_other_files(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(8)
    for magic, kind in _NOT_FLAT.items():
        if head.startswith(magic):
            raise CorpusFormatError(
                f"{path}: this is {kind}, its header would be read as tokens; a flat file of "
                "nothing but tokens is needed"
            )


def _ends_after(tokens_N: Tokens, eod: int) -> DocumentEnds:
    """Exclusive document ends: after every ``eod``, and at the end of the file."""
    found = [
        np.flatnonzero(tokens_N[start : start + _SCAN_BLOCK] == eod) + (start + 1)
        for start in range(0, tokens_N.size, _SCAN_BLOCK)
    ]
    ends = np.concatenate([*found, np.empty(0, np.int64)])
    if tokens_N.size and (not ends.size or ends[-1] != tokens_N.size):
        ends = np.append(ends, tokens_N.size)
    return ends.astype(np.int64)


def read_datatrove(path: Path, dtype: str | None) -> CorpusFile:
    """Open ``NAME.ds`` by ``NAME.ds.index``: u64 document ends, in tokens.

    Neither file says the token width: it is the size over the last end, 2 or 4 bytes.

    Raises
    ------
    CorpusFormatError
        No index, one that is cut or falls, or a size that fits no width.
    """
    index = path.with_name(path.name + ".index")
    if not index.is_file():
        raise CorpusFormatError(
            f"{index}: not found; it says where the documents of {path.name} end: copy it too, or "
            "read the file with --format flat --dtype"
        )
    if index.stat().st_size % 8:
        raise CorpusFormatError(
            f"{index}: {index.stat().st_size} bytes found, a multiple of 8 needed (one u64 a "
            "document); the file is cut short, copy it again"
        )
    ends = map_tokens(index, np.dtype("<u8")).tokens_N.astype(np.int64)
    falls = np.concatenate([ends[:1] < 0, ends[1:] < ends[:-1]])
    if falls.any():
        at = int(np.argmax(falls))
        raise CorpusFormatError(
            f"{index}: not rising: document {at} ends at token {ends[at]}, the one before it at "
            f"{ends[at - 1] if at else 0}; the index is damaged, copy it again"
        )
    token_type = _datatrove_dtype(path, int(ends[-1]) if ends.size else 0, dtype)
    mapped = map_tokens(path, token_type)
    return CorpusFile(
        path=path,
        format="datatrove",
        dtype=token_type,
        doc_ends_D=ends,
        read=mapped.read,
        release=mapped.release,
    )


def _datatrove_dtype(path: Path, num_tokens: int, named: str | None) -> np.dtype[np.integer[Any]]:
    size = path.stat().st_size
    if named is not None:
        widths = {_flat_dtype(named).itemsize: _flat_dtype(named)}
    else:
        widths = {2: FLAT_DTYPES["uint16"], 4: FLAT_DTYPES["uint32"]}
    for width, token_type in widths.items():
        if size == num_tokens * width:
            return token_type
    needed = " or ".join(f"{num_tokens * width} ({one.name})" for width, one in widths.items())
    raise CorpusFormatError(
        f"{path}: {needed} bytes needed for {num_tokens} tokens ({path.name}.index), found {size}; "
        "the file is cut short, or the two do not belong together: copy both again"
    )
