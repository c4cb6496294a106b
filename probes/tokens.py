"""What a token reads as, and which tokens are numbers."""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

IntArray = npt.NDArray[np.int64]

_NUMBER = re.compile(r" ?(0|[1-9][0-9]{0,5})")
_SIGNS = {" ": "\N{OPEN BOX}", "\n": "\N{RETURN SYMBOL}", "\t": "\N{RIGHTWARDS ARROW TO BAR}"}
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class TokenTexts:
    """The text of each token id of a tokenizer file; without one, the id itself.

    Raises
    ------
    ValueError
        The file is not a tokenizer of the `tokenizers` library.
    """

    def __init__(self, path: Path | None) -> None:
        self._tokenizer = None if path is None else _load(path)

    @property
    def vocab_size(self) -> int | None:
        """Entries of the tokenizer, added tokens included; None without a tokenizer."""
        return None if self._tokenizer is None else self._tokenizer.get_vocab_size()

    def text(self, token: int) -> str:
        r"""Decode one token; bytes that are no whole character are written ``\xe4``."""
        if self._tokenizer is None:
            return str(token)
        decoded: str = self._tokenizer.decode([token], skip_special_tokens=False)
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return f"<{token}>"
        return _bytes_as_text(piece) if _BROKEN in decoded else decoded or piece

    def texts(self, tokens: Sequence[int] | IntArray) -> list[str]:
        """Decode each of ``tokens`` by itself."""
        return [self.text(int(token)) for token in tokens]

    def numbers(self, *, largest: int = 31) -> dict[int, int]:
        """Token ids that read as a whole number up to ``largest``, with the number.

        A leading space is allowed, a leading zero is not.
        """
        if self.vocab_size is None:
            return {}
        found = {}
        for token in range(self.vocab_size):
            match = _NUMBER.fullmatch(self.text(token))
            if match and int(match[1]) <= largest:
                found[token] = int(match[1])
        return found


def visible(text: str) -> str:
    """Show what would not be seen: spaces, line ends, tabs, other control and format characters.

    A run of more than four equal signs is written once, with its length.
    """
    shown = "".join(_visible(character) for character in text)
    runs = "|".join(f"{sign}{{5,}}" for sign in _SIGNS.values())
    return re.sub(runs, lambda run: f"{run[0][0]}\N{MULTIPLICATION SIGN}{len(run[0])}", shown)


def _visible(character: str) -> str:
    if character in _SIGNS:
        return _SIGNS[character]
    if unicodedata.category(character) in ("Cc", "Cf", "Zs", "Zl", "Zp"):
        return f"\\u{ord(character):04x}"
    return character


def _load(path: Path) -> Tokenizer:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; a tokenizer.json is needed")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        raise ValueError(
            f"{path}: not a tokenizer file ({error}); a tokenizer.json as written by "
            "`staircase corpus train-tokenizer` is needed"
        ) from error


def _byte_of_character() -> dict[str, int]:
    """Map each letter of the byte-level alphabet to the byte it stands for (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in plain]
    table = {chr(byte): byte for byte in plain}
    return table | {chr(256 + place): byte for place, byte in enumerate(shifted)}


def _bytes_as_text(piece: str) -> str:
    table = _byte_of_character()
    if any(character not in table for character in piece):
        return piece
    raw = bytes(table[character] for character in piece)
    return raw.decode("utf-8", errors="backslashreplace")
