"""Writes a corpus as Megatron's ``.bin``/``.idx`` pair: complete under its name, or not at all.

Shapes: N tokens of a document, S sequences, D documents.
"""

import fcntl
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from corpus.megatron import (
    HEADER,
    INTEGER_CODES,
    MAGIC,
    VERSION,
    bin_path,
    idx_path,
)
from corpus.sidecar import is_sidecar, sidecar_path, sidecar_text

_CODE_OF: dict[np.dtype[Any], int] = {dtype: code for code, dtype in INTEGER_CODES.items()}
_LONGEST_SEQUENCE = 2**31 - 1
_BLOCK = 1 << 20


class CorpusWriter:
    """Context manager that writes documents to ``PREFIX.partial*`` and renames on success.

    Parameters
    ----------
    prefix
        ``PREFIX.bin``, ``PREFIX.idx`` and ``PREFIX.json`` appear when the block ends without an
        error; nothing appears otherwise.
    dtype
        One of Megatron's integer types; ``corpus.megatron.dtype_for`` gives Megatron's choice.
    vocab_size
        When given, ids from there on are refused.
    sidecar
        Facts for ``PREFIX.json``; ``documents``, ``tokens`` and ``empty_documents`` are filled in.
        It may be changed until the block ends. None: no sidecar.
    overwrite
        Replace a corpus of this name.

    Raises
    ------
    FileExistsError
        Something stands at ``prefix`` and ``overwrite`` is off, or another writer is at work.
    ValueError
        A type that Megatron has no code for.
    """

    def __init__(
        self,
        prefix: Path | str,
        dtype: npt.DTypeLike,
        vocab_size: int | None = None,
        sidecar: dict[str, Any] | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        self.prefix = Path(prefix)
        if not self.prefix.name:
            raise ValueError(f"{prefix}: a folder; a prefix is needed, for example {prefix}/corpus")
        self.dtype: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
        if self.dtype not in _CODE_OF:
            names = sorted(known.name for known in _CODE_OF)
            raise ValueError(f"{self.dtype.name}: no token type of this format, needed {names}")
        largest = int(np.iinfo(self.dtype).max)
        self.largest_id = min(largest, largest if vocab_size is None else vocab_size - 1)
        if vocab_size is not None and vocab_size - 1 > largest:
            raise ValueError(
                f"{self.prefix}: {self.dtype.name} holds ids up to {largest}, a vocabulary of "
                f"{vocab_size} needs ids up to {vocab_size - 1}; take a wider type"
            )
        self.vocab_size = vocab_size
        self.sidecar = sidecar
        self.overwrite = overwrite
        self.num_tokens = 0
        self.num_empty_documents = 0
        self._lengths_S = array("i")
        self._marks = array("q", [0])

    @property
    def num_documents(self) -> int:
        """Documents added so far."""
        return len(self._marks) - 1

    def __enter__(self) -> Self:
        self.prefix.parent.mkdir(parents=True, exist_ok=True)
        self._check_place()
        # Opened without truncation: another writer's file must survive until its lock is ours.
        descriptor = os.open(self._partial(bin_path), os.O_RDWR | os.O_CREAT, 0o666)
        self._bin: IO[bytes] = os.fdopen(descriptor, "wb", buffering=_BLOCK)
        try:
            fcntl.flock(self._bin, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._bin.close()
            raise FileExistsError(
                f"{self._partial(bin_path)}: another build is writing this corpus; wait for it or "
                "choose another --out"
            ) from error
        if not self._partial(bin_path).exists() or not os.path.samestat(
            os.fstat(descriptor), self._partial(bin_path).stat()
        ):
            self._bin.close()
            raise FileExistsError(f"{self.prefix}: another build has just finished here")
        self._bin.truncate(0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            for path in (bin_path, idx_path, sidecar_path):
                self._partial(path).unlink(missing_ok=True)
            self._bin.close()

    def add_document(
        self, tokens_N: npt.ArrayLike, sequence_lengths: npt.ArrayLike | None = None
    ) -> None:
        """Append one document, of one sequence unless ``sequence_lengths`` divides it.

        Raises
        ------
        ValueError
            An id that does not fit, values that are no integers, lengths that do not add up.
        """
        tokens_N = np.asarray(tokens_N)
        lengths = np.asarray([tokens_N.size] if sequence_lengths is None else sequence_lengths)
        self._add(tokens_N, lengths)
        self._marks.append(len(self._lengths_S))
        self.num_empty_documents += int(tokens_N.size == 0)

    def add_documents(self, tokens_N: npt.ArrayLike, lengths_D: npt.ArrayLike) -> None:
        """Append several documents of one sequence each; ``tokens_N`` holds them end to end.

        Raises
        ------
        ValueError
            As for ``add_document``.
        """
        lengths_D = np.asarray(lengths_D, np.int64)
        first = len(self._lengths_S)
        self._add(np.asarray(tokens_N), lengths_D)
        marks = np.arange(first + 1, first + 1 + lengths_D.size, dtype=np.int64)
        self._marks.frombytes(marks.tobytes())
        self.num_empty_documents += int(np.count_nonzero(lengths_D == 0))

    def _add(self, tokens_N: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> None:
        self._check(tokens_N, lengths)
        if tokens_N.size:
            self._bin.write(np.ascontiguousarray(tokens_N, self.dtype).data)
        self._lengths_S.frombytes(lengths.astype(np.int32).tobytes())
        self.num_tokens += tokens_N.size

    def _check(self, tokens_N: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> None:
        document = self.num_documents
        if tokens_N.ndim != 1 or (tokens_N.size and tokens_N.dtype.kind not in "iu"):
            raise ValueError(
                f"{self.prefix}: document {document} is {tokens_N.dtype} of shape "
                f"{tokens_N.shape}, a one-dimensional array of integers is needed"
            )
        if (lengths.size and int(lengths.min()) < 0) or int(lengths.sum()) != tokens_N.size:
            raise ValueError(
                f"{self.prefix}: document {document}: the lengths add up to {lengths.sum()}, "
                f"found {tokens_N.size} tokens"
            )
        if lengths.size and int(lengths.max()) > _LONGEST_SEQUENCE:
            raise ValueError(
                f"{self.prefix}: document {document} has {lengths.max()} tokens, a sequence holds "
                f"at most {_LONGEST_SEQUENCE}; divide it"
            )
        if tokens_N.size and (int(tokens_N.max()) > self.largest_id or int(tokens_N.min()) < 0):
            at = int(np.argmax((tokens_N > self.largest_id) | (tokens_N < 0)))
            inside = int(np.searchsorted(np.cumsum(lengths), at, side="right"))
            raise ValueError(
                f"{self.prefix}: id {tokens_N[at]} (document {document + inside}) does not fit: "
                f"{self.dtype.name} with a vocabulary of {self.vocab_size} takes ids from 0 to "
                f"{self.largest_id}"
            )

    def _check_place(self) -> None:
        standing = [
            path(self.prefix) for path in (bin_path, idx_path) if path(self.prefix).exists()
        ]
        notes = sidecar_path(self.prefix)
        if self.sidecar is not None and notes.exists():
            if not is_sidecar(notes):
                raise FileExistsError(
                    f"{notes}: exists and is not a corpus sidecar, it would be lost; choose "
                    "another --out"
                )
            standing.append(notes)
        if standing and not self.overwrite:
            raise FileExistsError(
                f"{standing[0]}: exists; pass --overwrite to replace it, or choose another --out"
            )

    def _finish(self) -> None:
        """Write the index, then bring the three files into place, the index last."""
        self._bin.flush()
        os.fsync(self._bin.fileno())
        with self._partial(idx_path).open("wb") as index:
            index.writelines(self._index_blocks())
            _settle(index)
        idx_path(self.prefix).unlink(missing_ok=True)  # from here on the old corpus does not open
        if is_sidecar(sidecar_path(self.prefix)):
            sidecar_path(self.prefix).unlink()
        if self.sidecar is not None:
            self._write_sidecar(self.sidecar)
        for path in (bin_path, idx_path):
            self._partial(path).rename(path(self.prefix))

    def _write_sidecar(self, facts: dict[str, Any]) -> None:
        facts.update(
            documents=self.num_documents,
            tokens=self.num_tokens,
            empty_documents=self.num_empty_documents,
        )
        partial = self._partial(sidecar_path)
        with partial.open("wb") as file:
            file.write(sidecar_text(facts).encode())
            _settle(file)
        partial.rename(sidecar_path(self.prefix))

    def _index_blocks(self) -> Iterator[bytes]:
        """Lay out the index, a block at a time: 100 million documents need no second copy."""
        code = _CODE_OF[self.dtype]
        yield HEADER.pack(MAGIC, VERSION, code, len(self._lengths_S), len(self._marks))
        lengths_S = np.frombuffer(self._lengths_S, np.int32)
        yield lengths_S.astype("<i4", copy=False).tobytes()
        start = 0
        for first in range(0, lengths_S.size, _BLOCK):
            ends = start + np.cumsum(lengths_S[first : first + _BLOCK], dtype=np.int64)
            starts = np.concatenate([[start], ends[:-1]])
            yield (starts * self.dtype.itemsize).astype("<i8", copy=False).tobytes()
            start = int(ends[-1])
        yield np.frombuffer(self._marks, np.int64).astype("<i8", copy=False).tobytes()

    def _partial(self, path: Any) -> Path:
        final: Path = path(self.prefix)
        return final.with_name(final.name + ".partial")


def _settle(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
