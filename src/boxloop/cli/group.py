"""The group of commands. Its help is printed without importing any of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from boxloop.cli.errors import reported
from boxloop.version import __version__

COMMANDS = {
    "demo": "Show what the library does, on bundled data.",
    "fit": "Fit a model to a table and write it to a file.",
    "score": "Log-density of each row, with its component or its factors.",
    "criticise": "Where a model fails: moment gaps with errors and p-values, by name.",
    "compare": "Models side by side on the same held-out rows.",
    "select": "Choose a model by cross-validation.",
    "sample": "Draw rows from a model.",
    "show": "Print what a model file holds.",
    "doctor": "Print versions, devices, threads and memory.",
    "replicate": "Run an experiment of the documents: their numbers beside ours.",
}
"""Each command and its line in the help. The command ``name`` is ``command`` in ``boxloop.cli.name``."""


class LazyGroup(click.Group):
    """A group whose commands are imported when called, and whose errors are reported in one place."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the help."""
        return list(COMMANDS)

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
        with reported(debug=ctx.params["debug"]):
            return super().invoke(ctx)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="boxloop")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Fit latent-variable models, and find out whether the fit is any good.

    Exit codes: 0 done, 1 error in data or model, 2 wrong usage, 130 Ctrl-C, 143 terminated.
    """
