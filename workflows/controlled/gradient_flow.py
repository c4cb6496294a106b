"""What the theorems about the gradient say, measured: the records behind four checks.

- `theorem_errors`: Theorems 1, 2 and 3 of arXiv:2608.30315 against automatic differentiation.
- `proposition_slopes`: how the order-m term falls with the width (Proposition 1).
- `embedding_scale_shares`: the share of each order as embeddings grow (Proposition 2).
- `shares_along_training`: the share of each order along training runs, which the paper lacks.
  `share_runs` and `shares_of_runs` are its halves, for runs that are trained elsewhere.

`ffn_flow` and `attention_flow` hold the formulas.
"""

from workflows.controlled.gradient_staircase import (
    share_runs,
    shares_along_training,
    shares_of_runs,
)
from workflows.controlled.propositions import embedding_scale_shares, proposition_slopes
from workflows.controlled.theorems import theorem_errors

__all__ = [
    "embedding_scale_shares",
    "proposition_slopes",
    "share_runs",
    "shares_along_training",
    "shares_of_runs",
    "theorem_errors",
]
