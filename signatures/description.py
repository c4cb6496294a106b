"""What a store holds, in one table for people and programs."""

from pathlib import Path
from typing import Any

from signatures.manifest import read_head
from signatures.store import open_signatures


def describe_store(path: Path | str) -> dict[str, Any]:
    """Return the root attribute of a store, the sizes of its matrices, and its fingerprints.

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
    }
