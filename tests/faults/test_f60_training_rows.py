"""Row 60: rows of the fit given as held-out rows, and training rows that are not what was fitted."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from boxloop import GaussianMixture, VariationalAutoencoder, load, mega
from boxloop.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("f60")
    rows = np.random.default_rng(0).normal(size=(300, 3))
    for name, part in (("train", rows[:200]), ("held", rows[200:])):
        pd.DataFrame(part, columns=list("abc")).to_csv(path / f"{name}.csv", index=False)
    GaussianMixture(1).fit(pd.read_csv(path / "train.csv")).save(path / "m.boxloop")
    return path


def criticise(folder: Path, data: str, *more: str) -> Result:
    call = ["criticise", str(folder / "m.boxloop"), str(folder / data), "--draws", "19", *more]
    return CliRunner().invoke(main, call)


def test_f60_rows_of_the_fit_as_held_out_rows(folder: Path) -> None:
    with pytest.warns(UserWarning, match="X holds the rows that the GaussianMixture was fitted to"):
        found = mega(load(folder / "m.boxloop"), folder / "train.csv", draws=19)
    assert found.parameter_error == "training rows"


def test_f60_training_rows_that_were_not_fitted(folder: Path) -> None:
    with pytest.raises(ValueError, match="train= holds other rows than the GaussianMixture was fitted to"):
        mega(load(folder / "m.boxloop"), folder / "held.csv", train=folder / "held.csv", draws=19)


def test_f60_the_command(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # as a user has it: the command prints them
        own = criticise(folder, "train.csv")
    assert own.exit_code == 0
    assert "DATA are the training rows: moments that the fit matches" in own.output
    assert "holds the rows that the GaussianMixture was fitted to" in " ".join(own.output.split())
    refused = criticise(folder, "held.csv", "--train", str(folder / "held.csv"))
    assert refused.exit_code == 1
    assert "holds other rows than the GaussianMixture was fitted to" in " ".join(refused.output.split())
    right = criticise(folder, "held.csv", "--train", str(folder / "train.csv"))
    assert "The error of the fitted parameters is included" in right.output


def test_f60_the_command_knows_the_rows_of_an_autoencoder(folder: Path, tmp_path: Path) -> None:
    """p = 0.04 on the rows of the fit, without a word."""
    fit = VariationalAutoencoder(
        1, hidden=(4,), max_iter=2, patience=None, validation_fraction=0.0, random_state=0
    )
    fit.fit(pd.read_csv(folder / "train.csv")).save(tmp_path / "vae.boxloop")
    call = ["criticise", str(tmp_path / "vae.boxloop"), str(folder / "train.csv"), "--draws", "19"]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        own = CliRunner().invoke(main, call)
    assert own.exit_code == 0
    said = " ".join(own.output.split())
    assert "X holds the rows that the VariationalAutoencoder was fitted to" in said
    assert "the parameter error is left out: p-values are too large" in said
