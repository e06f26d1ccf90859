"""Training shared by several real processes is the training of one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from boxloop.fit import SINGLE_PROCESS, Workers, current_workers, distributed
from fit import distributed_cases as cases

SIZE = 3
Found = dict[str, np.ndarray]


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """What each of three processes found; the last one kills itself in the end."""
    folder = tmp_path_factory.mktemp("ranks")
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(SIZE)}
    command = [sys.executable, cases.__file__, str(folder)]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.stdout == f"{[0, 0, -signal.SIGKILL]}\n", done.stderr
    return [dict(np.load(Path(folder) / f"{rank}.npz")) for rank in range(SIZE)]


def part(found: Found, case: str) -> Found:
    return {key.removeprefix(f"{case}/"): value for key, value in found.items() if key.startswith(f"{case}/")}


@pytest.mark.parametrize("size", ["", "two "])
@pytest.mark.parametrize("case", cases.CASES)
def test_several_processes_train_as_one(ranks: list[Found], case: str, size: str) -> None:
    one = {name: np.asarray(value) for name, value in cases.CASES[case](SINGLE_PROCESS).items()}
    for found in ranks[: 2 if size else SIZE]:
        several = part(found, size + case)
        assert several.keys() == one.keys()
        for name, value in one.items():
            np.testing.assert_allclose(several[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


def test_a_step_that_is_not_finite_on_one_process_is_refused_on_all(ranks: list[Found]) -> None:
    lost = cases.trained(cases.made(cases.Broken(SINGLE_PROCESS), SINGLE_PROCESS))
    assert lost["slower"] < 1.0  # the case is one where steps are refused
    assert {float(part(found, "broken")["slower"]) for found in ranks} == {lost["slower"]}


def test_all_processes_stop_at_the_same_round(ranks: list[Found]) -> None:
    """The mean of validations falls until the fourth, and ends training two epochs later, whatever each one says."""
    asked = [int(part(found, "drifting")["asked"]) for found in ranks]
    assert asked == [6] * SIZE
    points = [part(found, "drifting")["point"] for found in ranks]
    assert all((point == points[0]).all() for point in points)


@pytest.mark.parametrize(("case", "iterations"), [("ctrl-c", 1), ("late ctrl-c", 3)])
def test_ctrl_c_on_one_process_ends_all_after_the_same_round(
    ranks: list[Found], case: str, iterations: int
) -> None:
    """Iterations are of four and two steps: the sixth step is in the second, and the twelfth in the last."""
    for found in ranks:
        mine = part(found, case)
        assert bool(mine["interrupted"])
        assert int(mine["iterations"]) == iterations
    points = [part(found, case)["point"] for found in ranks]
    assert all((point == points[0]).all() for point in points)


def test_processes_see_whether_they_are_alike(ranks: list[Found]) -> None:
    for found in ranks:
        assert bool(part(found, "unlike")["same"])
        assert not bool(part(found, "unlike")["other"])


def test_a_process_that_is_stuck_is_an_error_after_the_timeout(ranks: list[Found]) -> None:
    for found in ranks[:2]:
        mine = part(found, "stuck")
        assert float(mine["seconds"]) >= 0.9 * cases.WAIT
        assert "imed out" in str(mine["error"]) or "timeout" in str(mine["error"]).lower()


def test_a_process_that_dies_is_an_error_at_once(ranks: list[Found]) -> None:
    for found in ranks[:2]:
        assert str(part(found, "dead")["error"])
        assert float(part(found, "dead")["seconds"]) < 30.0  # half of the timeout


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [1, 2, 7, 20])
def test_shares_are_all_rows_and_their_mean_that_of_all(n: int, size: int) -> None:
    value = torch.arange(n).double() ** 2
    shares = [Workers(rank, size).local_rows(n) for rank in range(size)]
    mean = sum(float(value[mine].sum()) / count for mine, count in shares) / size
    assert mean == pytest.approx(float(value.mean()), rel=1e-12)
    if n >= size:
        assert torch.cat([value[mine] for mine, _ in shares]).tolist() == value.tolist()
        lengths = [mine.stop - mine.start for mine, _ in shares]
        assert max(lengths) - min(lengths) <= 1


def test_one_process_is_alone() -> None:
    with distributed() as workers:
        assert workers == SINGLE_PROCESS == current_workers()
        assert not torch.distributed.is_initialized()
