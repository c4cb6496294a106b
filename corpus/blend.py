"""A recipe of corpora and weights: what a run is trained on, and how its counts are mixed.

Training draws the sources with Megatron's blended data set, which takes these prefixes and weights
as they stand. Counting never uses fractional weights: each source is counted by itself, and its
integers are mixed when they are read (``open_signatures(stores, weights)``).

A recipe is TOML::

    [[source]]
    corpus = "web"        # prefix of .bin and .idx, relative to the recipe
    weight = 13.5

    [[source]]
    corpus = "encyclopedia"
    weight = 9
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from corpus.config import ConfigError, load
from corpus.parts import CorpusFormatError
from corpus.store import Corpus, InputOptions, open_corpus


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendSource:
    """One corpus of a blend and its weight, in any unit that all of them share."""

    corpus: Path
    weight: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ValueError(f"{self.corpus}: weight {self.weight}; a positive number is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """Sources in the order of the recipe."""

    source: tuple[BlendSource, ...]

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError("no [[source]] in it; at least one is needed")
        corpora = [one.corpus for one in self.source]
        if repeated := sorted({str(one) for one in corpora if corpora.count(one) > 1}):
            raise ValueError(
                f"{repeated} stand in it twice; add their weights up in one [[source]]"
            )

    @property
    def corpora(self) -> tuple[Path, ...]:
        """Prefix of each source."""
        return tuple(one.corpus for one in self.source)

    @property
    def weights(self) -> tuple[float, ...]:
        """Weight of each source, as written."""
        return tuple(one.weight for one in self.source)

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of each source in the samples drawn; they add up to 1."""
        total = math.fsum(self.weights)
        return tuple(weight / total for weight in self.weights)

    def megatron(self) -> tuple[list[str], list[float]]:
        """Prefixes and weights as ``GPTDatasetConfig(blend=...)`` takes them."""
        return [str(corpus) for corpus in self.corpora], list(self.weights)


def load_blend(path: Path) -> Blend:
    """Read a recipe; its prefixes are relative to its folder.

    Raises
    ------
    ConfigError
        Not TOML, an unknown key, no source, a source twice, a weight that is not positive.
    """
    try:
        written = load(path, Blend)
        placed = (replace(one, corpus=path.parent / one.corpus) for one in written.source)
        return replace(written, source=tuple(placed))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def open_blend(blend: Blend, options: InputOptions | None = None) -> list[Corpus]:
    """Open each source by itself; all of them must be made with one tokenizer.

    Raises
    ------
    CorpusFormatError
        A source that cannot be opened, or sources of different tokenizers.
    """
    opened = [open_corpus(corpus, options) for corpus in blend.corpora]
    first = opened[0]
    for corpus in opened[1:]:
        facts = [
            ("tokenizer", first.tokenizer_hash, corpus.tokenizer_hash),
            ("vocabulary size", first.vocab_size, corpus.vocab_size),
        ]
        for name, one, other in facts:
            if None not in (one, other) and one != other:
                raise CorpusFormatError(
                    f"{corpus.paths[0]}: {name} {other}, but {one} in {first.paths[0]}; the "
                    "sources of a blend are made with one tokenizer, build them again"
                )
    return opened
