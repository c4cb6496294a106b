"""Whether rho rises and falls, in a sentence that the numbers alone decide."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xarray as xr

_SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The course of rho over a run; ``fall`` is peak less final, with its 95 % interval."""

    rho_next: list[tuple[int, float]]
    peak_step: int
    peak_rho: float
    peak_p: float
    final_rho: float
    fall: float
    fall_low: float
    fall_high: float

    @property
    def rises(self) -> bool:
        """More than chance at the peak, and higher there than at the first step."""
        return self.peak_p <= _SIGNIFICANT and self.peak_rho > self.rho_next[0][1]

    @property
    def falls(self) -> bool:
        """The interval of the fall lies above zero."""
        return self.rises and self.fall_low > 0

    def sentence(self) -> str:
        """Say what was measured, and what was not."""
        (first_step, first), (last_step, last) = self.rho_next[0], self.rho_next[-1]
        if not self.rises:
            return (
                f"rho does not rise above chance: {first:.2f} at step {first_step:,}, at most "
                f"{self.peak_rho:.2f} (step {self.peak_step:,}, p = {self.peak_p:.3f}), "
                f"{last:.2f} at step {last_step:,}."
            )
        rise = (
            f"rho rises from {first:.2f} at step {first_step:,} to a peak of {self.peak_rho:.2f} "
            f"at step {self.peak_step:,} (p = {self.peak_p:.3f})"
        )
        bounds = f"(95 % interval {self.fall_low:.3f} to {self.fall_high:.3f})"
        if self.peak_step == last_step:
            return f"{rise}, which is the last step: no fall was measured."
        if self.falls:
            return (
                f"{rise} and falls by {self.fall:.3f} {bounds} to {last:.2f} at step {last_step:,}."
            )
        return (
            f"{rise} and is at {last:.2f} at step {last_step:,}; the difference of {self.fall:.3f} "
            f"{bounds} is within its uncertainty, so a fall is not shown."
        )

    def as_dict(self) -> dict[str, Any]:
        """Every number, the two verdicts and the sentence."""
        verdicts = {"rises": self.rises, "falls": self.falls, "sentence": self.sentence()}
        return asdict(self) | verdicts


def course_of(group: xr.Dataset) -> Course:
    """Read the course off the group of a path, which holds every number already.

    Raises
    ------
    ValueError
        rho is undefined at every step.
    """
    rho, steps = group["rho"].values, group["step"].values
    if not np.isfinite(rho).any():
        raise ValueError(
            "rho is undefined at every step: all similarities of the signature or of the model "
            "are equal; probe other tokens"
        )
    peak = int(np.nanargmax(rho))
    low, high = (float(bound) for bound in group["fall_interval"].values)
    return Course(
        rho_next=[(int(step), float(value)) for step, value in zip(steps, rho, strict=True)],
        peak_step=int(steps[peak]),
        peak_rho=float(rho[peak]),
        peak_p=float(group["p"].values[peak]),
        final_rho=float(rho[-1]),
        fall=float(group["fall"].values),
        fall_low=low,
        fall_high=high,
    )
