import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from probes.interactive import scrubber, similarity_bytes
from probes.probe import probe_series
from probes.results import open_results
from tests.probe_series import write_series
from workflows.cli import run
from workflows.course import Course
from workflows.report import labels_of, write_report


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    paths, store = write_series(folder)
    out = folder / "probes.zarr"
    probe_series(paths, signatures=store, out=out, tokens="top:12", permutations=49, resamples=50)
    return out


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_no_network(probed: Path, tmp_path: Path) -> None:
    written = write_report({"<b>one</b>": probed}, tmp_path / "report")
    text = (tmp_path / "report" / "index.html").read_text()
    page = _Page(text)
    assert page.open == []
    for link in page.links:
        assert link.startswith("data:") or (tmp_path / "report" / link).is_file()
    outside = re.sub(r"<script.*?</script>|data:[^\"]*", "", text, flags=re.DOTALL)
    assert "http" not in outside
    assert "<script src" not in text
    assert "<b>one</b>" not in text
    assert written["runs"][0]["sentence"] in text
    for name in ("rho_direct", "rho_unembedding", "similarity_0"):
        assert (tmp_path / "report" / "figures" / f"{name}.svg").is_file()


def test_similarities_as_bytes_come_back_within_half_a_step() -> None:
    generator = np.random.default_rng(0)
    stack = generator.uniform(-1, 1, size=(2, 5, 5))
    stack[1, 3, :] = stack[1, :, 3] = np.nan
    order = np.array([4, 2, 0, 1, 3])
    data = np.frombuffer(similarity_bytes(stack, order), np.int8).reshape(2, 10)
    first, second = np.triu_indices(5, k=1)
    expected = stack[:, order][:, :, order][:, first, second]
    assert ((data == -128) == np.isnan(expected)).all()
    known = ~np.isnan(expected)
    assert np.abs(data / 127 - expected)[known].max() <= 0.5 / 127 + 1e-12


def test_a_hostile_token_does_not_leave_its_script(probed: Path) -> None:
    tree = open_results(probed)
    direct = tree["direct"].to_dataset().load()
    direct["token_text"] = ("token", np.array(["</script><b>"] * 12, dtype=object))
    html = scrubber({"one": xr.DataTree.from_dict({"direct": direct})})
    data = html.split('id="scrub-data">', 1)[1].split("</script>", 1)[0]
    assert json.loads(data)["runs"][0]["tokens"][0] == "&lt;/script&gt;&lt;b&gt;"


def test_an_existing_folder_is_safe(probed: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="--overwrite"):
        write_report({"one": probed}, tmp_path / "mine")
    with pytest.raises(FileExistsError, match="left alone"):
        write_report({"one": probed}, tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_command(probed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report"
    assert run(["report", str(probed), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(out / "index.html")
    assert run(["report", str(probed), "--out", str(out)]) == 2
    assert run(["report", str(tmp_path / "none"), "--out", str(out)]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_labels_tell_results_apart() -> None:
    a, b = Path("/x/one/probes.zarr"), Path("/x/two/probes.zarr")
    assert labels_of([a, b]) == {"one": a, "two": b}
    assert labels_of([a]) == {"probes": a}
    with pytest.raises(ValueError, match="rename one"):
        labels_of([a, a])


def course(rho: list[float], *, p: float = 0.001, low: float = 0.01, high: float = 0.1) -> Course:
    peak = max(range(len(rho)), key=lambda place: rho[place])
    return Course(
        rho_next=list(enumerate(rho)),
        peak_step=peak,
        peak_rho=rho[peak],
        peak_p=p,
        final_rho=rho[-1],
        fall=rho[peak] - rho[-1],
        fall_low=low,
        fall_high=high,
    )


@pytest.mark.parametrize(
    ("given", "rises", "falls", "words"),
    [
        (course([0.0, 0.5, 0.4]), True, True, "falls by 0.100"),
        (course([0.0, 0.5, 0.49], low=-0.01), True, False, "a fall is not shown"),
        (course([0.0, 0.3, 0.5], low=0.0), True, False, "no fall was measured"),
        (course([0.0, 0.02, 0.01], p=0.4), False, False, "does not rise above chance"),
        (course([0.5, 0.4, 0.3]), False, False, "does not rise"),
    ],
)
def test_the_sentence_says_what_was_measured(
    given: Course, rises: bool, falls: bool, words: str
) -> None:
    assert (given.rises, given.falls) == (rises, falls)
    assert words in given.sentence()
