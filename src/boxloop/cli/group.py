"""The group of commands. Its help is printed without importing any of them."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from boxloop.cli.errors import EXIT_CODES, report_errors
from boxloop.version import __version__

COMMANDS = {
    "report": "From a table to a page: models tried, one chosen, and where it fails.",
    "fit": "Fit a model to a table and write it to a file.",
    "score": "Log-density of each row, with its component, factors or codes.",
    "criticise": "Test where a model fails: moments of the data minus those of the model, with p-values.",
    "compare": "Models side by side on the same held-out rows.",
    "select": "Choose a model by cross-validation.",
    "outliers": "Rows of low density under a model, and the columns that explain them.",
    "posterior": "Draw parameters from their posterior.",
    "relate": "What one set of columns predicts of another, with errors.",
    "network": "Predict a column with a neural network and error bars, and audit the error bars.",
    "sample": "Draw rows from a model.",
    "show": "Print what a model file holds.",
    "datasets": "List bundled data, which every command takes by name.",
    "doctor": "Print versions, devices, threads and memory.",
    "completion": "Print the script that makes Tab complete commands and names.",
}
"""Each command and its line in the help. The command ``name`` is ``command`` in ``boxloop.cli.name``."""


class LazyGroup(click.Group):
    """A group whose commands are imported when called, and whose errors are reported in one place."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the help."""
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one may have been meant."""
        near = get_close_matches(args[0], COMMANDS, n=2)
        if args[0] not in COMMANDS and near:
            ctx.fail(f"No such command {args[0]!r}; did you mean {' or '.join(near)}?")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the file of one command."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"boxloop.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        with report_errors(debug=ctx.params["debug"]):
            return super().invoke(ctx)


def _epilog() -> str:
    """Exit codes and where to begin, below the list of commands."""
    codes = "\n".join(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())
    first = "  boxloop datasets\n  boxloop fit wine --model gaussian-mixture -k 3 -o model.boxloop"
    return f"\b\nExit codes:\n{codes}\n\n\b\nExamples:\n{first}"


@click.group(cls=LazyGroup, epilog=_epilog(), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="boxloop")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Fit latent-variable models, and find out whether the fit is any good."""
