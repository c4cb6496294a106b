"""The tokenised corpus: tokens by memory map, document borders, vocabulary, fingerprint.

Training and counting read the same files through it, so a signature describes the tokens that
the model saw.

Shapes: N tokens, D documents, F files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from corpus.fingerprint import (
    BLOCK,
    block_digest,
    combined_fingerprint,
    file_fingerprint,
    num_blocks,
)
from corpus.parts import Borders, CorpusFile, CorpusFormatError, DocumentEnds, Tokens
from corpus.progress import SILENT, Progress
from corpus.readers import FORMATS, read_files
from corpus.tokenizer import read_tokenizer, special_tokens, tokenizer_hash, vocabulary_size
from corpus.writer import CorpusWriter

__all__ = ["Corpus", "CorpusFormatError", "CorpusWriter", "InputOptions", "open_corpus"]

VocabSource = Literal["tokenizer", "given", "sidecar"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions:
    """How to read a corpus; small, so that it travels to workers beside the paths."""

    format: str = "auto"
    dtype: str | None = None
    """Token type of a flat file, which does not say it itself."""
    eod: int | None = None
    """Id that ends a document; what gives a flat file its borders."""
    tokens_column: str | None = None
    vocab_size: int | None = None
    tokenizer: Path | None = None
    special: tuple[int, ...] | Path | None = None
    """Ids (or the tokenizer that has them) that ``top:N`` leaves out; None: the sidecar's."""

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"format {self.format!r}: unknown, needed one of {sorted(FORMATS)}")
        if self.vocab_size is not None and self.tokenizer is not None:
            raise ValueError("both a vocabulary size and a tokenizer are given; one of them says V")
        if self.vocab_size is not None and self.vocab_size < 1:
            raise ValueError(f"vocabulary size {self.vocab_size}: at least 1 is needed")
        if self.eod is not None and self.eod < 0:
            raise ValueError(f"end token {self.eod}: ids are not negative")


def open_corpus(
    paths: Path | str | Sequence[Path | str], options: InputOptions | None = None
) -> "Corpus":
    """Open one path, or several as one corpus in the given order.

    A path is a Megatron prefix (or either file of the pair), a flat or datatrove file, an arrow
    or parquet file, a folder saved by ``datasets``, or a folder of such files.

    Raises
    ------
    CorpusFormatError
        A file is broken or is not what the options say; the message names file, what was found,
        what was needed and the remedy.
    FileNotFoundError
        Nothing stands at a path.
    """
    listed = [paths] if isinstance(paths, Path | str) else list(paths)
    if not listed:
        raise ValueError("no corpus given; name at least one path")
    options = options or InputOptions()
    given = tuple(Path(path) for path in listed)
    return Corpus(given, options, read_files(given, options))


class Corpus:
    """A read-only token stream over one or several files, and where its documents end.

    Pickles as its paths and options: a worker maps the files anew.
    """

    def __init__(
        self, paths: tuple[Path, ...], options: InputOptions, files: Sequence[CorpusFile]
    ) -> None:
        self.paths = paths
        self.options = options
        self.files = tuple(files)
        sizes = [file.num_tokens for file in self.files]
        self._file_starts_F = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self.num_tokens = int(self._file_starts_F[-1])
        self.num_documents = sum(file.doc_ends_D.size for file in self.files)
        self.num_skipped_documents = sum(file.skipped_documents for file in self.files)
        self.dtype = _common_dtype([file.dtype for file in self.files])
        self.notices = tuple(notice for file in self.files for notice in file.notices)
        facts = _vocabulary(self.files, options)
        self.vocab_size: int | None = facts.vocab_size
        self.vocab_source: VocabSource | None = facts.source
        self.tokenizer_hash: str | None = facts.tokenizer_hash
        self.eod: int | None = facts.eod
        self.special: tuple[int, ...] = facts.special
        for file in self.files:
            _check_width(file, self.vocab_size)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_corpus, (self.paths, self.options)

    @property
    def format(self) -> str:
        """Format of the files; ``mixed`` when they differ."""
        formats = {file.format for file in self.files}
        return formats.pop() if len(formats) == 1 else "mixed"

    @property
    def borders(self) -> Borders:
        """``unknown`` as soon as one file does not say where its documents end."""
        return "known" if all(file.borders == "known" for file in self.files) else "unknown"

    @cached_property
    def doc_ends_D(self) -> DocumentEnds:
        """Exclusive end of each document, int64, non-decreasing: an empty one repeats an end.

        A file with unknown borders is one document.
        """
        if len(self.files) == 1:
            return self.files[0].doc_ends_D
        shifted = [
            file.doc_ends_D + start
            for file, start in zip(self.files, self._file_starts_F, strict=False)
        ]
        return np.concatenate(shifted) if shifted else np.empty(0, np.int64)

    @cached_property
    def num_empty_documents(self) -> int:
        """Documents of no tokens."""
        return sum(_count_empty(file.doc_ends_D) for file in self.files)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the files' fingerprints, in order; names do not enter."""
        return combined_fingerprint(self.fingerprints)

    @cached_property
    def fingerprints(self) -> list[dict[str, Any]]:
        """One a file: name, tokens, documents, sha256 (``corpus.fingerprint``); costs one pass."""
        return self.compute_fingerprints()

    def compute_fingerprints(self, progress: Progress = SILENT) -> list[dict[str, Any]]:
        """Compute and keep ``fingerprints``, telling ``progress`` about the pass."""
        if "fingerprints" not in self.__dict__:
            digests = []
            with progress.stage("fingerprint", self.num_tokens, "tokens") as advance:
                for file, block in self.fingerprint_blocks():
                    digests.append(block_digest(self.files[file], block))
                    self.files[file].release()
                    advance(min(BLOCK, self.files[file].num_tokens - block * BLOCK))
            self.keep_fingerprints(digests)
        return self.__dict__["fingerprints"]  # type: ignore[no-any-return]

    def fingerprint_blocks(self) -> list[tuple[int, int]]:
        """(file, block) of everything that a fingerprint hashes, in order."""
        return [
            (at, block) for at, file in enumerate(self.files) for block in range(num_blocks(file))
        ]

    def keep_fingerprints(self, digests: Sequence[bytes]) -> None:
        """Make ``fingerprints`` from digests that other processes may have computed."""
        blocks = iter(digests)
        self.__dict__["fingerprints"] = [
            file_fingerprint(file, islice(blocks, num_blocks(file))) for file in self.files
        ]

    def tokens(self, start: int, stop: int) -> Tokens:
        """Tokens ``start`` to ``stop`` (exclusive) of the whole corpus.

        A read-only view of the mapped file when the range lies in one, else a copy; ``dtype`` is
        the corpus's throughout.

        Raises
        ------
        IndexError
            The range reaches outside the corpus.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start} to {stop} of a corpus of {self.num_tokens}")
        if start == stop:
            return np.empty(0, self.dtype)
        first = int(np.searchsorted(self._file_starts_F, start, side="right")) - 1
        last = int(np.searchsorted(self._file_starts_F, stop, side="left")) - 1
        pieces = [self._read(at, start, stop) for at in range(first, last + 1)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def release(self) -> None:
        """Give back the memory of the pages read so far, between blocks of a long scan."""
        for file in self.files:
            file.release()

    def partitions(self, tokens_per_partition: int) -> list[tuple[int, int]]:
        """Half-open token ranges that cover the corpus; not aligned to documents."""
        if tokens_per_partition < 1:
            raise ValueError(f"{tokens_per_partition} tokens per partition: at least 1 is needed")
        starts = range(0, self.num_tokens, tokens_per_partition)
        return [(at, min(at + tokens_per_partition, self.num_tokens)) for at in starts]

    def locate(self, position: int) -> tuple[Path, int, int]:
        """File, document of that file, and place in that document of token ``position``."""
        at = int(np.searchsorted(self._file_starts_F, position, side="right")) - 1
        local = position - int(self._file_starts_F[at])
        ends_D = self.files[at].doc_ends_D
        document = int(np.searchsorted(ends_D, local, side="right"))
        return self.files[at].path, document, local - (int(ends_D[document - 1]) if document else 0)

    def check_ids(self, vocab_size: int, tokens_N: Tokens, start: int) -> None:
        """Refuse ids outside ``vocab_size`` among the tokens read from ``start``.

        Raises
        ------
        CorpusFormatError
            Names file, document and position of the first such id.
        """
        if not tokens_N.size or (int(tokens_N.max()) < vocab_size and int(tokens_N.min()) >= 0):
            return
        at = int(np.argmax((tokens_N >= vocab_size) | (tokens_N < 0)))
        path, document, place = self.locate(start + at)
        raise CorpusFormatError(
            f"{path}: id {tokens_N[at]} at document {document}, position {place} is outside the "
            f"vocabulary of {vocab_size}; give the tokenizer (or vocabulary size) that made it, "
            "or build the corpus again"
        )

    def _read(self, at: int, start: int, stop: int) -> Tokens:
        """Read the part of the global range that lies in file ``at``."""
        origin, end = int(self._file_starts_F[at]), int(self._file_starts_F[at + 1])
        tokens = self.files[at].read(max(start, origin) - origin, min(stop, end) - origin)
        return tokens.astype(self.dtype, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vocabulary:
    vocab_size: int | None
    source: VocabSource | None
    tokenizer_hash: str | None
    eod: int | None
    special: tuple[int, ...]


def _vocabulary(files: Sequence[CorpusFile], options: InputOptions) -> _Vocabulary:
    """Gather what is known of the vocabulary: the options say it, else the sidecars."""
    known = _agreed(files, "vocab_size") if options.vocab_size is None else None
    eod = options.eod if options.eod is not None else _agreed(files, "eod")
    made_by = _agreed(files, "tokenizer_hash")
    special = {id_ for file in files for id_ in file.sidecar.special}
    size, source = (known, "sidecar") if known is not None else (options.vocab_size, "given")
    if options.tokenizer is not None:
        tokenizer = read_tokenizer(options.tokenizer)
        size, source = vocabulary_size(tokenizer), "tokenizer"
        special |= set(special_tokens(tokenizer).values())
        given = tokenizer_hash(options.tokenizer)
        _check_tokenizer(files, given, options.tokenizer)
        made_by = given
    if options.special is not None:
        special = set(_special_ids(options.special))
    return _Vocabulary(
        vocab_size=size,
        source=None if size is None else source,  # type: ignore[arg-type]
        tokenizer_hash=made_by,
        eod=eod,
        special=tuple(sorted(special | ({eod} if eod is not None else set()))),
    )


def _special_ids(special: tuple[int, ...] | Path) -> tuple[int, ...]:
    if isinstance(special, Path):
        return tuple(special_tokens(read_tokenizer(special)).values())
    return special


def _agreed(files: Sequence[CorpusFile], name: str) -> Any:
    """Return the one value that the sidecars give; None when none of them says."""
    said = {getattr(file.sidecar, name): file.path for file in files}
    said.pop(None, None)
    if len(said) > 1:
        (first, one), (second, other), *_ = said.items()
        raise CorpusFormatError(
            f"{other}: {name} {second}, but {first} in {one}; files of one corpus are made with "
            "one tokenizer: count them apart, or build them again"
        )
    return next(iter(said), None)


def _check_tokenizer(files: Sequence[CorpusFile], given: str, tokenizer: Path) -> None:
    for file in files:
        made_by = file.sidecar.tokenizer_hash
        if made_by is not None and made_by != given:
            raise CorpusFormatError(
                f"{file.path}: made with the tokenizer {made_by[:12]}..., {tokenizer} is "
                f"{given[:12]}...; pass the tokenizer that made it, or leave --tokenizer out"
            )


def _check_width(file: CorpusFile, vocab_size: int | None) -> None:
    largest = int(np.iinfo(file.dtype).max)
    if vocab_size is not None and vocab_size - 1 > largest:
        raise CorpusFormatError(
            f"{file.path}: {file.dtype.name} holds ids up to {largest}, a vocabulary of "
            f"{vocab_size} needs ids up to {vocab_size - 1}; larger ids were wrapped when the file "
            "was written, or the type or vocabulary named is not the file's: build it again with "
            "a wider type, or correct --dtype or --vocab-size"
        )


def _common_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[np.integer[Any]]:
    """Return the narrowest integer type that holds them all; never a float."""
    common = np.result_type(*dtypes) if dtypes else np.dtype(np.int32)
    return common if common.kind in "iu" else np.dtype(np.int64)


def _count_empty(ends_D: DocumentEnds) -> int:
    if not ends_D.size:
        return 0
    return int(np.count_nonzero(ends_D[1:] == ends_D[:-1])) + int(ends_D[0] == 0)


def describe_options(options: InputOptions) -> dict[str, Any]:
    """``options`` as plain values, for provenance; paths by name."""
    found = {entry.name: getattr(options, entry.name) for entry in fields(options)}
    return {name: value.name if isinstance(value, Path) else value for name, value in found.items()}
