"""``boxloop posterior``: the numbers of the library, what each rests on, what to do, and stopping on the way."""

from __future__ import annotations

import json
import math
import re
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from boxloop.cli import advise_on_chains
from boxloop.data import open_table, write_table
from boxloop.loop import Progress, run
from boxloop.sample import sample_factors, sample_mixture, sampler
from cli.calls import NAMES, call, clusters, done, signalled, table

SHORT = ["--draws", 40, "--warmup", 20]
MIXTURE = ["posterior", "iris", "--model", "gaussian-mixture", "-k", 2, *SHORT]
FACTORS = ["posterior", "iris", "--model", "factor-analysis", "-k", 1, *SHORT]
both = pytest.mark.parametrize("words", [MIXTURE, FACTORS], ids=["mixture", "factors"])


def found(*words: object) -> dict:
    return json.loads(done(*words, "--json").stdout)


def library(words: list[object], **options: object):
    if words is MIXTURE:
        return sample_mixture(open_table("iris"), 2, draws=40, warmup=20, **options)
    return sample_factors(open_table("iris"), 1, draws=40, warmup=20, **options)


def read(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


@both
def test_numbers_are_those_of_the_library(words: list[object]) -> None:
    report, posterior = found(*words, "--seed", 3, "--chains", 3), library(words, random_state=3, chains=3)
    expected = posterior.summary()
    assert [line["quantity"] for line in report["summary"]] == list(expected.index)
    for line, (_, row) in zip(report["summary"], expected.iterrows(), strict=True):
        for key in expected.columns.drop("identification"):
            if math.isnan(row[key]):
                assert line[key] is None
            else:
                assert line[key] == row[key]
        assert line["identification"] == row["identification"]
    assert report["concerns"] == list(posterior.concerns)
    assert report["converged"] == posterior.converged
    assert (report["chains"], report["draws"], report["warmup"], report["rows"]) == (3, 40, 20, 150)


@both
def test_what_people_read_has_the_numbers_of_the_json(words: list[object], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    report, text = found(*words), done(*words).stdout
    for line in report["summary"]:
        shown = next(row for row in text.splitlines() if row.strip().startswith(line["quantity"]))
        cells = shown.strip().removeprefix(line["quantity"]).split()
        assert cells[-1] == line["identification"]
        assert float(cells[0]) == pytest.approx(line["mean"], rel=1e-3)
        assert float(cells[1]) == pytest.approx(line["low"], rel=1e-2)
        assert float(cells[2]) == pytest.approx(line["high"], rel=1e-2)
    kinds = {line["identification"] for line in report["summary"]}
    assert kinds == (
        {"label-invariant", "relabelled"} if words is MIXTURE else {"rotation-invariant", "aligned"}
    )
    assert report["identification"][1:] in text
    assert report["concerns"]
    assert report["advice"]
    for line in (*report["concerns"], *report["advice"]):
        assert f"- {line}\n" in text
    assert re.search(r"draw longer: --draws \d+", text)


def test_draws_without_concerns_are_reported(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(80, 2)))
    words = ["posterior", tmp_path / "rows.npy", "--model", "gaussian-mixture", "-k", 1, "--draws", 400]
    report = found(*words)
    assert report["converged"]
    assert report["advice"] == report["concerns"] == []
    text = done(*words).stdout
    assert "No concerns: chains agree" in text
    assert "What to do" not in text


def test_advice_is_in_options_of_the_command() -> None:
    assert "--chains 4" in found(*MIXTURE, "--chains", 1)["advice"][0]
    assert found(*MIXTURE, "--draws", 2)["advice"] == ["draw more: --draws 1000"]


def test_chains_in_different_places_are_reported_from_short_ones() -> None:
    posterior = sample_factors(open_table("iris"), 1, draws=400, warmup=100, random_state=0)
    good = {
        "quantity": "log_density",
        "identification": "rotation-invariant",
        "r_hat": 1.0,
        "ess_bulk": 900.0,
        "ess_tail": 900.0,
    }
    apart = advise_on_chains(posterior, [good, {**good, "r_hat": 1.6, "ess_bulk": 7.0}], None)
    assert "different modes" in apart[0]
    assert apart[1] == "draw longer: --draws 23200; --checkpoint FILE saves progress"  # 400 / 7, rounded up
    short = advise_on_chains(posterior, [good, {**good, "r_hat": 1.02}], Path("c.boxloop"))
    assert short == ["draw longer: --draws 800; it continues from c.boxloop"]
    # Lines that depend on labels, and the counts of some draws, do not raise concerns.
    others = [
        {**good, "identification": "aligned", "r_hat": 2.0},
        {**good, "quantity": "occupied", "r_hat": 2.0},
    ]
    assert not any("draw longer" in line for line in advise_on_chains(posterior, [good, *others], None))


def test_a_long_table_is_cut_and_the_json_is_not(monkeypatch) -> None:
    monkeypatch.setattr("boxloop.cli.posterior.MAX_LINES", 3)
    text = " ".join(done(*MIXTURE).stdout.split())
    count = len(found(*MIXTURE)["summary"])
    assert f"the first 3 of {count} quantities, --json has all" in text
    assert "component 0: weight" not in text


def test_covariance_reaches_the_library() -> None:
    assert found(*MIXTURE)["covariance"] == "full"
    assert found(*FACTORS)["covariance"] is None
    report = found(*MIXTURE, "--covariance", "diag")
    assert report["covariance"] == "diag"
    expected = library(MIXTURE, covariance="diag", random_state=0).summary()
    assert [line["mean"] for line in report["summary"]] == expected["mean"].tolist()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@both
def test_one_line_for_each_draw(tmp_path: Path, words: list[object], suffix: str) -> None:
    path = tmp_path / f"draws{suffix}"
    report = found(*words, "-o", path)
    drawn = read(path)
    assert list(drawn.columns) == ["chain", "draw", *(line["quantity"] for line in report["summary"])]
    assert drawn["chain"].tolist() == np.repeat(range(4), 40).tolist()
    assert drawn["draw"].tolist() == np.tile(range(40), 4).tolist()
    for line in report["summary"]:
        assert drawn[line["quantity"]].mean() == pytest.approx(line["mean"], rel=1e-12)
    density = library(words, random_state=0).draws.log_density.T.flatten().numpy()
    np.testing.assert_array_equal(drawn["log_density"], density)


def test_cells_that_were_not_counted_are_empty(tmp_path: Path) -> None:
    report = found(*MIXTURE, "--draws", 300, "-o", tmp_path / "d.csv")
    counted = read(tmp_path / "d.csv")["occupied"]
    assert counted.notna().sum() == 4 * 150
    assert counted.mean() == next(x["mean"] for x in report["summary"] if x["quantity"] == "occupied")


def test_the_figure_is_a_picture(tmp_path: Path) -> None:
    text = done(*FACTORS, "--figure", tmp_path / "trace.png").stdout
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")
    assert f"Written: {tmp_path / 'trace.png'}" in text


def test_columns_are_chosen(tmp_path: Path) -> None:
    rows = clusters(60)
    rows[:, 1] = 2.0
    write_table(tmp_path / "rows.csv", {**dict(zip(NAMES, rows.T)), "kind": np.array(["a", "b"] * 30)})
    words = ["posterior", tmp_path / "rows.csv", "--model", "gaussian-mixture", "-k", 2, *SHORT]
    refused = call(*words, "--drop", "kind")
    assert refused.exit_code == 1
    assert "column 'width' is constant" in refused.stderr
    assert found(*words, "--drop", "kind", "--drop", "width")["columns"] == ["height", "depth"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([*MIXTURE, "-k", 151], 1, "151 components of 150 rows"),
        ([*FACTORS, "-k", 5], 1, "5 factors of 4 columns"),
        ([*FACTORS, "--covariance", "full"], 2, "factor-analysis has no option --covariance"),
        ([*MIXTURE, "--covariance", "tied"], 2, "--covariance"),
        ([*MIXTURE, "--model", "probabilistic-pca"], 2, "--model"),
        ([*MIXTURE, "-k", 0], 2, "--components"),
        ([*MIXTURE, "--chains", 0], 2, "--chains"),
        ([*MIXTURE, "--draws", 0], 2, "--draws"),
        ([*MIXTURE, "--warmup", -1], 2, "--warmup"),
        (MIXTURE[:4], 2, "--components"),
        ([*MIXTURE, "-o", "draws.npz"], 2, "must end in .csv, .csv.gz or .parquet"),
        ([*MIXTURE, "-o", "no/draws.csv"], 2, "does not exist"),
        ([*MIXTURE, "-o", "d.csv", "--checkpoint", "d.csv"], 2, "given twice"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, monkeypatch, words: list[object], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*words)
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert said in result.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_missing_value_names_its_column(tmp_path: Path) -> None:
    data = table(tmp_path / "rows.csv", clusters())
    for model in ("gaussian-mixture", "factor-analysis"):
        result = call("posterior", data, "--model", model, "-k", 1, *SHORT)
        assert result.exit_code == 1
        assert "column 'width' has missing values" in result.stderr


def stop(monkeypatch: pytest.MonkeyPatch, number: int, iterations: int) -> None:
    """Send a signal after so many iterations of the chains."""

    def raised(progress: Progress) -> None:
        if progress.iteration == iterations and not progress.stopped:
            signal.raise_signal(number)

    def stopped(*args: object, observers: list, **options: object) -> object:
        return run(*args, observers=[*observers, raised], **options)

    monkeypatch.setattr(sampler, "run", stopped)


@pytest.mark.filterwarnings("default")
@both
def test_ctrl_c_tells_and_writes_what_was_drawn(tmp_path: Path, monkeypatch, words: list[object]) -> None:
    stop(monkeypatch, signal.SIGINT, 3)  # one iteration of warm-up, two of 32 draws
    result = call(*words, "--draws", 1000, "-o", tmp_path / "draws.csv", "--json")
    assert result.exit_code == 130
    assert result.stderr.splitlines() == [
        "Warning: interrupted after 64 draws of each chain",
        "Interrupted.",
    ]
    report = json.loads(result.stdout)
    assert (report["draws"], report["interrupted"], report["converged"]) == (64, True, False)
    assert report["advice"] == ["run the same command to its end; --checkpoint FILE saves progress"]
    assert len(read(tmp_path / "draws.csv")) == 4 * 64


@pytest.mark.filterwarnings("default")
@both
def test_ctrl_c_in_warm_up_leaves_nothing(tmp_path: Path, monkeypatch, words: list[object]) -> None:
    stop(monkeypatch, signal.SIGINT, 1)
    result = call(*words, "--warmup", 100, "-o", tmp_path / "d.csv", "--figure", tmp_path / "t.png")
    assert result.exit_code == 130
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@both
def test_a_checkpoint_goes_on_bit_for_bit(
    tmp_path: Path, monkeypatch, words: list[object], number: int
) -> None:
    kept, whole, rest = (tmp_path / name for name in ("c.boxloop", "whole.csv", "rest.csv"))
    done(*words, "--draws", 100, "-o", whole)
    with monkeypatch.context() as patch:
        stop(patch, number, 3)
        result = call(*words, "--draws", 100, "--checkpoint", kept)
    assert result.exit_code == 128 + number
    assert f"Stopped; the same command continues from {kept}." in result.stderr
    on = done(*words, "--draws", 100, "--checkpoint", kept, "-o", rest)
    assert on.stderr == f"Continuing from {kept}.\n"
    assert rest.read_bytes() == whole.read_bytes()
    other = call(*words, "--draws", 100, "--seed", 1, "--checkpoint", kept)
    assert other.exit_code == 1
    assert f"{kept}: a checkpoint of another fit" in other.stderr
    done(*words, "--draws", 150, "--checkpoint", kept, "-o", rest)
    done(*words, "--draws", 150, "-o", whole)
    assert rest.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_ctrl_c_at_a_terminal() -> None:
    words = ["posterior", "iris", "--model", "gaussian-mixture", "-k", 2, "--draws", 10**6, "--warmup", 32]
    code, printed, shown = signalled(words, signal.SIGINT, r"R-hat \d")
    assert code == 130, shown
    assert "Traceback" not in shown
    assert shown.count("Interrupted.") == 1
    assert re.search(r"interrupted after \d+ draws of each chain", printed)
    assert "run the same command to its end" in printed
