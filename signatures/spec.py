"""What a signature store says about itself: one frozen dataclass is schema, validation, document.

A store is a Zarr v3 group whose root attribute ``staircase`` is ``StoreSpec.to_attribute()``.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

Kind = Literal["next-token", "first-order", "projected"]
Scope = Literal["document", "packed"]
VocabSource = Literal["tokenizer", "given", "sidecar", "largest-id"]
Borders = Literal["known", "unknown"]

ATTRIBUTE = "staircase"


class SignatureFormatError(ValueError):
    """The path holds no signature store that this version can read, or an altered one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What was counted; integers, exact."""

    tokens: int
    """Positions of the corpus in the scope (inputs of the samples, for an ORDER file)."""
    documents: int
    empty_documents: int
    pairs: int
    """Positions with a label; of an anchor, for first-order and projected."""
    entries: int
    """Stored non-zero counts of ``counts`` (rows of ``values``, for projected)."""

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not _is_count(value):
                raise ValueError(f"totals.{name} is {value!r}, an integer of at least 0 is needed")
        if self.empty_documents > self.documents:
            raise ValueError(f"{self.empty_documents} empty documents among {self.documents}")
        if self.pairs > self.tokens:
            raise ValueError(f"{self.pairs} pairs from {self.tokens} tokens; at most one a token")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """The root attribute ``staircase`` of a signature store.

    Raises
    ------
    ValueError
        A field that cannot be, or two that contradict each other.
    """

    FORMAT_VERSION: ClassVar[int] = 1

    kind: Kind
    vocab_size: int
    """V: ids run from 0 to V - 1."""
    vocab_source: VocabSource
    """Who said V; ``largest-id`` makes it a lower bound."""
    totals: Totals
    scope: Scope = "document"
    seq_length: int | None = None
    """Inputs a sample; packed only."""
    order: str | None = None
    """``file``, or what identifies the ORDER file (its sha256); packed only."""
    window: int | None = None
    """Context tokens before a position at most; first-order and projected, scope document only."""
    eod: int | None = None
    """End-of-document token, when the corpus has one."""
    special: tuple[int, ...] = ()
    """Ids that ``top:N`` leaves out, ascending; holds ``eod``."""
    borders: Borders = "known"
    seed: int | None = None
    corpus: tuple[Mapping[str, Any], ...] = ()
    """Fingerprints of the counted files: name, tokens, documents, sha256."""
    tokenizer: str | None = None
    """Hash of the tokenizer."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Resolved options of the count; ``part`` ("I/N") marks a part of one."""
    versions: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Git commit, platform, command: whatever else says where the store came from."""
    complete: bool = False
    """Written last: without it the store is half a store."""

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_scope(self)
        _check_ids(self)
        _check_totals(self)

    @property
    def is_whole(self) -> bool:
        """Whether this is one count of a corpus: no part of one (``--part I/N``), no mixture."""
        return self.parameters.get("part") is None and "mixture" not in self.parameters

    def to_attribute(self) -> dict[str, Any]:
        """Return the JSON value of the root attribute."""
        attribute: dict[str, Any] = {"format_version": self.FORMAT_VERSION}
        for entry in dataclasses.fields(self):
            attribute[entry.name] = getattr(self, entry.name)
        attribute["totals"] = dataclasses.asdict(self.totals)
        attribute["special"] = [int(token) for token in self.special]
        attribute["corpus"] = [dict(source) for source in self.corpus]
        for name in ("parameters", "versions", "provenance"):
            attribute[name] = dict(attribute[name])
        return attribute

    @classmethod
    def from_attribute(cls, attribute: Any, *, where: str) -> "StoreSpec":
        """Read the root attribute of the store at ``where``.

        Raises
        ------
        SignatureFormatError
            Another format version, an unknown or missing key, or a value that cannot be.
        """
        if not isinstance(attribute, Mapping):
            raise SignatureFormatError(
                f"{where}: root attribute {ATTRIBUTE!r} is {type(attribute).__name__}, a table of "
                "keys is needed; this is not a signature store"
            )
        version = attribute.get("format_version")
        if version != cls.FORMAT_VERSION:
            raise SignatureFormatError(
                f"{where}: format_version is {version!r}, this version reads {cls.FORMAT_VERSION}; "
                "count the corpus again with `staircase count`, or read it with a version that fits"
            )
        known = {entry.name for entry in dataclasses.fields(cls)}
        found = attribute.keys() - {"format_version"}
        if found != known:
            raise SignatureFormatError(
                f"{where}: root attribute lacks {sorted(known - found)} and has unknown "
                f"{sorted(found - known)}; format_version {version} has {sorted(known)}"
            )
        try:
            return cls(**_fields(attribute, known))
        except (TypeError, ValueError) as error:
            raise SignatureFormatError(f"{where}: {error}; count the corpus again") from error


def _fields(attribute: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    values = {name: attribute[name] for name in names}
    values["totals"] = Totals(**values["totals"])
    values["special"] = tuple(values["special"])
    values["corpus"] = tuple(values["corpus"])
    return values


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_choices(spec: StoreSpec) -> None:
    choices = {"kind": Kind, "scope": Scope, "vocab_source": VocabSource, "borders": Borders}
    for name, choice in choices.items():
        if (value := getattr(spec, name)) not in get_args(choice):
            raise ValueError(f"{name} is {value!r}, one of {list(get_args(choice))} is needed")
    for name in ("parameters", "versions", "provenance"):
        if not isinstance(value := getattr(spec, name), Mapping):
            raise ValueError(f"{name} is {value!r}, a table of keys is needed")
    if not isinstance(spec.complete, bool):
        raise ValueError(f"complete is {spec.complete!r}, true or false is needed")
    if spec.seed is not None and not _is_count(spec.seed):
        raise ValueError(f"seed is {spec.seed!r}, an integer of at least 0 or none is needed")


def _check_scope(spec: StoreSpec) -> None:
    for name in ("seq_length", "window"):
        if (value := getattr(spec, name)) is not None and not (_is_count(value) and value):
            raise ValueError(f"{name} is {value!r}, an integer of at least 1 is needed")
    if spec.scope == "document" and (spec.seq_length is not None or spec.order is not None):
        raise ValueError("scope document has no seq_length and no order; those are of packed")
    if spec.scope == "packed":
        if not isinstance(spec.order, str):
            raise ValueError(
                f"order is {spec.order!r}; packed needs 'file' or an ORDER file's hash"
            )
        if spec.seq_length is None and (spec.kind != "next-token" or spec.order != "file"):
            raise ValueError("scope packed needs a seq_length, where samples are cut")
    if spec.window is not None and (spec.scope != "document" or spec.kind == "next-token"):
        raise ValueError("window is for first-order and projected counts of scope document")


def _check_ids(spec: StoreSpec) -> None:
    if not _is_count(spec.vocab_size) or not 1 <= spec.vocab_size < 2**31:
        raise ValueError(f"vocab_size is {spec.vocab_size!r}, 1 to 2147483647 is needed")
    if list(spec.special) != sorted(set(spec.special)):
        raise ValueError(f"special is {list(spec.special)}, ascending ids, each once, are needed")
    for token in (*spec.special, *([] if spec.eod is None else [spec.eod])):
        if not _is_count(token) or token >= spec.vocab_size:
            raise ValueError(
                f"special token {token!r} is no id below vocab_size {spec.vocab_size}; "
                "name a larger --vocab-size or other --special ids"
            )
    if spec.eod is not None and spec.eod not in spec.special:
        raise ValueError(f"eod {spec.eod} is missing from special {list(spec.special)}")


def _check_totals(spec: StoreSpec) -> None:
    """Whole next-token counts obey their law: one pair for each token that has a successor."""
    totals = spec.totals
    if spec.kind != "next-token" or not spec.is_whole:
        return
    if spec.scope == "document":
        expected = totals.tokens - (totals.documents - totals.empty_documents)
    elif spec.order == "file":
        expected = max(0, totals.tokens - 1)
    else:
        expected = totals.tokens
    if totals.pairs != expected:
        raise ValueError(
            f"totals.pairs is {totals.pairs}, {totals.tokens} tokens in {totals.documents} "
            f"documents ({totals.empty_documents} empty) of scope {spec.scope} make {expected}"
        )
