"""The TOML loader: every mistake is named with file, table and key."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from corpus.config import ConfigError, load


@dataclass(frozen=True)
class Inner:
    rate: float
    name: str = "x"


@dataclass(frozen=True)
class Outer:
    inner: Inner
    paths: tuple[Path, ...] = ()
    limit: int | None = None
    source: str | tuple[str, ...] = "one"
    flags: tuple[bool, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"limit={self.limit}, must not be negative")


def _load(tmp_path: Path, text: str) -> Outer:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load(path, Outer)


def test_converts_what_toml_cannot_say(tmp_path):
    outer = _load(
        tmp_path,
        'paths = ["a", "b"]\nlimit = 3\nsource = ["p", "q"]\nflags = [true]\n[inner]\nrate = 1\n',
    )
    assert outer == Outer(
        inner=Inner(rate=1.0),
        paths=(Path("a"), Path("b")),
        limit=3,
        source=("p", "q"),
        flags=(True,),
    )
    assert type(outer.inner.rate) is float


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[inner]\nrate = 1\nspeed = 2\n", r"\[inner\]: unknown key\(s\) \['speed'\]; known"),
        ("limit = 1\n", "inner"),
        ("[inner]\nrate = 'fast'\n", r"\[rate\]: found 'fast', float is needed"),
        ("[inner]\nrate = true\n", "found True, float is needed"),
        ("limit = true\n[inner]\nrate = 1\n", "found True, int is needed"),
        ("limit = -1\n[inner]\nrate = 1\n", "must not be negative"),
        ("inner = 3\n", "a table of keys is needed"),
        ("paths = [1]\n[inner]\nrate = 1\n", "found 1"),
        ("inner = \n", "not valid TOML"),
    ],
)
def test_names_the_mistake(tmp_path, text, expected):
    with pytest.raises(ConfigError, match=expected) as raised:
        _load(tmp_path, text)
    assert "run.toml" in str(raised.value)
