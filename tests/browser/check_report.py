"""The report in a real browser: no console errors, the slider moves the matrix, it works offline.

Run by `make browser-test`; needs chromium. The page is loaded with two small scripts added: one
catches errors, one moves the slider and writes what it saw into the document, which the browser
then prints.
"""

import json
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from probes.interactive import scrubber
from probes.probe import probe_series
from probes.results import open_results
from tests.probe_series import write_series
from workflows.report import write_report

CATCH = """<script>window.caught = [];
addEventListener("error", (e) => caught.push(String(e.message)));
addEventListener("unhandledrejection", (e) => caught.push(String(e.reason)));
const complain = console.error;
console.error = (...a) => { caught.push(a.join(" ")); complain(...a); };
</script>"""
MOVE = """<script>addEventListener("load", () => {
  const step = document.getElementById("scrub-step"), seen = [];
  const look = () => {
    const heat = document.getElementById("scrub-matrix").data[0];
    const dots = document.getElementById("scrub-components").data[0];
    seen.push({now: document.getElementById("scrub-now").textContent, first: heat.z[0][1],
      diagonal: heat.z[1][1], text: heat.text[0][1], x: dots.x[0], name: dots.text[0]});
  };
  const move = (place) => { step.value = place; step.dispatchEvent(new Event("input")); };
  look(); move(0);
  setTimeout(() => { look(); move(1); setTimeout(() => { look();
    const out = document.createElement("pre"); out.id = "seen";
    Plotly.Fx.hover("scrub-components", [{curveNumber: 0, pointNumber: 0}]);
    const hover = document.querySelector(".hovertext")?.textContent;
    out.textContent = JSON.stringify({seen, caught, hover, requests:
      performance.getEntriesByType("resource").filter((r) => !r.name.startsWith("data:"))
        .map((r) => r.name)});
    document.body.append(out); }, 500); }, 500);
});</script>"""


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "chromium is not installed: apt-get install chromium fonts-noto-cjk"
    return found


def browse(page: Path, *arguments: str) -> str:
    command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               "--virtual-time-budget=20000", *arguments, page.absolute().as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, xr.DataTree]:
    folder = tmp_path_factory.mktemp("browser")
    paths, store = write_series(folder)
    out = folder / "probes.zarr"
    probe_series(paths, signatures=store, out=out, tokens="top:12", permutations=9, resamples=9)
    write_report({"one": out, "two": out}, folder / "report")
    return folder / "report", open_results(out)


def test_slider_moves_and_nothing_complains(report: tuple[Path, xr.DataTree]) -> None:
    folder, results = report
    text = (folder / "index.html").read_text()
    probed = folder / "probed.html"
    probed.write_text(text.replace("<head>", "<head>" + CATCH).replace("</body>", MOVE + "</body>"))
    dom = browse(probed, "--dump-dom")
    found = json.loads(unescape(dom).split('<pre id="seen">', 1)[1].split("</pre>", 1)[0])
    assert found["caught"] == []
    assert found["requests"] == []
    direct = results["direct"].to_dataset().load()
    order = direct["cluster_order"].values
    for seen, place in zip(found["seen"], (3, 0, 1), strict=True):
        expected = direct["similarity"].values[place, order[0], order[1]]
        assert seen["first"] == pytest.approx(float(expected), abs=0.5 / 127 + 1e-6)
        assert seen["diagonal"] == 1
        assert seen["x"] == pytest.approx(float(direct["pca"].values[place, order[0], 0]))
        assert seen["now"].startswith(f"{int(direct['step'].values[place])}, rho")


def test_chinese_tokens_and_a_screenshot(report: tuple[Path, xr.DataTree]) -> None:
    folder, results = report
    direct = results["direct"].to_dataset().load()
    names = [f" 中<b>{place}" for place in range(12)]
    direct["token_text"] = ("token", np.array(names, dtype=object))
    html = scrubber({"中文": xr.DataTree.from_dict({"direct": direct})})
    page = folder / "chinese.html"
    page.write_text(
        f'<html><head><meta charset="utf-8">{CATCH}</head><body>{html}{MOVE}</body></html>'
    )
    found = json.loads(
        unescape(browse(page, "--dump-dom")).split('<pre id="seen">', 1)[1].split("</pre>", 1)[0]
    )
    assert found["caught"] == []
    assert found["hover"].startswith("␣中<b>")
    assert found["seen"][0]["text"].startswith("␣中&lt;b&gt;")
    picture = folder / "page.png"
    browse(folder / "index.html", "--window-size=1200,3600", f"--screenshot={picture}")
    assert picture.stat().st_size > 20_000
    print(picture)
