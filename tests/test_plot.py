import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from probes.assemble import training_group
from probes.figures import drawable, picture_bytes, save_pictures
from probes.plot import (
    rho_over_steps,
    similarity_panels,
    telling_steps,
)
from probes.probe import probe_series
from probes.results import open_results
from tests.probe_series import write_series


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> xr.DataTree:
    folder = tmp_path_factory.mktemp("plots")
    paths, store = write_series(folder)
    log = folder / "train.jsonl"
    log.write_text("".join(f'{{"step": {s}, "loss": {5 - s / 64}}}\n' for s in range(1, 65)))
    out = folder / "p.zarr"
    probe_series(paths, signatures=store, out=out, tokens="top:12", permutations=9, resamples=20)
    return open_results(out)


def test_curves_are_those_of_the_result(results: xr.DataTree) -> None:
    figure = rho_over_steps({"one": results, "two": results})
    axes, losses = figure.axes
    drawn = [line.get_ydata() for line in axes.lines if len(line.get_xdata()) == 4]
    np.testing.assert_array_equal(drawn[0], results["direct"]["rho"].values)
    assert "next-token" in axes.get_title(loc="left")
    assert "updates" in axes.get_xlabel()
    assert "nats" in losses.get_ylabel()
    assert [text.get_text() for text in figure.legends[0].texts][:2] == ["one", "two"]


def test_the_loss_is_smoothed_over_steps_near_each_other() -> None:
    """Within 5 %: at step 40 the mean of 38 to 42; one loss that is not finite is left out."""
    losses = np.random.default_rng(0).normal(5, 1, size=200)
    losses[40] = np.nan  # step 41
    log = [{"step": step, "loss": losses[step - 1]} for step in reversed(range(1, 201))]
    group = training_group(log)
    np.testing.assert_array_equal(group["train_step"], np.arange(1, 201))
    smoothed = group["loss_smoothed"].values
    np.testing.assert_allclose(smoothed[:19], losses[:19])
    assert smoothed[39] == pytest.approx(losses[[37, 38, 39, 41]].mean())
    assert smoothed[99] == pytest.approx(losses[94:105].mean())
    assert np.isnan(training_group([{"step": 1, "loss": np.nan}])["loss_smoothed"].values).all()


def test_matrices_share_one_order(results: xr.DataTree) -> None:
    figure = similarity_panels(results, "one")
    order = results["direct"]["cluster_order"].values
    images = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    expected = results["direct"]["signature_similarity"].values[np.ix_(order, order)]
    np.testing.assert_array_equal(images[0], expected)
    assert len(images) == 3


@pytest.mark.parametrize(
    ("rho", "steps"),
    [([0, 0.5, 0.4], (1, 2)), ([0, 0.3, 0.5], (1, 2)), ([np.nan, np.nan], (0, 1)), ([0.1], (0, 0))],
)
def test_early_is_the_peak_or_the_way_to_it(rho: list[float], steps: tuple[int, int]) -> None:
    assert telling_steps(xr.Dataset({"rho": ("step", rho)})) == steps


def test_pictures_are_whole_and_repeat(results: xr.DataTree, tmp_path: Path) -> None:
    images = save_pictures(rho_over_steps({"one": results}), tmp_path, "rho")
    assert ET.fromstring(images["svg"]).tag.endswith("svg")
    assert images["png"].startswith(b"\x89PNG")
    assert (tmp_path / "rho.svg").read_bytes() == images["svg"]
    assert picture_bytes(rho_over_steps({"one": results}), "svg") == images["svg"]


def test_what_the_font_lacks_is_written_as_its_code_point() -> None:
    assert drawable("a␣") == "a␣"
    assert drawable("\U000104a0") == "\\u104a0"
