"""``boxloop completion``: the script that makes Tab work."""

from __future__ import annotations

import os

import click

from boxloop.cli import shared

SHELLS = ("bash", "zsh", "fish")


@shared.with_examples(
    'eval "$(boxloop completion bash)"',
    "boxloop completion zsh > ~/.boxloop-completion && source ~/.boxloop-completion",
    "boxloop completion fish > ~/.config/fish/completions/boxloop.fish",
)
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def command(shell: str | None) -> None:
    """Print the script that makes Tab complete commands and names.

    Commands, options, models and bundled data are completed. The shell is the one that you are in if it is
    not named. Put the first line of the examples into ~/.bashrc, or its like, to keep it.
    """
    from click.shell_completion import get_completion_class

    from boxloop.cli.group import main

    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    kind = get_completion_class(name) if name in SHELLS else None
    if kind is None:
        lacking = f"no script for the shell {name!r}" if name else "SHELL is not set"
        raise click.UsageError(f"{lacking}; name one: {', '.join(SHELLS)}")
    click.echo(kind(main, {}, "boxloop", "_BOXLOOP_COMPLETE").source())
