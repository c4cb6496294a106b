"""Trains a byte-level BPE tokenizer on text sources."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.progress import SILENT, Advance, Progress
from corpus.records import Fault, texts_of
from corpus.sources import Source, SourceError, find_sources, read_blocks
from corpus.tokenizer import tokenizer_hash

END_OF_TEXT = "<|endoftext|>"
_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadOptions:
    text_column: str
    block_bytes: int = 1 << 20


def train_tokenizer(
    sources: Sequence[Path | str] | Path | str,
    *,
    vocab_size: int,
    out: Path,
    text_column: str = "text",
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Train byte-level BPE with the one special token ``<|endoftext|>`` (id 0), and save it.

    The same input gives the same file. Text too small for ``vocab_size`` gives a smaller
    vocabulary; the result says so.

    Raises
    ------
    SourceError
        A broken record, or no text at all.
    ValueError
        A vocabulary too small for the 256 bytes and the end token.
    FileExistsError
        ``out`` exists and ``overwrite`` is off.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < _BYTES + 1:
        raise ValueError(
            f"vocabulary size {vocab_size}: at least {_BYTES + 1} is needed, for the {_BYTES} "
            f"bytes and {END_OF_TEXT}"
        )
    out = Path(out)
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out}: exists; pass --overwrite to replace it")
    found = find_sources(sources)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = _Texts(found, text_column)
    total = sum(source.size for source in found)
    with progress.stage("train tokenizer", total, "bytes") as advance:
        tokenizer.train_from_iterator(texts.batches(advance), trainer)
    if not texts.documents:
        raise SourceError(f"{found[0].path}: no text in the sources; nothing to train on")
    _save(tokenizer, out)
    return {
        "tokenizer": str(out),
        "vocab_size": tokenizer.get_vocab_size(),
        "asked_vocab_size": vocab_size,
        "documents": texts.documents,
        "tokenizer_hash": tokenizer_hash(out),
    }


class _Texts:
    """The texts of the sources, a block at a time, and how many there were."""

    def __init__(self, sources: list[Source], text_column: str) -> None:
        self._sources = sources
        self._text_column = text_column
        self.documents = 0

    def batches(self, advance: Advance) -> Iterator[list[str]]:
        """Blocks of texts; the first broken record ends it."""
        options = _ReadOptions(text_column=self._text_column)
        for block in read_blocks(self._sources, options):
            texts: list[str] = []
            for record in texts_of(block, self._text_column):
                if isinstance(record, Fault):
                    raise SourceError(
                        f"{block.path}: {block.unit} {record.number}: {record.reason}; mend it"
                    )
                texts.append(record)
            if block.broken:
                raise SourceError(f"{block.path}: {block.broken}; copy or make the file again")
            self.documents += sum(map(bool, texts))
            advance(block.source_bytes)
            yield texts


def _save(tokenizer: Any, out: Path) -> None:
    """Save beside ``out`` and rename: the file is whole, or not there."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    tokenizer.save(str(partial))
    partial.rename(out)
