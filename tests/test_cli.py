"""The command line as a user meets it: help, errors, exit codes, JSON."""

import errno
import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from workflows import cli
from workflows.terminal import print_json

HEAVY = ("numpy", "torch", "numba", "dask", "zarr", "xarray", "matplotlib", "megatron", "datasets")


def _commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _commands(child, (*path, name))


COMMANDS = dict(_commands(cli.staircase))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help(path, capsys):
    assert cli.run([*path, "--help"]) == 0
    assert "Usage: staircase" in capsys.readouterr().out


def test_help_imports_nothing_heavy():
    """What makes ``--help`` slow is an import; so the test is of imports, not of seconds."""
    script = (
        "import sys\nfrom workflows.cli import run\n"
        f"for path in {[list(path) for path in COMMANDS]!r}: assert run([*path, '--help']) == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_every_leaf_does_something():
    for path, command in COMMANDS.items():
        if not isinstance(command, click.Group):
            assert command.callback is not None, path
            assert command.help, path


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["demo", "--nonsense"], ["demo", "--out"], ["corpus", "nonsense"]]
)
def test_bad_usage_is_one_line_and_exit_2(arguments, capsys):
    assert cli.run(arguments) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.count("\n") == 1
    assert "--help" in streams.err


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (ValueError("a.bin: found 3,\nneeded 4; remedy"), 2, "a.bin: found 3, needed 4; remedy"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x.idx"), 2, "x.idx: No such file"),
        (OSError(errno.ENOSPC, "No space left on device", "a.zarr"), 1, "no space left"),
        (RuntimeError("worker 3 died"), 1, "worker 3 died"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_become_one_line(error, code, expected, capsys, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(cli.staircase, "main", fail)
    assert cli.run([]) == code
    line = capsys.readouterr().err
    assert expected in line
    assert line.count("\n") == 1


def test_a_defect_keeps_its_traceback(monkeypatch):
    """Only errors that a user or a machine can cause are shortened."""

    def fail(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr(cli.staircase, "main", fail)
    with pytest.raises(AssertionError):
        cli.run([])


def test_json_has_null_for_undefined(capsys):
    print_json({"rho": float("nan"), "curve": [(0, float("inf")), (1, 0.5)]})
    assert json.loads(capsys.readouterr().out) == {"rho": None, "curve": [[0, None], [1, 0.5]]}


def test_version(capsys):
    assert cli.run(["--version"]) == 0
    assert "staircase" in capsys.readouterr().out
