"""What a ``tokenizer.json`` says of itself: hash, vocabulary size, special tokens.

Read as JSON, so that opening a corpus does not load the tokenizers library.
"""

import hashlib
import json
from pathlib import Path
from typing import Any


class TokenizerFormatError(ValueError):
    """A file that is not a ``tokenizer.json`` of the tokenizers library."""


def tokenizer_hash(path: Path) -> str:
    """SHA-256 of the canonical JSON (sorted keys, no spaces) of the tokenizer at ``path``.

    Raises
    ------
    TokenizerFormatError
        The file is no tokenizer.
    """
    canonical = json.dumps(
        read_tokenizer(path), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def read_tokenizer(path: Path) -> dict[str, Any]:
    """Read the JSON of a tokenizer.

    Raises
    ------
    TokenizerFormatError
        The file is not JSON, or not that of a tokenizer.
    FileNotFoundError
        There is no such file.
    """
    try:
        tokenizer = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise TokenizerFormatError(
            f"{path}: not JSON ({error}); a tokenizer.json of the tokenizers library is needed"
        ) from error
    if not isinstance(tokenizer, dict) or not isinstance(tokenizer.get("model"), dict):
        raise TokenizerFormatError(
            f'{path}: no "model" in it; a tokenizer.json of the tokenizers library is needed'
        )
    return tokenizer


def vocabulary_size(tokenizer: dict[str, Any]) -> int:
    """Largest id plus one, added tokens included: the ids need not be without holes."""
    vocabulary = tokenizer["model"].get("vocab", {})
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    added = (token["id"] for token in tokenizer.get("added_tokens") or ())
    return int(max(max(ids, default=-1), max(added, default=-1))) + 1


def special_tokens(tokenizer: dict[str, Any]) -> dict[str, int]:
    """Text and id of every special token (end, begin, padding, ...)."""
    return {
        token["content"]: token["id"]
        for token in tokenizer.get("added_tokens") or ()
        if token.get("special")
    }
