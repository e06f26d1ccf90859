"""What every command promises: help with examples, JSON, one line for an error, the right exit code, no waiting."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import Result

from boxloop import GaussianMixture
from boxloop.cli import COMMANDS, main
from boxloop.data import open_table
from cli.calls import call, done

WALKED = list(COMMANDS)
RUN = [name for name in WALKED if name != "report"]
"""Commands whose work is quick enough to be done here; the report has tests of its own."""
SPEAKS_JSON = [name for name in RUN if name != "completion"]
GOOD: dict[str, list[str]] = {
    "report": ["iris", "-o", "page.html"],
    "fit": ["iris", "--model", "gaussian-mixture", "-o", "new.boxloop"],
    "score": ["m.boxloop", "iris"],
    "criticise": ["m.boxloop", "iris", "--train", "iris", "--test", "first", "--draws", "9"],
    "compare": ["m.boxloop", "iris"],
    "select": ["iris", "-k", "1", "--folds", "2"],
    "outliers": ["iris", "--top", "2"],
    "posterior": ["iris", "--model", "gaussian-mixture", "-k", "2", "--draws", "20", "--warmup", "10"],
    "relate": ["iris", "--y", "petal width (cm)", "--features", "linear", "--permutations", "99"],
    "network": [
        "iris",
        "--target",
        "petal width (cm)",
        "--hidden",
        "4",
        "--epochs",
        "4",
        "--collect",
        "4",
        "--chains",
        "0",
    ],
    "sample": ["m.boxloop", "-n", "2"],
    "show": ["m.boxloop"],
    "datasets": [],
    "doctor": [],
    "completion": ["bash"],
}
"""A call of each command that succeeds, with the data or model in its first places."""
KEYS = {
    "fit": "model estimator data log_likelihood standard_error n_parameters aic bic iterations converged interrupted "
    "lower_bound events seconds components",
    "score": "model data rows log_likelihood standard_error least_likely output",
    "criticise": "model data rows parameter_error p_value tests misfits rate output figure",
    "compare": "data rows best models output figure",
    "select": "data chosen candidates output figure",
    "outliers": "data train model level contamination rows flagged outliers threshold output",
    "posterior": "data model rows columns components covariance chains draws warmup seed interrupted converged "
    "identification summary concerns advice seconds output figure",
    "relate": "data other rate permutations x y iterations converged ridge events rows seed variables total "
    "total_error columns labels verdict overfitted concerns diagnosis seconds output figure",
    "network": "data target columns left_out kind kind_reason rows seed predictors concerns level assumptions "
    "worst_rows settings events seconds output page figure",
    "sample": "model rows seed columns output values",
    "show": "model estimator options columns iterations converged interrupted lower_bound events components",
    "datasets": "datasets",
    "doctor": "versions compute machine",
}
COMMON = {
    "--output": ("-o", "--output"),
    "--seed": ("--seed",),
    "--quiet": ("-q", "--quiet"),
    "--progress": ("--progress",),
    "--columns": ("--columns",),
    "--drop": ("--drop",),
    "--device": ("--device",),
    "--dtype": ("--dtype",),
    "--threads": ("--threads",),
    "--workers": ("--workers",),
    "--cluster": ("--cluster",),
    "--json": ("--json",),
    "--figure": ("--figure",),
}
"""Options that several commands have, as each must spell them."""

every_command = pytest.mark.parametrize("name", WALKED)
every_json = pytest.mark.parametrize("name", SPEAKS_JSON)
every_data = pytest.mark.parametrize("name", [n for n in WALKED if "iris" in GOOD[n]])
every_model = pytest.mark.parametrize("name", [n for n in WALKED if "m.boxloop" in GOOD[n]])


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model in it, where calls run."""
    monkeypatch.chdir(tmp_path)
    GaussianMixture(random_state=0).fit(open_table("iris")).save("m.boxloop")
    return tmp_path


def command_of(name: str) -> click.Command:
    return import_module(f"boxloop.cli.{name}").command


def call_with(name: str, old: str, new: str) -> Result:
    """The good call of a command, with one word changed."""
    return call(name, *(new if word == old else word for word in GOOD[name]))


def check_failed(result: Result, code: int, *words: str) -> None:
    """Nothing on standard output; on standard error one line, that says what is wrong, and no traceback."""
    assert result.exit_code == code, (result.output, result.exc_info)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[-1].startswith("Error: ")
    assert sum(line.startswith("Error: ") for line in lines) == 1
    assert len(lines) == 1 or "--help" in lines[1]
    for word in words:
        assert word in lines[-1]


def numbers(value: object) -> list[float]:
    if isinstance(value, dict):
        return [n for item in value.values() for n in numbers(item)]
    if isinstance(value, list):
        return [n for item in value for n in numbers(item)]
    return [value] if isinstance(value, float) else []


@every_command
def test_help_shows_examples_that_click_can_read(name: str) -> None:
    shown = done(name, "--help").stdout
    examples = re.findall(rf"boxloop {name}(?: .*)?", shown.partition("Examples:")[2])
    assert examples
    options = {text for param in command_of(name).params for text in (*param.opts, *param.secondary_opts)}
    used = re.findall(r"(?<![\w-])(--?[a-z][\w-]*)", " ".join(examples))
    assert set(used) <= options


@every_command
def test_every_option_has_help_and_the_common_spelling(name: str) -> None:
    for param in command_of(name).params:
        if isinstance(param, click.Option):
            assert param.help, param.name
            for spelled in COMMON.values():
                if spelled[-1] in param.opts:
                    assert tuple(param.opts) == spelled
    if name != "completion":
        assert any("--json" in param.opts for param in command_of(name).params)


def test_an_option_in_common_is_the_same_everywhere() -> None:
    said: dict[str, set[str]] = {}
    for name in WALKED:
        for param in command_of(name).params:
            shared = set(param.opts) & (set(COMMON) - {"--output"})
            for flag in shared:
                said.setdefault(flag, set()).add(f"{param.help} {param.type} {param.default}")
    assert set(said) == set(COMMON) - {"--output"}
    assert {flag: words for flag, words in said.items() if len(words) > 1} == {}


@pytest.mark.parametrize("name", RUN)
def test_0_and_nothing_but_results_on_standard_output(name: str) -> None:
    result = done(name, *GOOD[name])
    assert result.stdout != ""
    assert "Error" not in result.stderr


@every_json
def test_json_is_finite_and_has_stable_keys(name: str, place: Path) -> None:
    printed = json.loads(done(name, *GOOD[name], "--json").stdout)
    assert set(printed) == set(KEYS[name].split())
    assert all(math.isfinite(number) for number in numbers(printed))
    # Wherever --json stands, no word is taken for a file.
    first = json.loads(done(name, "--json", *GOOD[name]).stdout)
    dashed = json.loads(done(name, *GOOD[name], "--json", "-").stdout)
    for found in (printed, first, dashed):
        found.pop("seconds", None)
    assert printed == first == dashed
    shown = done(name, *GOOD[name], "--json", "found.json").stdout
    assert shown != ""
    with pytest.raises(json.JSONDecodeError):
        json.loads(shown)
    assert set(json.loads((place / "found.json").read_text())) == set(KEYS[name].split())


@every_json
def test_json_goes_nowhere_else(name: str, place: Path) -> None:
    before = (place / "m.boxloop").read_bytes()
    check_failed(call(name, *GOOD[name], "--json=m.boxloop"), 2, "--json", ".json")
    check_failed(call(name, *GOOD[name], "--json", "no/such.json"), 2, "no/such.json", "does not exist")
    assert (place / "m.boxloop").read_bytes() == before


@every_command
def test_2_for_an_unknown_option(name: str) -> None:
    check_failed(call(name, *GOOD[name], "--nonsense"), 2, "--nonsense")


@pytest.mark.parametrize("name", [n for n in WALKED if GOOD[n] and n != "completion"])
def test_2_for_a_missing_argument(name: str) -> None:
    check_failed(call(name), 2, "Missing")


@every_data
def test_1_for_data_that_are_not_there(name: str) -> None:
    check_failed(call_with(name, "iris", "nothing.csv"), 1, "nothing.csv", "boxloop datasets")
    check_failed(call_with(name, "iris", "irsi"), 1, "did you mean 'iris'?")
    (Path("rows.csv")).write_text("a\n1\n")
    check_failed(call_with(name, "iris", "row.csv"), 1, "did you mean 'rows.csv'?")


@every_data
def test_1_for_data_that_cannot_be_read(name: str) -> None:
    Path("empty.csv").touch()
    Path("folder").mkdir()
    Path("text.csv").write_text("sepal length (cm),b\nx,y\n")
    np.save("flat.npy", np.ones(3))
    for data in ("empty.csv", "folder", "text.csv", "flat.npy", "m.boxloop"):
        check_failed(call_with(name, "iris", data), 1, data)


@pytest.mark.parametrize("name", ["fit", "select", "outliers", "posterior", "network"])
@pytest.mark.parametrize("option", ["--columns", "--drop"])
def test_1_for_an_unknown_column(name: str, option: str) -> None:
    result = call(name, *GOOD[name], option, "petal length")
    check_failed(result, 1, "no column 'petal length'", "did you mean 'petal length (cm)'")


@pytest.mark.parametrize("name", ["score", "criticise", "compare"])
def test_1_for_data_without_the_columns_of_the_model(name: str) -> None:
    check_failed(call_with(name, "iris", "wine"), 1, "wine: there is no column 'sepal length (cm)'")


@every_model
def test_1_for_a_model_that_is_none(name: str) -> None:
    check_failed(call_with(name, "m.boxloop", "none.boxloop"), 1, "none.boxloop", "boxloop fit")
    Path("folder").mkdir()
    Path("rows.csv").write_text("a\n1\n")
    Path("empty.boxloop").touch()
    for model in ("folder", "rows.csv", "empty.boxloop"):
        check_failed(call_with(name, "m.boxloop", model), 1, model, "boxloop fit")


def test_2_for_an_unknown_name() -> None:
    check_failed(call("fitt"), 2, "did you mean fit?")
    check_failed(call("nonsense"), 2, "No such command 'nonsense'")
    check_failed(call("completion", "dos"), 2, "bash")
    check_failed(call("fit", "iris", "--model", "k-means", "-o", "x"), 2, "gaussian-mixture")
    check_failed(call("outliers", "iris", "--model", "gausian-mixture"), 2, "did you mean 'gaussian-mixture'")


@pytest.mark.parametrize("name", ["score", "criticise", "compare", "outliers", "posterior", "sample"])
def test_2_for_a_table_of_a_kind_that_is_not_written(name: str) -> None:
    check_failed(call(name, *GOOD[name], "-o", "t.xlsx"), 2, "t.xlsx", ".parquet")


@every_command
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_130_and_143_when_stopped(name: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_of(name), "callback", lambda **_: signal.raise_signal(number))
    result = call(name, *GOOD[name])
    assert result.exit_code == 128 + number
    assert "Traceback" not in result.output


def test_exit_codes_are_in_the_help() -> None:
    shown = done("--help").stdout.partition("Exit codes:")[2]
    assert re.findall(r"^ +(\d+) ", shown, re.M) == ["0", "1", "2", "130", "143"]


@pytest.mark.parametrize("name", [n for n in RUN if "--quiet" in str([p.opts for p in command_of(n).params])])
def test_quiet_is_silent(name: str) -> None:
    assert done(name, *GOOD[name], "-q").output == ""
    assert json.loads(done(name, *GOOD[name], "-q", "--json").stdout)


QUICK = """
import sys
from boxloop.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
heavy = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "rich", "pandas", "pyarrow", "dask"} & set(sys.modules)
print("heavy", *heavy, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], *([name, "--help"] for name in WALKED), ["completion", "zsh"]]
)
def test_help_needs_nothing_heavy(arguments: list[str]) -> None:
    """What would make a user wait; the time itself is in the benchmarks, where nothing else runs."""
    command = [sys.executable, "-c", QUICK, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stderr == "heavy\n"


def test_the_program_has_the_commands_that_are_walked() -> None:
    assert set(RUN) == set(KEYS) | {"completion"}
    assert set(WALKED) <= set(GOOD)
    assert main.list_commands(click.Context(main)) == list(COMMANDS)
