"""``staircase signatures semantics``: numbers, weekdays and categories in a corpus."""

from pathlib import Path

import click

_CHECKPOINTS = "--checkpoints"


class _SeveralCheckpoints(click.Command):
    """Lets several values follow one ``--checkpoints``, as the shell's wildcards give them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write the flag before each value, then parse as ever."""
        options = [one for one in self.params if isinstance(one, click.Option) and not one.is_flag]
        return super().parse_args(ctx, _flag_each(args, {n for one in options for n in one.opts}))


def _flag_each(args: list[str], with_value: set[str]) -> list[str]:
    """``--checkpoints A B`` as ``--checkpoints A --checkpoints B``, up to the next option.

    Only where STORE stands before it, since else the last value would be STORE.
    """
    spread: list[str] = []
    option, is_stored = "", False
    for word in args:
        if word.startswith("-"):
            option = word
        elif option in with_value and spread[-1] == option:
            pass  # the option's own value
        elif option == _CHECKPOINTS and is_stored:
            spread.append(_CHECKPOINTS)
        else:
            is_stored = True
        spread.append(word)
    return spread


@click.command("semantics", cls=_SeveralCheckpoints)
@click.argument("store", type=click.Path(path_type=Path), metavar="STORE")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    required=True,
    metavar="tokenizer.json",
    help="Tokenizer of the corpus; its vocabulary is searched for the words.",
)
@click.option(
    "--checkpoints",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="CHECKPOINT...",
    help="Checkpoints whose embeddings are scored too.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier result.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def semantics_command(
    store: Path,
    tokenizer: Path,
    checkpoints: tuple[Path, ...],
    out: Path,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Ask whether next-token signatures order numbers, ring weekdays and cluster categories.

    Every score comes with a permutation p; principal components are drawn with their explained
    variance.
    """
    from workflows.semantics import write_semantics
    from workflows.terminal import print_json, say, terminal_progress

    result = write_semantics(
        store,
        tokenizer=tokenizer,
        out=out,
        checkpoints=checkpoints,
        overwrite=overwrite,
        progress=terminal_progress(),
    )
    if as_json:
        print_json(result)
        return
    for found in result["sets"]:
        for row in found["scores"]:
            say(
                f"{found['set']} ({found['kind']}, {found['words']} words), {row['of']}: "
                f"{row['score']:.2f}, p = {row['p']:.3f}"
            )
    say(f"{out}: written")
