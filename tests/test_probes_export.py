from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from probes.export import export_tidy, tidy
from probes.probe import probe_series
from probes.results import open_results
from tests.probe_series import write_series


def test_every_number_is_a_row(tmp_path: Path) -> None:
    paths, store = write_series(tmp_path, steps=(4, 64))
    probe_series(paths, signatures=store, out=tmp_path / "p.zarr", tokens="top:8",
                 permutations=9, resamples=9)  # fmt: skip
    results = open_results(tmp_path / "p.zarr")
    table = tidy(results)
    rho = table.query("path == 'direct' and metric == 'rho'")
    np.testing.assert_array_equal(rho["step"], [4, 64])
    np.testing.assert_array_equal(rho["value"], results["direct"]["rho"].values)
    layers = table.query("path == 'ffn' and metric == 'rho_interval' and step == 64")
    assert len(layers) == 4
    assert set(layers["bound"]) == {"low", "high"}
    assert table["units"].notna().all()
    for name in ("t.parquet", "t.csv"):
        export_tidy(results, tmp_path / name)
    again = pd.read_parquet(tmp_path / "t.parquet")
    assert again.fillna(0).equals(table.fillna(0))
    assert len(pd.read_csv(tmp_path / "t.csv")) == len(table)
    with pytest.raises(ValueError, match=r"\.parquet or \.csv"):
        export_tidy(results, tmp_path / "t.xlsx")
