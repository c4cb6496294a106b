"""A claim of the paper in our words, what was measured, and whether it holds."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One sentence that a number decides."""

    claim: str
    expected: str
    measured: float | None
    """None: not tested at this size, or undefined."""
    holds: bool | None
    """None: not tested at this size."""

    def as_dict(self) -> dict[str, Any]:
        """Return the claim, ready for JSON."""
        return asdict(self)


def at_least(claim: str, measured: float, bound: float, *, tested: bool = True) -> Claim:
    """``measured >= bound``; an undefined number does not hold."""
    return _decided(claim, measured, f">= {bound:g}", measured >= bound, tested)


def at_most(claim: str, measured: float, bound: float, *, tested: bool = True) -> Claim:
    """``measured <= bound``; an undefined number does not hold."""
    return _decided(claim, measured, f"<= {bound:g}", measured <= bound, tested)


def _decided(claim: str, measured: float, expected: str, holds: bool, tested: bool) -> Claim:
    number = float(measured)
    defined = tested and number == number
    return Claim(
        claim=claim,
        expected=expected,
        measured=number if defined else None,
        holds=bool(holds) if tested else None,
    )
