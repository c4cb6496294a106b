"""Names and units of everything that a controlled result holds."""

from collections.abc import Mapping
from typing import Any

import xarray as xr

from probes.results import VARIABLES, Variable, dataset

_ACCURACY = "share of the data whose label has the largest logit"
CONTROLLED: Mapping[str, Variable] = {
    "epoch": Variable(long_name="passes over the data done", units="epochs"),
    "evaluated": Variable(long_name="passes over the data done, at evaluations", units="epochs"),
    "view": Variable(long_name="whose rows these are", units="text"),
    "run": Variable(long_name="seed of the run", units="seed"),
    "rule": Variable(long_name="rule of the task", units="text"),
    "model": Variable(long_name="model or kind of embedding", units="text"),
    "law": Variable(long_name="law that labels are drawn from", units="text"),
    "label": Variable(long_name="label", units="id"),
    "label_probability": Variable(long_name="probability of the label"),
    "drawn_share": Variable(long_name="share of the label among those drawn"),
    "model_probability": Variable(long_name="softmax(W_U w_a) over the labels of the law"),
    "kl": Variable(long_name="KL divergence of the model from the law", units="nats"),
    "jsd": Variable(long_name="Jensen-Shannon divergence of law and model", units="nats"),
    "kl_drawn": Variable(long_name="KL divergence of the model from the drawn", units="nats"),
    "jsd_drawn": Variable(long_name="Jensen-Shannon divergence of drawn and model", units="nats"),
    "r": Variable(long_name="Pearson correlation of law and model over labels"),
    "r_drawn": Variable(long_name="Pearson correlation of drawn shares and model over labels"),
    "training_loss": Variable(long_name="mean cross-entropy over the data", units="nats"),
    "accuracy": Variable(long_name=_ACCURACY),
    "best_accuracy": Variable(long_name=f"largest over the run, {_ACCURACY}"),
    "epochs_to_95": Variable(
        long_name="first evaluated epoch of accuracy 0.95; none: not reached", units="epochs"
    ),
    "mean_cosine": Variable(long_name="mean cosine similarity of different anchors"),
    "rho_0": Variable(long_name="rho of embeddings and order-0 signatures"),
    "mse_0": Variable(long_name="mean squared difference of cosines, order 0"),
    "rho_1": Variable(long_name="rho by v fitted to all pairs of anchors, order 1"),
    "mse_1": Variable(long_name="mean squared difference of cosines by that v, order 1"),
    "rho_1_pairs": Variable(long_name="rho on held-out pairs, order 1, mean of five folds"),
    "rho_1_anchors": Variable(long_name="rho on held-out anchors, order 1, mean of five folds"),
    "rho_2_anchors": Variable(long_name="rho on held-out anchors, order 2, mean of five folds"),
    "one_minus_mse_0": Variable(long_name="1 - mse of cosines, order 0"),
    "frequency": Variable(long_name="frequency k over the context tokens", units="cycles"),
    "rho_k": Variable(long_name="rho of embeddings and the signature at one frequency"),
    "best_k": Variable(long_name="frequency of the largest rho_k, k >= 1", units="cycles"),
    "best_k_above_10": Variable(long_name="frequency of the largest rho_k, k > 10", units="cycles"),
    "length": Variable(long_name="tokens of a sample, L", units="tokens"),
    "degree": Variable(long_name="degree K of the activation z^K"),
    "attention_mass": Variable(long_name="attention on anchors, all of them together"),
    "attention_anchor": Variable(long_name="attention on an anchor token, mean"),
    "attention_noise": Variable(long_name="attention on a noise token, mean"),
    "attention_spread": Variable(long_name="standard deviation of the first position's attention"),
    "norm": Variable(long_name="length of the embedding"),
    "norm_epoch": Variable(long_name="passes over the data done", units="epochs"),
    "modulus": Variable(long_name="modulus M"),
    "gamma": Variable(long_name="initialisation exponent"),
    "learning_rate": Variable(long_name="learning rate of AdamW"),
    "claim": Variable(long_name="claim that is put to the test", units="text"),
    "holding": Variable(long_name="share of the seeds for which the claim holds"),
    "probability": Variable(long_name="probability of the label given the token"),
    "order": Variable(long_name="order of the signature"),
    "share": Variable(long_name="share of the order in the label-driven gradient"),
    "flow_share": Variable(long_name="share of the order in the whole gradient flow"),
    "takeover_epoch": Variable(
        long_name="first epoch at which the order is the largest in the whole flow", units="epochs"
    ),
    "slope": Variable(long_name="slope of log ratio against log d"),
    "exponent": Variable(long_name="slope of log norm of the term against log scale"),
    "combinatorial_factor": Variable(long_name="B_m(K) = (m+1)! S(K-1, m+1)"),
    "width": Variable(long_name="embedding width d"),
    "embedding_scale": Variable(long_name="factor on the embedding"),
    "ratio": Variable(long_name="RMS of the order's term over that of order 0"),
    "error": Variable(long_name="relative error against autograd"),
    "check": Variable(long_name="what is compared", units="text"),
}


def controlled_dataset(
    variables: Mapping[str, tuple[tuple[str, ...], Any]], coordinates: Mapping[str, tuple[str, Any]]
) -> xr.Dataset:
    """Make a Dataset of described variables, as `probes.results.dataset`."""
    return dataset(variables, coordinates, known={**VARIABLES, **CONTROLLED})
