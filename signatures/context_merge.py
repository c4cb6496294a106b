"""Finished first-order and projected stores into one: parts of a count, or more corpus.

Shapes: A anchors, C context tokens, V vocabulary, R rows, E entries, Q columns of a projection.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from corpus.progress import Progress
from signatures.context_stages import Projection
from signatures.kernels import Int64s, Ints
from signatures.keys import MODULUS, Keys
from signatures.layout import COUNTS, EVEN, ROWS, VALUES, IntArray
from signatures.manifest import read_head
from signatures.partials import Partial, PartialRecord, writing
from signatures.projecting import write_blocks
from signatures.reading import Signatures
from signatures.reduction import entries_by_row, merge_partials, row_ranges
from signatures.schedule import Runner
from signatures.sources import StoreMatrix
from signatures.stages import Merged, write_indptr
from signatures.store import open_signatures

Stores = Sequence[tuple[Path, Signatures]]
_RANGES_A_WORKER = 4
_LEAST_RANGE = 1 << 20
_PIECE = 1 << 21


@dataclass(frozen=True, slots=True)
class Joined:
    """A first-order matrix merged on scratch, and what goes beside it."""

    matrices: dict[str, Merged]
    vectors: dict[str, IntArray]
    dropped_fingerprint: int


def check_contexts(stores: Stores, *, parts: bool) -> None:
    """Refuse stores whose anchors differ, or that have dropped what a sum would keep.

    Raises
    ------
    ValueError
        Names the store.
    """
    first_path, first = stores[0]
    for path, store in stores:
        least = store.spec.parameters.get("min_count", 1)
        if not parts and len(stores) > 1 and least > 1:
            raise ValueError(
                f"{path}: counts below min_count {least} are gone from this finished store, a sum "
                "would lack them; count with --min-count 1, or merge the parts (--part I/N)"
            )
        for name in ("anchors", "context_tokens"):
            if not np.array_equal(getattr(store, name), getattr(first, name)):
                raise ValueError(
                    f"{path}: other {name} than {first_path}; only counts of the same tokens add "
                    "up: name them by a file of ids"
                )


def join_first_order(
    runner: Runner, stores: Stores, folder: Path, *, memory: int, progress: Progress
) -> Joined:
    """Merge the counts row range by row range; entries below ``min_count`` go now."""
    spec = stores[0][1].spec
    keys = Keys(spec.vocab_size, stores[0][1].anchors, stores[0][1].context_tokens)
    halves = bool(spec.parameters.get("halves"))
    min_count = int(spec.parameters.get("min_count", 1))
    folder.mkdir()
    sources = [StoreMatrix(path, COUNTS) for path, _ in stores]
    entries_R = entries_by_row(sources, keys.num_rows)
    wanted = -(-int(entries_R.sum()) // (runner.workers * _RANGES_A_WORKER))
    ranges = row_ranges(entries_R, max(wanted, _LEAST_RANGE))
    outs = [folder / f"range-{number:05d}" for number in range(len(ranges))]
    join = partial(_join_range, tuple(path for path, _ in stores), keys, halves, min_count, memory)
    found: dict[int, _Range] = {}
    with progress.stage("merge", int(entries_R.sum()), "entries") as advance:
        arguments = [(rows, out) for rows, out in zip(ranges, outs, strict=True)]
        for number, one in runner.run(join, arguments):
            found[number] = one
            advance(one.records[0].entries)
    every = [found[number] for number in range(len(ranges))]
    matrices = {
        name: Merged(
            paths := tuple(_named(out, name) for out in outs),
            tuple(one.records[place] for one in every),
            write_indptr(_folder(folder, name), paths, keys.num_rows),
        )
        for place, name in enumerate((COUNTS, EVEN) if halves else (COUNTS,))
    }
    vectors = join_vectors(stores, halves=halves)
    for place, name in enumerate(("dropped", "even_dropped") if halves else ("dropped",)):
        for one in every:
            for anchor, mass in one.left_out[place].items():
                vectors[name][anchor] += mass
    dropped = sum(read_head(path)[1].dropped_fingerprint or 0 for path, _ in stores)
    dropped += sum(one.left_out_fingerprint for one in every)
    return Joined(matrices, vectors, dropped % MODULUS)


def join_vectors(stores: Stores, *, halves: bool) -> dict[str, IntArray]:
    """Anchors and context tokens as they are, everything else added up."""
    kept = ("anchors", "context_tokens")
    vectors: dict[str, IntArray] = {name: getattr(stores[0][1], name) for name in kept}
    for name in ("anchor_occurrences", "dropped", "token_counts"):
        vectors[name] = np.sum([getattr(store, name) for _, store in stores], axis=0)
        if halves:
            evens = [getattr(store.half("even"), name) for _, store in stores]
            vectors[f"even_{name}"] = np.sum(evens, axis=0)
    return vectors


@dataclass(frozen=True, slots=True)
class _Range:
    """What merging a range of rows gave: of all documents, then of the even ones."""

    records: tuple[PartialRecord, ...]
    left_out: tuple[dict[int, int], ...]
    left_out_fingerprint: int


def _join_range(
    stores: tuple[Path, ...],
    keys: Keys,
    halves: bool,
    min_count: int,
    memory: int,
    rows: tuple[int, int],
    out: Path,
) -> _Range:
    names = (COUNTS, EVEN) if halves else (COUNTS,)
    if min_count == 1:
        records = [
            merge_partials(
                [StoreMatrix(path, name) for path in stores], rows, _named(out, name),
                keys=keys, memory=memory,
            )
            for name in names
        ]  # fmt: skip
        return _Range(tuple(records), ({},) * len(names), 0)
    aside = out.with_name(f"{out.name}-all")
    for name in names:
        merge_partials(
            [StoreMatrix(path, name) for path in stores], rows, _named(aside, name),
            keys=keys, memory=memory,
        )  # fmt: skip
    return _keep_frequent(aside, out, names, keys, min_count, rows)


def _keep_frequent(
    aside: Path,
    out: Path,
    names: tuple[str, ...],
    keys: Keys,
    min_count: int,
    rows: tuple[int, int],
) -> _Range:
    """Copy what is frequent in all documents, of all of them and of the even ones."""
    whole, *even = (Partial(_named(aside, name)) for name in names)
    dtypes = whole.column_dtype, whole.count_dtype
    left_out: tuple[dict[int, int], ...] = tuple({} for _ in names)
    fingerprint = 0
    with (
        writing(_named(out, COUNTS), rows, keys, *dtypes) as writer,
        writing(_named(out, EVEN), rows, keys, *dtypes) as even_writer,
    ):
        for first, last in _pieces(whole, rows):
            piece = _Piece.read(whole, first, last)
            keep_E = piece.counts_E >= min_count
            writer.append(first, *piece.only(keep_E))
            rest = piece.only(~keep_E)
            indptr_R1 = np.concatenate([np.zeros(1, np.int64), np.cumsum(rest[0])])
            fingerprint += keys.fingerprint(first, indptr_R1, rest[1], rest[2])
            _add_mass(left_out[0], piece, ~keep_E, keys)
            for part in even:
                even_piece = _Piece.read(part, first, last)
                kept = piece.places(keys)[keep_E]
                keep_even_E = np.isin(even_piece.places(keys), kept, assume_unique=True)
                even_writer.append(first, *even_piece.only(keep_even_E))
                _add_mass(left_out[1], even_piece, ~keep_even_E, keys)
        records = [writer.finish()]
        if even:
            records.append(even_writer.finish())
    return _Range(tuple(records), left_out, fingerprint % MODULUS)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a partial, in memory."""

    first_row: int
    entries_R: Int64s
    columns_E: Ints
    counts_E: Ints

    @classmethod
    def read(cls, source: Partial, first: int, last: int) -> "_Piece":
        span, start, stop = source.span(first, last)
        entries_R = np.zeros(last - first, np.int64)
        entries_R[source.rows_R[span].astype(np.int64) - first] = source.entries_R[span]
        columns_E = np.empty(stop - start, source.column_dtype)
        counts_E = np.empty(stop - start, source.count_dtype)
        source.columns(start, columns_E)
        source.counts(start, counts_E)
        return cls(first, entries_R, columns_E, counts_E)

    @property
    def rows_E(self) -> Int64s:
        """Row of each entry."""
        return self.first_row + np.repeat(np.arange(self.entries_R.size), self.entries_R)

    def places(self, keys: Keys) -> Int64s:
        """Row and column of each entry as one number."""
        places_E: Int64s = self.rows_E * keys.num_columns + self.columns_E
        return places_E

    def only(self, keep_E: npt.NDArray[np.bool_]) -> tuple[Int64s, Ints, Ints]:
        """Entries a row, columns and counts of the entries that stay."""
        rows_E = self.rows_E[keep_E] - self.first_row
        entries_R = np.bincount(rows_E, minlength=self.entries_R.size).astype(np.int64)
        return entries_R, self.columns_E[keep_E], self.counts_E[keep_E]


def _add_mass(
    left_out: dict[int, int], piece: _Piece, drop_E: npt.NDArray[np.bool_], keys: Keys
) -> None:
    anchors_E, counts_E = piece.rows_E[drop_E] // keys.vocab_size, piece.counts_E[drop_E]
    for anchor in np.unique(anchors_E).tolist():
        mass = int(counts_E[anchors_E == anchor].sum(dtype=np.uint64))
        left_out[anchor] = left_out.get(anchor, 0) + mass


def _pieces(source: Partial, rows: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Ranges of rows that hold about as many entries as fit into a buffer."""
    entries_R = np.zeros(rows[1] - rows[0], np.int64)
    entries_R[source.rows_R.astype(np.int64) - rows[0]] = source.entries_R
    for first, last in row_ranges(entries_R, _PIECE):
        yield rows[0] + first, rows[0] + last


def join_projected(runner: Runner, stores: Stores, folder: Path, progress: Progress) -> Projection:
    """Add up the values of each row that any store has."""
    folder.mkdir()
    paths = tuple(path for path, _ in stores)
    edges = _row_edges(stores)
    outs = [folder / f"range-{number:05d}" for number in range(len(edges) - 1)]
    found: dict[int, int] = {}
    with progress.stage("merge", len(outs), "row ranges") as advance:
        arguments = [(paths, *rows, out) for rows, out in zip(pairwise(edges), outs, strict=True)]
        for number, rows in runner.run(_join_values, arguments):
            found[number] = rows
            advance(1)
    return Projection(tuple(outs), tuple(found[n] for n in range(len(outs))), 0, 0.0)


def _row_edges(stores: Stores) -> list[int]:
    """Cut the rows so that no store has more than a buffer full in a range."""
    edges = [np.zeros(1, np.int64)]
    for _, store in stores:
        (contents,) = store.sources
        columns = contents.arrays[VALUES].shape[1]
        rows = contents.arrays[ROWS][0 : contents.spec.totals.entries]
        edges.append(rows[:: max(1, _PIECE // columns)])
    last = stores[0][1].anchors.size * stores[0][1].spec.vocab_size
    return [*np.unique(np.concatenate(edges)).tolist(), last]


def _join_values(stores: tuple[Path, ...], first_row: int, last_row: int, out: Path) -> int:
    pieces = []
    for path in stores:
        (contents,) = open_signatures(path).sources
        rows = contents.arrays[ROWS][0 : contents.spec.totals.entries]
        start, stop = (int(place) for place in np.searchsorted(rows, [first_row, last_row]))
        pieces.append((rows[start:stop], contents.arrays[VALUES][start:stop]))
    rows_B = np.unique(np.concatenate([rows for rows, _ in pieces]))
    sums_BQ = np.zeros((rows_B.size, pieces[0][1].shape[1]), np.int64)
    for rows, values in pieces:
        sums_BQ[np.searchsorted(rows_B, rows)] += values
    write_blocks(out, rows_B, sums_BQ)
    return int(rows_B.size)


def _named(out: Path, name: str) -> Path:
    return out.with_name(f"{out.name}-{name.replace('/', '-')}")


def _folder(folder: Path, name: str) -> Path:
    path = folder / name.replace("/", "-")
    path.mkdir(exist_ok=True)
    return path
