"""``PREFIX.json``: what ``corpus build`` says about the tokens beside it."""

import json
from pathlib import Path
from typing import Any

from corpus.parts import CorpusFormatError, Sidecar

_MARK = "staircase corpus"
_OPENING = f'{{"format": "{_MARK}"'.encode()


def sidecar_path(prefix: Path) -> Path:
    """``PREFIX.json``."""
    return prefix.with_name(prefix.name + ".json")


def sidecar_text(facts: dict[str, Any]) -> str:
    """``facts`` as the text of a sidecar; the mark comes first, so that others' files differ."""
    return json.dumps({"format": _MARK, **facts}, ensure_ascii=False, allow_nan=False) + "\n"


def is_sidecar(path: Path) -> bool:
    """Whether the file was written as a sidecar, and is not somebody's data of the same name."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_OPENING)) == _OPENING


def read_sidecar(prefix: Path, *, documents: int, tokens: int) -> Sidecar:
    """Read the sidecar of ``prefix``; an empty one where there is none.

    Raises
    ------
    CorpusFormatError
        It is cut, or it describes other documents than those of ``prefix``.
    """
    path = sidecar_path(prefix)
    if not is_sidecar(path):
        return Sidecar()
    facts = _load(path)
    if (facts.get("documents"), facts.get("tokens")) != (documents, tokens):
        raise CorpusFormatError(
            f"{path}: describes {facts.get('documents')} documents of {facts.get('tokens')} "
            f"tokens, found {documents} of {tokens} in {prefix.name}.idx; it belongs to another "
            "corpus: build again, or delete it"
        )
    return Sidecar(
        vocab_size=facts.get("vocab_size"),
        tokenizer_hash=facts.get("tokenizer_hash"),
        eod=facts.get("eod"),
        special=tuple(facts.get("special", ())),
        skipped_documents=facts.get("skipped_documents", 0),
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_bytes())
    except ValueError as error:
        raise CorpusFormatError(
            f"{path}: not whole JSON ({error}); build the corpus again, or delete this file to "
            "read the tokens without their tokenizer's facts"
        ) from error
    assert isinstance(facts, dict)
    return facts
