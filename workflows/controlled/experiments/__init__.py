"""Every experiment, in the order of the paper's figures."""

from collections.abc import Mapping

from workflows.controlled.experiments import (
    activation_order,
    attention,
    fixed_embeddings,
    gradient,
    laws,
    min_max,
    moduli,
    pairs,
    robustness,
    seeds,
    triples,
)
from workflows.controlled.registry import Experiment

_FAMILIES = (
    laws.EXPERIMENTS,
    pairs.EXPERIMENTS,
    activation_order.EXPERIMENTS,
    attention.EXPERIMENTS,
    fixed_embeddings.EXPERIMENTS,
    moduli.EXPERIMENTS,
    min_max.EXPERIMENTS,
    triples.EXPERIMENTS,
    seeds.EXPERIMENTS,
    gradient.EXPERIMENTS,
    robustness.EXPERIMENTS,
)

EXPERIMENTS: Mapping[str, Experiment] = {one.id: one for family in _FAMILIES for one in family}
"""By id."""
