"""The theorems and propositions as checks, and the staircase in the gradient itself."""

import numpy as np

from probes.similarity import FloatArray
from workflows.controlled.claims import Claim, at_least, at_most
from workflows.controlled.gradient_staircase import (
    MODULAR,
    SUM_OF_THREE,
    share_runs,
    shares_of_runs,
)
from workflows.controlled.propositions import embedding_scale_shares, proposition_slopes
from workflows.controlled.registry import (
    Experiment,
    Findings,
    Inputs,
    Size,
    inner_seeds,
    no_runs,
)
from workflows.controlled.runs import RunConfig
from workflows.controlled.theorems import theorem_errors
from workflows.controlled.variables import controlled_dataset

_EXACT = 1e-10
_CHECKS = {
    "theorem_1_label": "Theorem 1: the label-driven part of the FFN",
    "theorem_2_prediction": "Theorem 2: the prediction-driven part of the FFN at p = 1/V",
    "whole_flow": "the orders of the whole flow of the FFN add up to it",
    "theorem_3": "Theorem 3: value, key and query part of attention",
    "theorem_3_positions": "Theorem 3 with positions",
}


def _theorems(inputs: Inputs) -> Findings:
    errors = theorem_errors(inputs.seed)
    group = controlled_dataset(
        {"error": (("check",), list(errors.values()))}, {"check": ("check", list(errors))}
    ).assign_attrs(exact=_EXACT)
    claims = [
        at_most(f"{text} (largest relative error against autograd)", errors[name], _EXACT)
        for name, text in _CHECKS.items()
    ]
    printed = at_least(
        "Theorem 3 as printed, W_QK not transposed in the query part, is off (smallest error)",
        errors["theorem_3_as_printed"],
        1e-3,
    )
    return Findings(groups={"errors": group}, claims=[*claims, printed])


def _propositions(inputs: Inputs) -> Findings:
    slopes = proposition_slopes(inputs.seed, inputs.quick)
    scales = embedding_scale_shares(inputs.seed)
    gamma_G, order_M = slopes["gamma"].values, slopes["order"].values
    off_GM = np.abs(slopes["slope"].values + gamma_G[:, None] * order_M[None, :])
    largest = scales["share"].isel(degree=-1, embedding_scale=-1).values
    degrees_K = scales["degree"].values
    exponent_off = np.abs(scales["exponent"].values - (degrees_K[:, None] - 1)).max()
    claims = [
        at_most("Proposition 1: the order-m term falls as d^(-m gamma) (largest |slope + m gamma|)",
                off_GM.max(), 0.05),
        at_most("Proposition 2: at large embeddings every order grows as scale^(K-1) "
                "(largest distance of the exponents)", exponent_off, 0.05),
        at_least(f"Proposition 2: the top order is the largest (K = {degrees_K[-1]}, "
                 "its share less the next)",
                 largest[-1] - largest[:-1].max(), 0.0),
    ]  # fmt: skip
    return Findings(groups={"slopes": slopes, "scales": scales}, claims=claims)


def _share_runs(seed: int, size: Size) -> dict[str, RunConfig]:
    return dict(share_runs(inner_seeds(seed, 1)[0], size == "quick"))


def _shares(inputs: Inputs) -> Findings:
    found = shares_of_runs(inputs.runs)
    takeover = {
        name: found["takeover_epoch"].sel(rule=name).values for name in (SUM_OF_THREE, MODULAR)
    }
    three, modular = takeover[SUM_OF_THREE], takeover[MODULAR]
    start = found["flow_share"].sel(rule=MODULAR).values[:, 0]
    return Findings(
        groups={"shares": found},
        claims=[
            _in_turn("sum of three: order 1 is the largest in the flow after order 0", three, 1),
            _in_turn("sum of three: order 2 is the largest in the flow after order 1", three, 2),
            _in_turn("sum of two modulo 20: order 1 takes over from order 0", modular, 1),
            at_least("sum of two modulo 20: at first order 0 is nearly all of the flow (share)",
                     float(start[0]), 0.9),
        ],
    )  # fmt: skip


def _in_turn(text: str, takeover_M: FloatArray, order: int) -> Claim:
    """Epochs from the take-over of the order below to that of this one; NaN: never."""
    later = float(takeover_M[order] - takeover_M[order - 1])
    return at_least(f"{text} (epochs between)", later, 1)


EXPERIMENTS = (
    Experiment(
        id="theorems",
        title="Theorems 1, 2 and 3 against automatic differentiation",
        reading="Relative errors over random tasks (L up to 4, degree up to 6), float64. "
        "The last bar is Theorem 3 as printed; with the transpose it is exact.",
        runs=no_runs,
        analyse=_theorems,
    ),
    Experiment(
        id="propositions",
        title="Propositions 1 and 2: small embeddings favour low orders, large ones the top order",
        reading="Above, the order-m term against order 0 as the width d grows, with lines of slope "
        "-m gamma. Below, the share of each order as the embeddings of one model grow.",
        runs=no_runs,
        analyse=_propositions,
    ),
    Experiment(
        id="shares",
        title="The staircase in the gradient: shares of the orders along training",
        reading="The embedding's gradient flow taken apart by Theorem 1 at many epochs of a run. "
        "Left, shares in the label-driven part; middle, in the whole flow, where an order fades "
        "once the model predicts what it says; right, loss and accuracy.",
        runs=_share_runs,
        analyse=_shares,
    ),
)
