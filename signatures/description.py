"""What a store holds, in one table for people and programs."""

from pathlib import Path
from typing import Any

from signatures.manifest import read_head
from signatures.reading import Contents
from signatures.store import open_signatures


def describe_store(path: Path | str) -> dict[str, Any]:
    """Return the root attribute of a store, the sizes of its matrices, and its fingerprints.

    For counts of contexts also the mass that was left out, in all and by anchor.

    Raises
    ------
    FileNotFoundError, SignatureFormatError
        As ``open_signatures``.
    """
    path = Path(path)
    (contents,) = open_signatures(path).sources
    spec, manifest = read_head(path)
    matrices = {counts.name: counts for counts in (contents.counts, contents.even) if counts}
    shards = manifest.shards
    return {
        "store": str(path),
        **spec.to_attribute(),
        "matrices": {
            name: {
                "shape": list(counts.shape),
                "entries": counts.entries,
                "data": str(counts.data.dtype),
                "indices": str(counts.indices.dtype),
            }
            for name, counts in matrices.items()
        },
        "vectors": {name: list(array.shape) for name, array in contents.arrays.items()},
        "shards": len(shards),
        "bytes": sum(shard.bytes for shard in shards),
        "fingerprint": manifest.fingerprint,
        "dropped_fingerprint": manifest.dropped_fingerprint,
        **_dropped(contents),
    }


def _dropped(contents: Contents) -> dict[str, Any]:
    if "dropped" not in contents.arrays:
        return {}
    anchors, dropped = contents.vector("anchors").tolist(), contents.vector("dropped").tolist()
    by_anchor = {str(anchor): mass for anchor, mass in zip(anchors, dropped, strict=True)}
    return {"dropped": sum(dropped), "dropped_by_anchor": by_anchor}
