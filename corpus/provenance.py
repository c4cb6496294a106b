"""Where a result came from: versions, git commit, machine. Every output carries it.

It stands in the lowest package because the corpus sidecar, the signature store, the
checkpoints and the probe results all write it.
"""

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = (
    "context-staircase",
    "dask",
    "megatron-core",
    "numba",
    "numpy",
    "tokenizers",
    "torch",
    "xarray",
    "zarr",
)


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that can change a result."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@cache
def git_commit() -> str | None:
    """Commit of the checkout this code runs from, with ``-dirty`` when edited; None outside git."""
    here = Path(__file__).resolve().parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None


def provenance() -> dict[str, Any]:
    """Versions, git commit and platform, ready for JSON."""
    return {
        "versions": versions(),
        "git_commit": git_commit(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
