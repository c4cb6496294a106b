"""Whether signatures place numbers in order, weekdays in a ring, categories in clusters.

Word sets are looked for in a tokenizer's vocabulary, in English and Chinese; a set takes part when
enough of its words are single tokens that occur (arXiv:2608.30315, Figure 11).

Shapes: n tokens of a set, H features.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xarray as xr

from probes.checkpoints import LayeredCheckpoint
from probes.components import principal_components
from probes.results import dataset
from probes.similarity import FloatArray, Rows, cosine_matrix, off_diagonal, spearman, unit_rows
from probes.tokens import TokenTexts
from probes.vocabulary import IntArray
from signatures.store import Signatures

Kind = Literal["order", "cycle", "category"]

FEWEST = 5
"""Words of a set (of each category: two) that must be found."""
_FEWEST_OCCURRENCES = 20
_COMPONENTS = 3

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September",
          "October", "November", "December")  # fmt: skip
WEEKDAYS_ZH = ("星期一", "星期二", "星期三", "星期四", "星期五", "星期六", "星期日")
NUMERALS_ZH = ("一", "二", "三", "四", "五", "六", "七", "八", "九", "十")
_CYCLES = {"weekdays": WEEKDAYS, "months": MONTHS, "weekdays, Chinese": WEEKDAYS_ZH}
CATEGORIES: Mapping[str, tuple[str, ...]] = {
    "animal": ("dog", "cat", "horse", "bird", "fish", "lion", "cow", "sheep"),
    "colour": ("red", "green", "blue", "black", "white", "yellow", "brown", "gray"),
    "country": ("China", "France", "Germany", "Japan", "India", "Italy", "Spain", "Canada"),
    "type": ("int", "str", "float", "list", "dict", "tuple", "bool", "bytes"),
}
CATEGORIES_ZH: Mapping[str, tuple[str, ...]] = {
    "animal": ("狗", "猫", "马", "鸟", "鱼", "牛", "羊", "虎"),
    "colour": ("红", "绿", "蓝", "黑", "白", "黄", "灰", "紫"),
    "country": ("中国", "法国", "德国", "日本", "印度", "英国", "美国", "俄罗斯"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSet:
    """Tokens of one set, each with its place in the order or its category."""

    name: str
    kind: Kind
    tokens: IntArray
    places: IntArray
    """Number, place in the cycle, or number of the category."""
    period: int = 0
    """Length of the whole cycle."""
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well a geometry shows the structure, and how often shuffled words do as well."""

    value: float
    p: float


def find_sets(texts: TokenTexts, counts_V: IntArray) -> list[WordSet]:
    """Find the word sets whose words are single tokens that occur often enough.

    Of the forms of a word (with a leading space or not, lower case or not) the most frequent is
    taken.
    """
    finder = _Finder(texts, counts_V)
    found = [_numbers(texts, counts_V)]
    for name, words in _CYCLES.items():
        found.append(finder.line(name, words, "cycle"))
    found.append(finder.line("numerals, Chinese", NUMERALS_ZH, "order"))
    found += [finder.categories("categories", CATEGORIES),
              finder.categories("categories, Chinese", CATEGORIES_ZH)]  # fmt: skip
    return [one for one in found if one is not None]


def structure_score(
    rows_nH: Any, words: WordSet, *, permutations: int = 999, seed: int = 0
) -> Score:
    """Score a geometry for the structure of the set, with a one-sided permutation p.

    order: Spearman's correlation of cosine distance with the difference of the numbers; cycle:
    with the distance around the cycle; category: mean silhouette of cosine distance. The places
    are shuffled for p = (1 + hits) / (1 + permutations).
    """
    distance_nn = 1.0 - cosine_matrix(rows_nH)
    measure = _silhouette if words.kind == "category" else _distance_correlation(words)
    value = measure(distance_nn, words.places)
    if not np.isfinite(value):
        return Score(value=float("nan"), p=float("nan"))
    generator = np.random.default_rng(seed)
    shuffled = (generator.permutation(words.places) for _ in range(permutations))
    hits = sum(measure(distance_nn, places) >= value - 1e-12 for places in shuffled)
    return Score(value=value, p=(1 + hits) / (1 + permutations))


def semantics_groups(
    store: Signatures,
    texts: TokenTexts,
    checkpoints: Sequence[LayeredCheckpoint] = (),
    *,
    permutations: int = 999,
    seed: int = 0,
) -> dict[str, xr.Dataset]:
    """Score and project every set found, by signature and by the embeddings of checkpoints.

    Raises
    ------
    ValueError
        The vocabulary holds none of the sets.
    """
    sets = find_sets(texts, store.token_counts)
    if not sets:
        raise ValueError(
            "no word set found: fewer than five number, weekday, month or category words are "
            "single tokens that occur; a tokenizer of more natural text is needed"
        )
    groups = {}
    for words in sets:
        geometries: list[Rows] = [store.next_token_matrix(words.tokens)]
        geometries += [checkpoint.input_embedding(words.tokens) for checkpoint in checkpoints]
        sources = ["signature", *(f"step {checkpoint.step}" for checkpoint in checkpoints)]
        scores = [structure_score(g, words, permutations=permutations, seed=seed)
                  for g in geometries]  # fmt: skip
        parts = [principal_components(unit_rows(g), _COMPONENTS) for g in geometries]
        group = dataset(
            {
                "score": (("source",), [score.value for score in scores]),
                "p": (("source",), [score.p for score in scores]),
                "pca": (("source", "token", "component"), [part.coordinates for part in parts]),
                "explained_variance": (("source", "component"), [p.explained for p in parts]),
                "place": (("token",), words.places),
            },
            {
                "source": ("source", sources),
                "token": ("token", words.tokens),
                "token_text": ("token", texts.texts(words.tokens)),
                "component": ("component", 1 + np.arange(_COMPONENTS)),
            },
        )
        groups[words.name] = group.assign_attrs(
            kind=words.kind, period=words.period, categories=list(words.categories)
        )
    return groups


class _Finder:
    def __init__(self, texts: TokenTexts, counts_V: IntArray) -> None:
        self._counts = counts_V
        size = min(texts.vocab_size or 0, len(counts_V))
        self._token_of = {texts.text(token): token for token in reversed(range(size))}

    def token(self, word: str) -> int | None:
        """Return the most frequent form of the word that is a token and occurs."""
        forms = {" " * space + form for space in (0, 1) for form in (word, word.lower())}
        tokens = [self._token_of[form] for form in forms if form in self._token_of]
        tokens = [token for token in tokens if self._counts[token] >= _FEWEST_OCCURRENCES]
        return max(tokens, key=lambda token: (self._counts[token], -token), default=None)

    def line(self, name: str, words: Sequence[str], kind: Kind) -> WordSet | None:
        found = [(place, self.token(word)) for place, word in enumerate(words)]
        kept = [(place, token) for place, token in found if token is not None]
        if len(kept) < FEWEST:
            return None
        places, tokens = np.array(kept, np.int64).T
        period = len(words) if kind == "cycle" else 0
        return WordSet(name=name, kind=kind, tokens=tokens, places=places, period=period)

    def categories(self, name: str, categories: Mapping[str, Sequence[str]]) -> WordSet | None:
        found = {label: [self.token(word) for word in words] for label, words in categories.items()}
        kept = {label: [t for t in tokens if t is not None] for label, tokens in found.items()}
        kept = {label: tokens for label, tokens in kept.items() if len(tokens) >= 2}
        if len(kept) < 2 or sum(map(len, kept.values())) < FEWEST:
            return None
        tokens = [token for group in kept.values() for token in group]
        places = np.repeat(np.arange(len(kept)), [len(group) for group in kept.values()])
        return WordSet(name=name, kind="category", tokens=np.array(tokens, np.int64),
                       places=places, categories=tuple(kept))  # fmt: skip


def _numbers(texts: TokenTexts, counts_V: IntArray) -> WordSet | None:
    """Return the most frequent token of each number."""
    best: dict[int, int] = {}
    for token, value in texts.numbers(largest=100).items():
        if token < len(counts_V) and counts_V[token] >= _FEWEST_OCCURRENCES:
            known = best.get(value)
            if known is None or counts_V[token] > counts_V[known]:
                best[value] = token
    if len(best) < FEWEST:
        return None
    places = np.array(sorted(best), np.int64)
    tokens = np.array([best[int(place)] for place in places], np.int64)
    return WordSet(name="numbers", kind="order", tokens=tokens, places=places)


def _distance_correlation(
    words: WordSet,
) -> Callable[[FloatArray, npt.NDArray[Any]], float]:
    def measure(distance_nn: FloatArray, places: npt.NDArray[Any]) -> float:
        apart = np.abs(places[:, None] - places[None, :])
        if words.period:
            apart = np.minimum(apart, words.period - apart)
        one, other = off_diagonal(distance_nn), off_diagonal(apart)
        kept = np.isfinite(one)
        return spearman(one[kept], other[kept])

    return measure


def _silhouette(distance_nn: FloatArray, places: npt.NDArray[Any]) -> float:
    """Mean of (b - a) / max(a, b): a to the own category, b to the nearest other (Rousseeuw)."""
    values = list(_silhouettes(np.nan_to_num(distance_nn, nan=1.0), places))
    return float(np.mean(values)) if values else float("nan")


def _silhouettes(distance_nn: FloatArray, places: npt.NDArray[Any]) -> Iterator[float]:
    for token, place in enumerate(places):
        own = places == place
        own[token] = False
        others = [distance_nn[token, places == other].mean() for other in set(places) - {place}]
        if own.any() and others:
            a, b = distance_nn[token, own].mean(), min(others)
            yield (b - a) / max(a, b) if max(a, b) > 0 else 0.0
