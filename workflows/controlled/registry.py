"""What an experiment is: the runs it needs, and the function that makes findings of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import xarray as xr

from workflows.controlled.claims import Claim
from workflows.controlled.runs import RunConfig, TrainedRun

Size = Literal["quick", "standard", "full"]
"""Quick: minutes, some claims untested. Full: with what takes hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What an analysis is given."""

    seed: int
    size: Size
    runs: Mapping[str, TrainedRun]
    """By the names that the experiment gave them."""

    @property
    def quick(self) -> bool:
        """Whether claims that need more runs or epochs stay untested."""
        return self.size == "quick"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What an analysis leaves: groups of a result, and claims decided."""

    groups: Mapping[str, xr.Dataset]
    claims: Sequence[Claim]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One id of ``staircase controlled``."""

    id: str
    title: str
    reading: str
    """How to read the figure."""
    runs: Callable[[int, Size], Mapping[str, RunConfig]]
    """Runs by name, for a seed and a size."""
    analyse: Callable[[Inputs], Findings]


def no_runs(seed: int, size: Size) -> Mapping[str, RunConfig]:
    """For experiments that train nothing."""
    return {}


def inner_seeds(seed: int, number: int) -> list[int]:
    """Seeds of the runs within one experiment; those of different ``--seeds`` never meet."""
    return [100 * seed + place for place in range(number)]
