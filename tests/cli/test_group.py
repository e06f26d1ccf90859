"""The group of commands."""

from __future__ import annotations

from importlib import import_module

import pytest
from click.testing import CliRunner

from boxloop.cli import COMMANDS, main
from boxloop.version import __version__


def test_help_lists_every_command() -> None:
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0
    assert all(name in shown.output for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_what_the_list_says(name: str) -> None:
    command = import_module(f"boxloop.cli.{name.replace('-', '_')}").command
    assert command.get_short_help_str(limit=200) == COMMANDS[name]
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


def test_version() -> None:
    assert __version__ in CliRunner().invoke(main, ["--version"]).output


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["--nonsense"], ["doctor", "--nonsense"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2
