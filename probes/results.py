"""What a probe leaves behind: an xarray DataTree with names and units, saved as Zarr.

One registry says what every variable is; writing one that it does not know is an error.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

FORMAT_VERSION = 1
ROOT_ATTRIBUTE = "staircase"


class ResultFormatError(ValueError):
    """The path holds no probe result that this version can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """Meaning of one variable of a result."""

    long_name: str
    units: str = "1"


_COSINE = "cosine similarity"
VARIABLES: Mapping[str, Variable] = {
    "step": Variable(long_name="optimiser updates done", units="updates"),
    "layer": Variable(long_name="layer, counted from 0", units="index"),
    "token": Variable(long_name="token id", units="id"),
    "token_2": Variable(long_name="token id of the second token of a pair", units="id"),
    "token_text": Variable(long_name="text of the token", units="text"),
    "component": Variable(long_name="principal component, counted from 1", units="index"),
    "neighbor": Variable(long_name="rank of the neighbor, counted from 1", units="rank"),
    "train_step": Variable(long_name="optimiser updates done", units="updates"),
    "bound": Variable(long_name="bound of the interval", units="text"),
    "rho": Variable(long_name="Pearson correlation of the pairwise similarities"),
    "rho_interval": Variable(long_name="95 % interval of rho under resampling of tokens"),
    "p": Variable(long_name="one-sided permutation p of rho (tokens permuted)"),
    "spearman": Variable(long_name="Spearman correlation of the pairwise similarities"),
    "mse": Variable(long_name="mean squared difference of the pairwise similarities"),
    "one_minus_mse": Variable(long_name="1 - mse"),
    "baseline_mse": Variable(long_name="mse of the best constant prediction"),
    "rho_centred": Variable(long_name="rho of cosines after each row lost its own mean"),
    "rho_mean_removed": Variable(long_name="rho of cosines after the mean row was removed"),
    "rho_square_root": Variable(long_name="rho against square roots of the signature"),
    "rho_ppmi": Variable(long_name="rho against positive pointwise mutual information"),
    "rho_partial": Variable(long_name="rho with log occurrences of both tokens held fixed"),
    "cka": Variable(long_name="linear CKA of rows and signature rows, debiased"),
    "null_coverage": Variable(
        long_name="measured coverage of the 95 % interval for random embeddings, whose rho is 0"
    ),
    "half_correlation": Variable(long_name="rho between signatures of even and of odd documents"),
    "reliability": Variable(long_name="split-half reliability of the signature (Spearman-Brown)"),
    "ceiling": Variable(long_name="most that rho can be expected to reach, root of reliability"),
    "rho_gain": Variable(long_name="rho when rows take the gain of the attention norm first"),
    "mean_similarity": Variable(long_name=f"mean {_COSINE} of different tokens"),
    "num_pairs": Variable(long_name="pairs of tokens compared", units="pairs"),
    "num_undefined": Variable(
        long_name="pairs left out, a row of theirs being zero or not finite", units="pairs"
    ),
    "split": Variable(long_name="draw of training and held-out anchors", units="index"),
    "heldout_mse": Variable(long_name="first-order probe, mse on pairs of held-out anchors"),
    "heldout_rho": Variable(long_name="first-order probe, rho on pairs of held-out anchors"),
    "training_mse": Variable(long_name="first-order probe, mse on pairs of training anchors"),
    "sketch_mse": Variable(long_name="held-out mse as the sketch has it; heldout_mse is exact"),
    "shuffled_mse": Variable(long_name="held-out mse when fitted to shuffled anchors"),
    "random_mse": Variable(long_name="held-out mse of a random v"),
    "ones_mse": Variable(long_name="held-out mse of v = 1"),
    "unigram_mse": Variable(long_name="held-out mse of v = share of each context token"),
    "fall": Variable(long_name="rho at its peak less rho at the last step"),
    "fall_interval": Variable(long_name="95 % interval of fall under resampling of tokens"),
    "similarity": Variable(long_name=f"{_COSINE} of the model's rows"),
    "signature_similarity": Variable(long_name=f"{_COSINE} of the signature's rows"),
    "pca": Variable(long_name="principal coordinates of the model's rows", units="row units"),
    "explained_variance": Variable(long_name="share of variance along the component"),
    "signature_pca": Variable(
        long_name="principal coordinates of the signature's rows", units="row units"
    ),
    "signature_explained_variance": Variable(
        long_name="share of the signature's variance along the component"
    ),
    "cluster_order": Variable(
        long_name="place in the token axis, in the order of clustering by signature", units="index"
    ),
    "occurrences": Variable(long_name="occurrences of the token in the corpus", units="tokens"),
    "source": Variable(long_name="what the rows are of: signature or a step", units="text"),
    "score": Variable(long_name="structure of the set: rank correlation, or mean silhouette"),
    "place": Variable(long_name="number, place in the cycle, or category", units="index"),
    "value": Variable(long_name="the number the token reads as", units="1"),
    "nearest": Variable(long_name="token nearest by signature", units="id"),
    "nearest_text": Variable(long_name="text of the token nearest by signature", units="text"),
    "nearest_similarity": Variable(long_name=f"{_COSINE} of the signatures of the two tokens"),
    "loss": Variable(long_name="training loss", units="nats per token"),
    "loss_smoothed": Variable(
        long_name="mean training loss of the steps within 5 % of this one", units="nats per token"
    ),
    "tokens_seen": Variable(long_name="training tokens seen", units="tokens"),
}


def dataset(
    variables: Mapping[str, tuple[tuple[str, ...], Any]],
    coordinates: Mapping[str, tuple[str, Any]],
    *,
    known: Mapping[str, Variable] = VARIABLES,
) -> xr.Dataset:
    """Make a Dataset whose every variable carries its long name and units.

    Raises
    ------
    KeyError
        A variable that ``known`` does not describe.
    """
    described = xr.Dataset(
        {name: (dims, _storable(values)) for name, (dims, values) in variables.items()},
        coords={name: (dim, _storable(values)) for name, (dim, values) in coordinates.items()},
    )
    for name, variable in described.variables.items():
        meaning = known[str(name)]
        variable.attrs.update(long_name=meaning.long_name, units=meaning.units)
    return described


def save(groups: Mapping[str, xr.Dataset], record: Mapping[str, Any], path: Path) -> None:
    """Write the groups as a DataTree to ``path``, which appears whole or not at all.

    ``record`` becomes the root attribute ``staircase``: versions, options, fingerprints.
    """
    root = xr.Dataset(attrs={ROOT_ATTRIBUTE: {"format_version": FORMAT_VERSION, **record}})
    tree = xr.DataTree.from_dict({"/": root, **groups})
    partial = path.with_name(path.name + ".writing")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        tree.to_zarr(partial, mode="w", zarr_format=3, consolidated=False)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def open_results(path: Path | str) -> xr.DataTree:
    """Open a saved result, lazily.

    Raises
    ------
    ResultFormatError
        No result at ``path``, or one of another version.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder; a probes.zarr is needed")
    try:
        tree: xr.DataTree = xr.open_datatree(path, engine="zarr", consolidated=False, chunks=None)
    except (FileNotFoundError, KeyError, ValueError) as error:
        raise ResultFormatError(
            f"{path}: not a probe result ({error}); write one with `staircase probe`"
        ) from error
    record = tree.attrs.get(ROOT_ATTRIBUTE)
    version = record.get("format_version") if isinstance(record, dict) else None
    if version != FORMAT_VERSION:
        raise ResultFormatError(
            f"{path}: format_version {version} found, {FORMAT_VERSION} needed; "
            "write the result again with `staircase probe`"
        )
    return tree


def _storable(values: Any) -> Any:
    """Text as objects: Zarr stores those as UTF-8 of any length."""
    array = np.asarray(values)
    return array.astype(object) if array.dtype.kind == "U" else array
