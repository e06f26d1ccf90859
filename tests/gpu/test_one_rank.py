"""All that processes add up goes through a real backend: gloo here, NCCL where there is a card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu import one_rank

needs_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=needs_card)]
)
def test_what_is_added_up_lies_where_the_fit_does_and_comes_back_as_it_was(
    device: str, tmp_path: Path
) -> None:
    tests = str(Path(one_rank.__file__).parents[1])
    variables = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    done = subprocess.run(
        [sys.executable, one_rank.__file__, str(tmp_path), device],
        env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join([tests, *sys.path])},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "said.json").read_text())
    assert said["alone"] == 0
    kinds = {f"{device} torch.float64", f"{device} torch.int64"}
    assert set(said["sent"]) == kinds
    assert min(said["sent"].values()) > 10
    assert ("nccl" if device == "cuda" else "gloo") in said["backend"]
    alone, talking = (dict(np.load(tmp_path / f"{name}.npz")) for name in ("alone", "talking"))
    assert alone.keys() == talking.keys()
    for name, value in alone.items():
        # On a card, one process alone replays graphs of its steps.
        close = {"rtol": 1e-8, "atol": 1e-10} if device == "cuda" else {"rtol": 0.0, "atol": 0.0}
        np.testing.assert_allclose(talking[name], value, err_msg=name, **close)
