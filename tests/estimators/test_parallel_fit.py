"""Estimators fitted by several real processes, started by torchrun, are those of one process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from estimators import parallel_fit_cases as cases

SIZE = 3
Found = dict[str, np.ndarray]
# Trainers are held against one process in every run (tests/fit/test_parallel.py), whole fits in the slow suite.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # fits this short warn


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where three processes left what they found."""
    place = tmp_path_factory.mktemp("ranks")
    cases.write_rows(place)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={SIZE}"]
    done = subprocess.run(
        [*launch, cases.__file__, str(place)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[Found]:
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(SIZE)]


def part(found: Found, case: str) -> Found:
    return {key.removeprefix(f"{case}/"): value for key, value in found.items() if key.startswith(f"{case}/")}


def same(several: Found, one: dict[str, object]) -> None:
    assert several.keys() >= one.keys()
    for name, value in one.items():
        wanted = np.asarray(value)
        size = float(np.nanmax(np.abs(wanted)))
        np.testing.assert_allclose(several[name], wanted, rtol=1e-10, atol=1e-10 * size, err_msg=name)


@pytest.mark.parametrize("case", cases.CASES)
def test_several_processes_fit_as_one(folder: Path, ranks: list[Found], case: str) -> None:
    one = cases.CASES[case](folder)
    for found in ranks:
        same(part(found, case), one)


def test_a_checkpoint_is_written_by_one_process_and_continued_by_all(ranks: list[Found]) -> None:
    one = cases.coded(cases.autoencoder().fit(cases.X))
    for found in ranks:
        mine = part(found, "checkpoint")
        assert bool(mine["interrupted"])
        assert int(mine["cut"]) == 1
        assert int(mine["iterations"]) == 5  # that of Ctrl-C is done again
        same(mine, one)
    assert [int(part(found, "checkpoint")["saves"]) for found in ranks] == [2, 0, 0]


def test_one_process_goes_on_from_the_checkpoint_of_several(folder: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(folder / "half.boxloop", tmp_path / "fit.boxloop"))
    alone = cases.coded(cases.autoencoder(checkpoint=path).fit(cases.X))
    same(
        {name: np.asarray(value) for name, value in alone.items()},
        cases.coded(cases.autoencoder().fit(cases.X)),
    )


def test_progress_is_shown_by_one_process(ranks: list[Found]) -> None:
    said = [int(part(found, "shown")["said"]) for found in ranks]
    assert said[0] > 0
    assert said[1:] == [0, 0]


@pytest.mark.parametrize("case", ["other rows", "other seeds", "fewer rows"])
def test_processes_that_do_not_agree_are_refused(ranks: list[Found], case: str) -> None:
    for found in ranks:
        assert "do not train the same model on the same rows" in str(part(found, case)["error"])


def test_a_group_of_the_user_is_left_alone_outside_the_block(ranks: list[Found]) -> None:
    """Every process fitted rows of its own before, as if there were no others; and the group outlives the block."""
    for rank, found in enumerate(ranks):
        same(part(found, "apart"), cases.coded(cases.autoencoder().fit(np.roll(cases.X, rank, 1) + rank)))
        assert bool(part(found, "kept")["group"])
