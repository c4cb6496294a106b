"""The interactive figure of a report: a slider over steps, for similarity matrices and components.

Similarities travel as bytes, one for each pair of tokens, in the clustered order of the still
figures; the page decodes them. Reads the tree, computes nothing.
"""

import base64
import json
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
import xarray as xr
from plotly.offline import get_plotlyjs

from probes.tokens import visible

_UNDEFINED = -128
_SCALE = 127

_CONTROLS = """
<div id="scrub" hidden>
<p><label>run <select id="scrub-run"></select></label>
<label>step <input id="scrub-step" type="range" min="0" value="0" step="1"></label>
<output id="scrub-now" for="scrub-step"></output></p>
<div class="pair"><div id="scrub-matrix"></div><div id="scrub-components"></div></div>
</div>
"""

_SCRIPT = """
"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const data = JSON.parse(at("scrub-data").textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  for (const run of data.runs) {
    run.pairs = new Int8Array(bytes(run.similarity).buffer);
    run.points = new Float32Array(bytes(run.components).buffer);
    run.names = run.tokens.map((a) => run.tokens.map((b) => a + " \\u00d7 " + b));
    at("scrub-run").add(new Option(run.label));
  }
  const matrix = (run, step) => {
    const n = run.tokens.length, z = run.tokens.map(() => new Array(n).fill(1));
    let k = step * n * (n - 1) / 2;
    for (let i = 0; i < n; i++)
      for (let j = i + 1; j < n; j++, k++)
        z[i][j] = z[j][i] = run.pairs[k] === -128 ? null : run.pairs[k] / 127;
    return z;
  };
  const points = (run, step, axis) =>
    run.tokens.map((_, i) => run.points[(step * run.tokens.length + i) * 2 + axis]);
  const draw = () => {
    const run = data.runs[at("scrub-run").selectedIndex], slider = at("scrub-step");
    slider.max = run.steps.length - 1;
    const step = Math.min(Number(slider.value), run.steps.length - 1);
    const rho = run.rho[step];
    at("scrub-now").textContent = run.steps[step].toLocaleString("en") + ", rho " +
      (rho === null ? "undefined" : rho.toFixed(2));
    const share = run.explained[step].map((e) => e === null ? "?" : Math.round(100 * e));
    const [heat, dots] = [data.matrix, data.components].map((f) => JSON.parse(JSON.stringify(f)));
    Object.assign(heat.data[0], {z: matrix(run, step), text: run.names});
    Object.assign(dots.data[0], {x: points(run, step, 0), y: points(run, step, 1),
      text: run.tokens});
    dots.layout.xaxis.title.text = "component 1 (" + share[0] + " % of variance)";
    dots.layout.yaxis.title.text = "component 2 (" + share[1] + " % of variance)";
    const options = {displayModeBar: false, responsive: true};
    Plotly.react("scrub-matrix", heat.data, heat.layout, options);
    Plotly.react("scrub-components", dots.data, dots.layout, options);
  };
  at("scrub").hidden = false;
  at("scrub-step").max = data.runs[0].steps.length - 1;
  at("scrub-step").value = data.runs[0].steps.length - 1;
  at("scrub-step").addEventListener("input", draw);
  at("scrub-run").addEventListener("change", draw);
  draw();
})();
"""


def scrubber(runs: Mapping[str, xr.DataTree]) -> str:
    """Return HTML of the slider over the direct path of every run; it needs no network.

    Without JavaScript nothing of it shows.
    """
    data = {
        "runs": [_run(label, results) for label, results in runs.items()],
        "matrix": json.loads(_matrix_figure().to_json()),
        "components": json.loads(_components_figure().to_json()),
    }
    text = json.dumps(data, allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")
    return (
        f'{_CONTROLS}<script type="application/json" id="scrub-data">{text}</script>\n'
        f"<script>{get_plotlyjs()}</script>\n<script>{_SCRIPT}</script>"
    )


def similarity_bytes(similarity: npt.NDArray[Any], order: npt.NDArray[np.int64]) -> bytes:
    """Pairs a < b of each step (T, n, n) in ``order``, as signed bytes; -128 is undefined."""
    ordered = similarity[:, order][:, :, order]
    first, second = np.triu_indices(len(order), k=1)
    pairs = ordered[:, first, second]
    scaled = np.rint(np.clip(np.nan_to_num(pairs), -1, 1) * _SCALE)
    return np.where(np.isnan(pairs), _UNDEFINED, scaled).astype(np.int8).tobytes()


def _run(label: str, results: xr.DataTree) -> dict[str, Any]:
    group: xr.Dataset = results.children["direct"].to_dataset().load()
    order = group["cluster_order"].values
    coordinates = np.nan_to_num(group["pca"].values[:, order, :2]).astype("<f4")
    texts = [escape(visible(str(text))) for text in group["token_text"].values[order]]
    return {
        "label": label,
        "steps": group["step"].values.tolist(),
        "rho": _plain(group["rho"].values),
        "explained": [_plain(row[:2]) for row in group["explained_variance"].values],
        "tokens": texts,
        "similarity": _text(similarity_bytes(group["similarity"].values, order)),
        "components": _text(coordinates.tobytes()),
    }


def _plain(values: npt.NDArray[Any]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _matrix_figure() -> Any:
    heat = go.Heatmap(
        zmin=-1,
        zmax=1,
        colorscale="RdBu_r",
        hovertemplate="%{text}<br>cosine %{z:.2f}<extra></extra>",
        colorbar={"title": {"text": "cosine"}, "thickness": 12},
    )
    figure = go.Figure(heat)
    figure.update_layout(**_layout("Embedding, tokens clustered by signature"))
    figure.update_yaxes(autorange="reversed", scaleanchor="x", showticklabels=False, ticks="")
    figure.update_xaxes(showticklabels=False, constrain="domain", ticks="")
    return figure


def _components_figure() -> Any:
    dots = go.Scatter(
        mode="markers",
        marker={"size": 7, "color": "#0072B2", "opacity": 0.75},
        hovertemplate="%{text}<extra></extra>",
    )
    figure = go.Figure(dots)
    figure.update_layout(**_layout("Embedding, principal components"))
    figure.update_xaxes(title={"text": ""}, zerolinecolor="#ddd")
    figure.update_yaxes(title={"text": ""}, zerolinecolor="#ddd")
    return figure


def _layout(title: str) -> dict[str, Any]:
    """Return what both figures share; the default template would be a large part of the page."""
    return {
        "template": None,
        "title": {"text": f"<b>{title}</b>", "x": 0.02, "xanchor": "left", "font": {"size": 14}},
        "height": 460,
        "margin": {"l": 60, "r": 20, "t": 50, "b": 50},
        "font": {"size": 13},
    }
