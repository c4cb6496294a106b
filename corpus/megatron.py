r"""Megatron's ``.bin``/``.idx`` pair, read and written with NumPy alone.

The index: ``MMIDIDX\0\0``, u64 version 1, u8 dtype code, u64 sequences S, u64 marks, then int32
lengths (S), int64 byte pointers (S), int64 document marks (documents + 1, first 0, last S). A
document is the sequences between two marks.

Shapes: S sequences, D documents, N tokens.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from corpus.parts import CorpusFile, CorpusFormatError, DocumentEnds, map_tokens
from corpus.sidecar import read_sidecar

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
VERSION = 1
INTEGER_CODES: dict[int, np.dtype[np.integer[Any]]] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
_FLOAT_CODES = {6: "float64", 7: "float32"}
_FIRST_INT32_VOCABULARY = 65_500
"""Megatron's own bound between uint16 and int32."""


def bin_path(prefix: Path) -> Path:
    """``PREFIX.bin``, whatever dots the prefix holds."""
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    """``PREFIX.idx``."""
    return prefix.with_name(prefix.name + ".idx")


def dtype_for(vocab_size: int) -> np.dtype[np.integer[Any]]:
    """Token width that Megatron takes for ``vocab_size`` ids."""
    return INTEGER_CODES[8] if vocab_size < _FIRST_INT32_VOCABULARY else INTEGER_CODES[4]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLayout:
    """Where the arrays of an index stand, in bytes. Python integers: they cannot overflow."""

    num_sequences: int
    num_marks: int

    @property
    def lengths_at(self) -> int:
        """Start of the int32 sequence lengths."""
        return HEADER.size

    @property
    def pointers_at(self) -> int:
        """Start of the int64 byte pointers."""
        return self.lengths_at + 4 * self.num_sequences

    @property
    def marks_at(self) -> int:
        """Start of the int64 document marks."""
        return self.pointers_at + 8 * self.num_sequences

    @property
    def size(self) -> int:
        """Size of the whole index."""
        return self.marks_at + 8 * self.num_marks


def read_megatron(prefix: Path) -> CorpusFile:
    """Open ``PREFIX.bin`` by its ``PREFIX.idx``.

    Raises
    ------
    CorpusFormatError
        The two do not belong together, or one is cut or not what its name says.
    """
    for path in (idx_path(prefix), bin_path(prefix)):
        if not path.is_file():
            raise CorpusFormatError(
                f"{path}: not found; a Megatron corpus is a pair {prefix.name}.bin and "
                f"{prefix.name}.idx, copy or build both"
            )
    dtype, seq_ends_S, marks = _read_index(idx_path(prefix), bin_path(prefix))
    ends = np.concatenate([np.zeros(1, np.int64), seq_ends_S])
    doc_ends_D: DocumentEnds = ends[marks[1:]]
    num_tokens = int(ends[-1])
    sidecar = read_sidecar(prefix, documents=doc_ends_D.size, tokens=num_tokens)
    mapped = map_tokens(bin_path(prefix), dtype)
    return CorpusFile(
        path=prefix,
        format="megatron",
        dtype=dtype,
        doc_ends_D=doc_ends_D,
        read=mapped.read,
        release=mapped.release,
        skipped_documents=sidecar.skipped_documents,
        sidecar=sidecar,
    )


def _read_index(
    index: Path, tokens: Path
) -> tuple[np.dtype[np.integer[Any]], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Token type, exclusive sequence ends (S) in tokens, and document marks (D + 1)."""
    dtype, layout = _read_header(index)
    raw = np.memmap(index, np.uint8, mode="r")
    num_sequences = layout.num_sequences
    lengths_S = np.frombuffer(raw, "<i4", num_sequences, layout.lengths_at)
    pointers_S = np.frombuffer(raw, "<i8", num_sequences, layout.pointers_at)
    marks = np.frombuffer(raw, "<i8", layout.num_marks, layout.marks_at)
    _check_marks(index, marks, num_sequences)
    if num_sequences and int(lengths_S.min()) < 0:
        at = int(np.argmax(lengths_S < 0))
        raise CorpusFormatError(
            f"{index}: sequence {at} has length {lengths_S[at]}, lengths cannot be negative; "
            "the index is damaged, build it again"
        )
    seq_ends_S = np.cumsum(lengths_S, dtype=np.int64)
    _check_tokens(index, tokens, dtype, seq_ends_S)
    _check_pointers(index, pointers_S, seq_ends_S, dtype.itemsize)
    return dtype, seq_ends_S, marks.astype(np.int64)


def _read_header(index: Path) -> tuple[np.dtype[np.integer[Any]], IndexLayout]:
    found_size = index.stat().st_size
    with index.open("rb") as file:
        head = file.read(HEADER.size)
    if not head.startswith(MAGIC):
        raise CorpusFormatError(
            f"{index}: starts with {head[:9]!r}, a Megatron index starts with {MAGIC!r}; "
            "this is another file, or one of the older formats: build it again"
        )
    if len(head) < HEADER.size:
        raise CorpusFormatError(
            f"{index}: {found_size} bytes, the header alone has {HEADER.size}; the file is cut "
            "short, copy or build it again"
        )
    _, version, code, num_sequences, num_marks = HEADER.unpack(head)
    if version != VERSION:
        raise CorpusFormatError(f"{index}: index version {version}, this reads version {VERSION}")
    if code not in INTEGER_CODES:
        kind = _FLOAT_CODES.get(code, "unknown")
        raise CorpusFormatError(
            f"{index}: token type code {code} ({kind}), needed one of the integer codes "
            f"{sorted(INTEGER_CODES)}; token ids are integers, build the corpus again"
        )
    layout = IndexLayout(num_sequences=num_sequences, num_marks=num_marks)
    # Multimodal indices append one int8 mode a sequence; the tokens are the same.
    if found_size not in (layout.size, layout.size + num_sequences):
        cut = "the file is cut short" if found_size < layout.size else "the file is too long"
        raise CorpusFormatError(
            f"{index}: {layout.size} bytes needed for {num_sequences} sequences and "
            f"{num_marks} document marks, found {found_size}; {cut}, copy or build it again"
        )
    return INTEGER_CODES[code], layout


def _check_marks(index: Path, marks: npt.NDArray[np.int64], num_sequences: int) -> None:
    """Check that the document marks rise from 0 to the number of sequences."""
    if not marks.size or marks[0] != 0:
        first = marks[0] if marks.size else "nothing"
        raise CorpusFormatError(
            f"{index}: the document index starts with {first}, it must start with 0; "
            "the index is damaged, build it again"
        )
    falls = marks[1:] < marks[:-1]
    if falls.any():
        at = int(np.argmax(falls))
        raise CorpusFormatError(
            f"{index}: the document index is not rising: mark {at + 1} is {marks[at + 1]}, the one "
            f"before it {marks[at]}; the index is damaged, build it again"
        )
    if marks[-1] != num_sequences:
        raise CorpusFormatError(
            f"{index}: the document index ends at sequence {marks[-1]}, it must end at the last of "
            f"{num_sequences} sequences; the index is unfinished or damaged, build it again"
        )


def _check_tokens(
    index: Path, tokens: Path, dtype: np.dtype[np.integer[Any]], seq_ends_S: npt.NDArray[np.int64]
) -> None:
    """Check that the token file has exactly the bytes that the index describes."""
    num_tokens = int(seq_ends_S[-1]) if seq_ends_S.size else 0
    needed, found = num_tokens * dtype.itemsize, tokens.stat().st_size
    if found != needed:
        why = "the file is cut short" if found < needed else "the two do not belong together"
        raise CorpusFormatError(
            f"{tokens}: {needed} bytes needed for {num_tokens} {dtype.name} tokens "
            f"({index.name}), found {found}; {why}, copy or build both again"
        )


def _check_pointers(
    index: Path,
    pointers_S: npt.NDArray[np.int64],
    seq_ends_S: npt.NDArray[np.int64],
    itemsize: int,
) -> None:
    """Check that sequences lie end to end, as Megatron writes them and as slices assume."""
    wrong = pointers_S[1:] != seq_ends_S[:-1] * itemsize
    first_wrong = bool(pointers_S.size) and pointers_S[0] != 0
    if first_wrong or wrong.any():
        at = 0 if first_wrong else int(np.argmax(wrong)) + 1
        needed = int(seq_ends_S[at - 1]) * itemsize if at else 0
        raise CorpusFormatError(
            f"{index}: the pointers are not rising with the lengths: sequence {at} points to byte "
            f"{pointers_S[at]}, the sequences before it end at byte {needed}; the index is "
            "damaged, build it again"
        )
