"""A result as one tidy table: a row for each number, readable by anything."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

_COLUMNS = ("path", "metric", "step", "layer", "split", "bound", "value", "units", "long_name")
_INDEX = {"step", "layer", "split", "bound"}


def tidy(results: xr.DataTree) -> pd.DataFrame:
    """Return every metric of every path: path, metric, step, layer, split, bound, value, units.

    Matrices over tokens stay in the result; a column that a metric does not have is empty.
    """
    tables = [table for name, group in results.children.items()
              for table in _tables(str(name), group.to_dataset())]  # fmt: skip
    return pd.concat(tables, ignore_index=True).reindex(columns=list(_COLUMNS))


def export_tidy(results: xr.DataTree, path: Path) -> None:
    """Write the tidy table as ``.parquet`` or ``.csv``, by the name of ``path``.

    Raises
    ------
    ValueError
        Another ending.
    """
    table = tidy(results)
    if path.suffix == ".parquet":
        table.to_parquet(path, index=False)
    elif path.suffix == ".csv":
        table.to_csv(path, index=False)
    else:
        raise ValueError(f"{path}: ends in {path.suffix!r}, .parquet or .csv is needed")


def _tables(path: str, group: xr.Dataset) -> Iterator[pd.DataFrame]:
    for name, variable in group.data_vars.items():
        if not set(variable.dims) <= _INDEX:
            continue
        facts: dict[str, Any] = {
            "path": path,
            "metric": str(name),
            "units": variable.attrs["units"],
            "long_name": variable.attrs["long_name"],
        }
        bare = variable.reset_coords(drop=True)
        if variable.dims:
            yield bare.to_dataframe(name="value").reset_index().assign(**facts)
        else:
            yield pd.DataFrame([{"value": float(variable.values), **facts}])
