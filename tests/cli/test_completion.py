"""What Tab offers, and how long it takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from boxloop.cli import MODELS, SHELLS, load_catalogue, main
from boxloop.data import CATALOGUE
from cli.calls import call, done


def offered(*words: str) -> list[str]:
    """What is offered for the last word."""
    complete = BashComplete(main, {}, "boxloop", "_BOXLOOP_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


def test_commands_and_options() -> None:
    assert offered("cr") == ["criticise"]
    assert "--columns" in offered("fit", "--co")


def test_bundled_names_and_tables_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("week.csv", "notes.txt", "wide.parquet", ".hidden.csv"):
        Path(name).touch()
    Path("old").mkdir()
    assert offered("fit", "") == [*load_catalogue(), "week.csv", "wide.parquet", "old/"]
    assert offered("score", "m.boxloop", "w") == ["wine", "week.csv", "wide.parquet"]
    assert offered("criticise", "m", "iris", "--train", "ir") == ["iris"]
    kinds = BashComplete(main, {}, "boxloop", "_").get_completions(["fit"], "elsewhere/r")
    assert [item.type for item in kinds] == ["file"]


def test_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gas.boxloop").touch()
    assert offered("fit", "iris", "--model", "") == list(MODELS)
    assert offered("outliers", "iris", "--model", "ga") == ["gaussian-mixture", "gas.boxloop"]


def test_the_catalogue_is_that_of_the_library() -> None:
    assert load_catalogue() == CATALOGUE


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = done("completion", shell).stdout
    assert "_BOXLOOP_COMPLETE" in script
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    assert done("completion").stdout == script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_an_unknown_shell_says_which_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/dash")
    result = call("completion")
    assert result.exit_code == 2
    assert "'dash'; name one: bash, zsh, fish" in result.stderr


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_shell_in_the_environment_one_must_be_named(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("SHELL", raising=False)
    else:
        monkeypatch.setenv("SHELL", value)
    result = call("completion")
    assert result.exit_code == 2
    assert "SHELL is not set; name one: bash, zsh, fish" in result.stderr
    assert "_BOXLOOP_COMPLETE" in done("completion", "bash").stdout


def test_tab_loads_nothing_heavy() -> None:
    words = {"_BOXLOOP_COMPLETE": "bash_complete", "COMP_WORDS": "boxloop fit wi", "COMP_CWORD": "2"}
    code = (
        "import sys\nfrom boxloop.cli import main\n"
        "try:\n    main(prog_name='boxloop')\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'numpy', 'sklearn', 'rich'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **words}, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "plain,wine\n[]\n"
