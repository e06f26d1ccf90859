"""Options that several commands have: one spelling, one meaning, one line of help."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from boxloop.cli.console import SAFE_CSV
from boxloop.cli.names import MODELS, complete_data

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Command(click.Command):
    """A command whose ``--json`` takes the next word only where that is ``-`` or the name of a JSON file.

    So ``boxloop show --json model.boxloop`` prints the model, and never writes over it.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Spell out a ``--json`` that stands alone."""
        following = [*args[1:], ""]
        spelled = [
            "--json=-" if word == "--json" and not _is_json_target(after) else word
            for word, after in zip(args, following)
        ]
        return super().parse_args(ctx, spelled)


def with_examples(*examples: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function a command whose help ends with examples."""
    lines = "\n".join(f"  {example}" for example in examples)
    return click.command(cls=Command, epilog=f"\b\nExamples:\n{lines}")


def _is_json_target(text: str) -> bool:
    return text == "-" or text.lower().endswith(".json")


def _check_json_target(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _is_json_target(value):
        raise click.BadParameter(f"{value}: give a name that ends in .json, or - for standard output")
    return value


def _split_names(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    """Names between commas; one that holds a comma itself stands in double quotes, as in CSV."""
    return None if value is None else next(csv.reader([value], skipinitialspace=True), [])


def _check_named(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse an empty name, which is what a shell leaves of an unset variable: it would be taken for this folder."""
    if value == "":
        raise click.BadParameter("the name is empty; give . for this folder")
    if value == Path():
        raise click.BadParameter("a model file is needed, not an empty name or this folder")
    return value


def parse_widths(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Whole numbers between commas."""
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdigit() and int(part) for part in parts):
        raise click.BadParameter(f"{value}: give whole numbers, as in 64,64")
    return tuple(int(part) for part in parts)


def _set_threads(ctx: click.Context, param: click.Parameter, value: int | None) -> None:
    if value is not None and not ctx.resilient_parsing:
        from boxloop.numeric import use_threads

        ctx.with_resource(use_threads(value))


def _keep_safe_csv(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[SAFE_CSV] = True


def output_option(what: str, **more: Any) -> Decorator:
    """``-o``: where the result of the work goes."""
    return click.option("-o", "--output", type=click.Path(path_type=Path), help=what, **more)


def watch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``-q`` and ``--progress``, which :func:`is_progress_shown` reads."""
    quiet = click.option("-q", "--quiet", is_flag=True, help="No progress and no tables; --json is written.")
    progress = click.option(
        "--progress/--no-progress",
        default=None,
        help="Progress on standard error; by default where that is a terminal.",
    )
    return progress(quiet(function))


def is_progress_shown(quiet: bool, progress: bool | None) -> bool:
    """Whether to show progress."""
    return not quiet and (sys.stderr.isatty() if progress is None else progress)


def names_option(name: str, what: str) -> Decorator:
    """An option that takes names of columns."""
    return click.option(name, metavar="A,B,...", callback=_split_names, help=what)


def column_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--columns`` and ``--drop``: which columns of the data are used."""
    return names_option("--columns", "Columns to use; all if omitted.")(drop_option(function))


def compute_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--device`` and ``--dtype``: where and how precisely a fit computes."""
    device = click.option("--device", help="cpu, cuda, cuda:1 or auto.")
    dtype = click.option(
        "--dtype", type=click.Choice(["float64", "float32"]), help="Precision of computations on the rows."
    )
    return device(dtype(function))


data_argument: Decorator = click.argument("data", shell_complete=complete_data, callback=_check_named)
drop_option: Decorator = click.option(
    "--drop", metavar="COLUMN", multiple=True, help="Column to leave out; may be repeated."
)
model_argument: Decorator = click.argument("model", type=click.Path(path_type=Path), callback=_check_named)
json_option: Decorator = click.option(
    "--json",
    "json_to",
    metavar="[FILE.json|-]",
    callback=_check_json_target,
    help="Findings as JSON: without a value or with -, to standard output in place of tables; else to a file.",
)
seed_option: Decorator = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed."
)
figure_option: Decorator = click.option(
    "--figure", type=click.Path(path_type=Path), help="Picture of the findings: .png."
)
safe_csv_option: Decorator = click.option(
    "--safe-csv",
    is_flag=True,
    expose_value=False,
    callback=_keep_safe_csv,
    help="In CSV, put an apostrophe before texts that a spreadsheet would read as formulas (always done for names).",
)
checkpoint_option: Decorator = click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="File that stores progress; if it exists, the run continues from it.",
)
threads_option: Decorator = click.option(
    "--threads",
    type=click.IntRange(min=1),
    callback=_set_threads,
    expose_value=False,
    help="Threads of torch in a fit, for large networks; one if omitted.",
)
weights_option: Decorator = click.option(
    "--weights", metavar="COLUMN", help="Column that holds the weight of each row."
)
components_help = (
    "Components, factors or codes; of Bayesian models, the most.  [default: 1; all factors; 10; 2 codes]"
)
covariance_choice: click.Choice[str] = click.Choice(["full", "tied", "diag", "spherical"])
kind_choice: click.Choice[str] = click.Choice(list(MODELS))
