"""Commands whose rows are summed by workers: the same results, workers that end, and what is said when they fail."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, default_client

from boxloop import load
from boxloop.cli import cluster as options
from boxloop.data import ClusterError, DaskSource, PartialSum, open_table, pickle_value, write_table
from boxloop.estimators import LatentEstimator
from boxloop.fit import fit as fit_module
from boxloop.loop import Progress, run
from cli.calls import NAMES, call, clusters, done, signalled
from report.small import few_candidates

FIT = ["--model", "gaussian-mixture", "-k", 2, "--covariance", "diag"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A scheduler that others started; its workers are threads, as they need no start."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address="127.0.0.1:0"
    ) as c:
        yield c.scheduler_address


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files with missing values and weights."""
    place = tmp_path_factory.mktemp("rows")
    for i, rows in enumerate(np.array_split(clusters(300), 5)):
        weight = np.random.default_rng(i).uniform(size=len(rows))
        write_table(place / f"{i}.parquet", {**dict(zip(NAMES, rows.T, strict=True)), "w": weight})
    return place


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that one process fits."""
    out = tmp_path_factory.mktemp("model") / "whole.boxloop"
    done("fit", folder, *FIT, "--weights", "w", "--drop", "depth", "-q", "-o", out)
    return out


def check_same(one: LatentEstimator, other: LatentEstimator) -> None:
    """Whether two fits are the same but for rounding."""
    for (name, a), (name_, b) in zip(one.model_.leaves(), other.model_.leaves(), strict=True):
        assert name == name_
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(one.lower_bounds_, other.lower_bounds_, rtol=1e-10)
    assert one.get_params() == other.get_params()
    assert list(one.feature_names_in_) == list(other.feature_names_in_)


@pytest.mark.usefixtures("quick_workers")
def test_workers_give_the_fit_of_one_process(folder: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.boxloop"
    result = done("fit", folder, *FIT, "--weights", "w", "--drop", "depth", "--workers", 2, "-o", out)
    assert result.stderr == ""
    assert "300 rows, 2 columns" in result.stdout
    check_same(load(out), load(whole))


def test_a_cluster_gives_the_fit_of_one_process(
    address: str, folder: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "m.boxloop"
    arguments = ["fit", folder, *FIT, "--weights", "w", "--drop", "depth", "-o", out]
    alone = done(*arguments, "--json").stdout
    shared = done(*arguments, "--json", "--cluster", address).stdout
    check_same(load(out), load(whole))
    judged = [
        {key: found[key] for key in ("log_likelihood", "standard_error", "aic", "bic")}
        for found in map(json.loads, (alone, shared))
    ]
    assert judged[0] == pytest.approx(judged[1], rel=1e-10)


@pytest.mark.parametrize("command", ["criticise", "compare"])
def test_judging_on_a_cluster(command: str, address: str, folder: Path, whole: Path, tmp_path: Path) -> None:
    more = ["--train", folder, "--weights", "w", "--draws", 9] if command == "criticise" else []
    done(command, whole, folder, *more, "-q", "-o", tmp_path / "alone.parquet")
    done(command, whole, folder, *more, "-q", "-o", tmp_path / "shared.parquet", "--cluster", address)
    names = {"criticise": ["data", "gap", "error"], "compare": ["log_likelihood", "error", "aic"]}[command]
    alone, shared = (
        next(open_table(tmp_path / f"{n}.parquet", columns=names).chunks())[0] for n in ("alone", "shared")
    )
    np.testing.assert_allclose(alone, shared, rtol=1e-8, atol=1e-10)


def test_choosing_on_a_cluster(address: str, folder: Path, tmp_path: Path) -> None:
    select = ["select", folder, "-k", "1,2", "--covariance", "diag", "--folds", 2, "--drop", "w", "--json"]
    alone = json.loads(done(*select, "-o", tmp_path / "alone").stdout)
    shared = json.loads(done(*select, "-o", tmp_path / "shared", "--cluster", address).stdout)
    assert shared["chosen"] == alone["chosen"]
    for one, other in zip(alone["candidates"], shared["candidates"], strict=True):
        assert one.pop("candidate") == other.pop("candidate")
        assert [one.pop(name) for name in ("failure", "warnings")] == ["", 0]
        assert one == pytest.approx({name: other[name] for name in one}, rel=1e-8, abs=1e-10)
    check_same(load(tmp_path / "shared"), load(tmp_path / "alone"))
    both = call(*select, "--jobs", 2, "--workers", 2)
    assert both.exit_code == 2
    assert "give one" in both.stderr


@pytest.fixture
def sent_back(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every sum that a partition sends back."""
    sizes: list[int] = []

    def noted(value: object, **more: Any) -> bytes:
        data = pickle_value(value, **more)
        if isinstance(value, PartialSum):
            sizes.append(len(data))
        return data

    monkeypatch.setattr("boxloop.data.dask.reduce.pickle_value", noted)
    return sizes


@pytest.fixture
def rows_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way by which rows would come here is closed."""

    def refused(*_: object) -> None:
        raise AssertionError("rows came here")

    monkeypatch.setattr(DaskSource, "chunks", refused)


def check_tables(one: Path, other: Path) -> None:
    """The same lines in the same order, numbers to rounding."""
    a, b = (pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path) for path in (one, other))
    pd.testing.assert_frame_equal(a, b, check_exact=False, rtol=1e-8, atol=1e-10)


def check_facts(one: Any, other: Any) -> None:
    """The same findings, numbers to rounding, wherever their table went."""
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one.keys() - {"output"}:
            check_facts(one[name], other[name])
    elif isinstance(one, list):
        for a, b in zip(one, other, strict=True):
            check_facts(a, b)
    else:
        assert other == (pytest.approx(one, rel=1e-8) if isinstance(one, float) else one)


@pytest.mark.usefixtures("rows_stay")
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_scores_on_a_cluster(
    suffix: str, address: str, folder: Path, whole: Path, tmp_path: Path, sent_back: list[int]
) -> None:
    tables = [tmp_path / f"{name}{suffix}" for name in ("alone", "shared")]
    alone = json.loads(done("score", whole, folder, "--json", "-o", tables[0]).stdout)
    shared = json.loads(done("score", whole, folder, "--json", "-o", tables[1], "--cluster", address).stdout)
    check_tables(*tables)
    check_facts(alone, shared)
    assert len(sent_back) == 5  # one part after the other, and never all of them
    sent_back.clear()
    done("score", whole, folder, "--cluster", address)
    assert max(sent_back) < 1000  # sums, and no lines


FILES = {
    "factors": "fit wine --model factor-analysis -k 2",
    "views": "relate wine --y alcohol,proline --features linear",
    "network": "network iris --target target --hidden 4 --epochs 2 --collect 2 --chains 0",
}


@pytest.mark.usefixtures("rows_stay")
@pytest.mark.filterwarnings("ignore")  # of fits that are far too short
@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_is_scored_on_a_cluster(
    name: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent_back: list[int]
) -> None:
    monkeypatch.setattr("boxloop.data.dask.source.PART_VALUES", 500)  # bundled data in parts, too
    model, words = tmp_path / "m", FILES[name].split()
    data = words[1]
    done(*words, "-q", "-o", model)
    done("score", model, data, "-q", "-o", tmp_path / "alone.csv")
    done("score", model, data, "-q", "-o", tmp_path / "shared.csv", "--cluster", address)
    assert len(sent_back) > 1
    check_tables(tmp_path / "alone.csv", tmp_path / "shared.csv")


def test_labels_are_not_shared(tmp_path: Path) -> None:
    relate = ["relate", "iris", "--x", "target", "--y", "sepal length (cm)", "--features", "linear", "-q"]
    done(*relate, "-o", tmp_path / "m")
    result = call("score", tmp_path / "m", "iris", "--workers", 2)
    assert result.exit_code == 2
    assert "m takes labels, which one process reads: leave both out" in result.stderr
    done("score", tmp_path / "m", "iris", "-q")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("rule", [["--level", 0.1], ["--contamination", 0.03]])
@pytest.mark.parametrize("judge", ["fitted here", "a file"])
def test_outliers_on_a_cluster(
    judge: str,
    rule: list[object],
    suffix: str,
    address: str,
    folder: Path,
    whole: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Of the rows, those come here that are shown; each row that is flagged has its reasons from where it is."""
    how = ["--model", whole] if judge == "a file" else ["-k", 2, "--covariance", "diag", "--drop", "w"]
    if judge == "a file":  # a fit looks at the first rows
        request.getfixturevalue("rows_stay")
    arguments = ["outliers", folder, *how, *rule, "--top", 4, "--json"]
    tables = [tmp_path / f"{name}{suffix}" for name in ("alone", "shared")]
    alone = json.loads(done(*arguments, "-o", tables[0]).stdout)
    shared = json.loads(done(*arguments, "-o", tables[1], "--cluster", address).stdout)
    check_tables(*tables)
    assert shared["flagged"] == alone["flagged"] > 4
    check_facts(alone, shared)
    scored = pd.read_csv(tables[1]) if suffix == ".csv" else pd.read_parquet(tables[1])
    assert scored["drop_1"][scored["outlier"] == 1].notna().all()


@pytest.mark.usefixtures("rows_stay")
def test_a_report_on_a_cluster(
    address: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent_back: list[int]
) -> None:
    """The same page; only rows that are drawn travel, and files are fingerprinted where they are."""
    monkeypatch.chdir(tmp_path)
    report = ["report", folder, "--columns", "height", "--rows", 60, "--jobs", 1, "-q", "-o", "page.html"]
    with few_candidates():
        done(*report)
        alone = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        done(*report, "--cluster", address)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == alone
    assert len(alone) == 5
    assert max(sent_back) < 4000  # of 300 rows


@pytest.mark.parametrize("name", ["score", "outliers", "report"])
def test_what_every_command_says_of_clusters(
    name: str, folder: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"score": [whole, folder], "outliers": [folder], "report": [folder]}[name]
    out = ["-o", tmp_path / ("page.html" if name == "report" else "table.csv")]
    both = call(name, *words, *out, "--workers", 2, "--cluster", "tcp://127.0.0.1:1")
    assert both.exit_code == 2
    assert "--workers and --cluster exclude each other" in both.stderr
    monkeypatch.setattr(options, "ANSWER_SECONDS", 0.5)
    nobody = call(name, *words, *out, "--cluster", "tcp://127.0.0.1:1")
    assert nobody.exit_code == 1
    assert "no Dask scheduler answers there" in nobody.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_cannot_be_finished_is_not_there(
    address: str, folder: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is said of checkpoints, which the command has not."""

    def lost(*_: object) -> Iterator[object]:
        yield from own(*_)
        raise ClusterError("the scheduler is gone; with checkpoint= the fit goes on")

    own = DaskSource.map_tiles
    monkeypatch.setattr(DaskSource, "map_tiles", lost)
    result = call("score", whole, folder, "-o", tmp_path / "scores.csv", "--cluster", address)
    assert result.exit_code == 1
    assert result.stderr == "Error: the scheduler is gone\n"
    assert list(tmp_path.iterdir()) == []


def test_rows_stay_on_the_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundled data, which are everywhere, too."""
    monkeypatch.setattr(DaskSource, "chunks", None)  # the way by which rows would come here
    for data, drop, rows in ((folder, ["w", "depth"], 300), ("iris", ["petal width (cm)"], 150)):
        source = open_table(data, drop=drop, cluster=True)
        assert isinstance(source, DaskSource)
        assert source.names == open_table(data, drop=drop).names
        assert source.n_rows == rows
    with pytest.raises(ValueError, match="there is no column 'nope'"):
        open_table(folder, columns=["nope"], cluster=True)


def test_progress_is_one_display(
    address: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("boxloop.progress.LONG", 0.0)
    monkeypatch.setattr("boxloop.data.dask.tasks.POLL", 0.001)
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich draw as on a terminal
    result = done("fit", folder, *FIT, "--cluster", address, "--progress", "-o", tmp_path / "m")
    assert "partitions" in result.stderr
    assert "/5" in result.stderr
    assert "partitions" not in result.stderr.splitlines()[-1]
    assert "GaussianMixture" in result.stderr
    assert "partitions" not in done("fit", folder, *FIT, "--cluster", address, "-o", tmp_path / "m").stderr
    judged = done(
        "criticise",
        tmp_path / "m",
        folder,
        "--train",
        folder,
        "--cluster",
        address,
        "--draws",
        0,
        "--progress",
    )
    assert "criticise: partitions" in judged.stderr
    scored = done("score", tmp_path / "m", folder, "--cluster", address, "--progress")
    assert "rows" in scored.stderr
    assert "300/300" in scored.stderr


@pytest.mark.filterwarnings("ignore:EM reached max_iter")
def test_a_lost_cluster_says_how_to_go_on(
    address: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = ["fit", folder, *FIT, "--drop", "w", "--tol", 0, "--max-iter", 7, "-q"]
    done(*fit, "-o", tmp_path / "whole")

    def lose(progress: Progress) -> None:
        if progress.iteration == 3 and not progress.stopped:
            raise ClusterError("the scheduler is gone; with checkpoint= the fit goes on")

    with monkeypatch.context() as patch:
        patch.setattr(
            fit_module, "run", lambda *a, observers, **o: run(*a, observers=[*observers, lose], **o)
        )
        kept = ["--checkpoint", tmp_path / "c"]
        lost = call(*fit, "-o", tmp_path / "m", "--cluster", address, *kept)
    assert lost.exit_code == 1
    assert lost.stderr.splitlines() == [
        f"Stopped; the same command continues from {tmp_path / 'c'}.",
        "Error: the scheduler is gone; with --checkpoint the fit goes on",
    ]
    assert not (tmp_path / "m").exists()
    again = done(*fit, "-o", tmp_path / "m", *kept)  # without any cluster, too
    assert again.stderr == f"Continuing from {tmp_path / 'c'}.\n"
    check_same(load(tmp_path / "m"), load(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--workers", 2, "--cluster", "tcp://127.0.0.1:1"], 2, "--workers and --cluster exclude each other"),
        (["--workers", 0], 2, "--workers"),
        (["--cluster", "127.0.0.1"], 2, "tcp://HOST:PORT or tls://HOST:PORT"),
        (["--cluster", "tcp://127.0.0.1:1"], 1, "tcp://127.0.0.1:1: no Dask scheduler answers there"),
        (
            ["--cluster", "tls://127.0.0.1:1"],
            1,
            "Dask's settings distributed.comm.tls.ca-file, dist",
        ),
    ],
)
def test_wrong_calls_are_refused_at_once(
    words: list[object], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "ANSWER_SECONDS", 0.5)
    result = call("fit", "iris", *FIT, "-o", tmp_path / "m", *words)
    assert result.exit_code == code
    assert said in result.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_an_autoencoder_is_not_shared(tmp_path: Path) -> None:
    result = call("fit", "iris", "--model", "autoencoder", "--workers", 2, "-o", tmp_path / "m")
    assert result.exit_code == 2
    assert "mini-batches" in result.stderr


def test_without_dask_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = call("fit", "iris", *FIT, "--workers", 2, "-o", tmp_path / "m")
    assert result.exit_code == 1
    assert result.stderr == "Error: --workers and --cluster need Dask: pip install boxloop[dask]\n"
    done("fit", "iris", *FIT, "-q", "-o", tmp_path / "m")


@pytest.mark.usefixtures("quick_workers")
def test_workers_may_take_their_time_to_come_back() -> None:
    with options.open_cluster(1, None):
        assert dask.config.get("distributed.deploy.lost-worker-timeout") == "5 minutes"
    assert dask.config.get("distributed.deploy.lost-worker-timeout") != "5 minutes"


def test_a_lost_scheduler_is_reported_by_us_alone(address: str) -> None:
    logger = logging.getLogger("distributed.client")
    with options.open_cluster(None, address):
        assert not logger.isEnabledFor(logging.ERROR)
    assert logger.isEnabledFor(logging.ERROR)


def test_ctrl_c_does_not_interrupt_the_end_of_a_cluster(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def impatient() -> None:
        signal.raise_signal(signal.SIGINT)
        Client.close(client)
        closed.append(client)

    with options.open_cluster(None, address):
        client = default_client()
        monkeypatch.setattr(client, "close", impatient)
    assert [one.status for one in closed] == ["closed"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 3])
def test_ctrl_c_ends_round_and_workers(folder: Path, tmp_path: Path, times: int) -> None:
    """A terminal sends it to every process of the command, workers among them; people may be impatient."""
    out, endless = tmp_path / "m.boxloop", ["--tol", 0, "--max-iter", 1_000_000]
    arguments = ["fit", folder, *FIT, *endless, "--workers", 1, "-o", out]
    code, printed, shown = signalled(arguments, signal.SIGINT, r"[1-9]\d*/1000000", True, times)
    assert code == 130, shown
    assert printed == ""
    assert "Traceback" not in shown
    assert shown.count("Interrupted.") == 1
    assert load(out).interrupted_
