"""The console script ``staircase``: finds the command, turns errors into one line and a code."""

import errno
import os
import sys
from importlib import import_module

import click

_COMMANDS = ("demo", "corpus", "count", "signatures", "train", "probe", "report", "controlled")
"""Each is ``workflows/commands/NAME.py`` with a click command of the same name."""

_DISK_FAILURES = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENOMEM}
USER_ERROR, FAILED_RUN, INTERRUPTED = 2, 1, 130


class _CommandsByName(click.Group):
    """Imports a command when it is named, so that one command never pays for another."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"workflows.commands.{cmd_name}")
        command = getattr(module, f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_CommandsByName, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="context-staircase", prog_name="staircase")
def staircase() -> None:
    """Measure which statistics of the data a model's token embeddings follow, and when.

    Start with `staircase demo`. A corpus is counted into signatures, a decoder is trained on
    the same files, and its checkpoints are compared with the signatures.
    """


def main() -> None:
    """Run the command line; exit 0, 2 (the user's error), 1 (a failed run) or 130 (interrupted)."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run ``arguments`` and return the exit code; errors become one line on stderr.

    Set STAIRCASE_TRACEBACK=1 to see where an error was raised.
    """
    try:
        result = staircase.main(arguments, prog_name="staircase", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        return _complain("interrupted; nothing half-written was left in place", INTERRUPTED)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "staircase"
        return _complain(f"{where}: {error.format_message()} See `{where} --help`.", USER_ERROR)
    except click.ClickException as error:
        return _complain(error.format_message(), USER_ERROR)
    except ValueError as error:
        return _complain(str(error), USER_ERROR)
    except OSError as error:
        return _complain(_explain(error), _code_of(error))
    except RuntimeError as error:
        return _complain(str(error), FAILED_RUN)
    return result if isinstance(result, int) else 0


def _code_of(error: OSError) -> int:
    """Tell a wrong path from a failing disk; our own errors of paths carry no errno."""
    if isinstance(error, FileNotFoundError | FileExistsError):
        return USER_ERROR
    return FAILED_RUN if error.errno in _DISK_FAILURES or error.errno is None else USER_ERROR


def _explain(error: OSError) -> str:
    """Name the file and, for a full disk, the remedy."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}no space left on the disk; free some or choose another --out, then rerun"
    if error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _complain(message: str, code: int) -> int:
    if os.environ.get("STAIRCASE_TRACEBACK"):
        import traceback

        traceback.print_exc()
    line = " ".join(message.split())
    sys.stderr.write(f"staircase: {line}\n")
    return code
