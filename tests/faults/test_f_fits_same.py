"""Faults 24 and 25: the same rows and seed give the same fit, whatever else the machine does."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from boxloop import GaussianMixture, MultinomialMixture, PoissonMixture
from boxloop.data import ArraySource, open_source, write_table
from estimators.cases import CASES, Case, assert_same, blobs, every, over, parameters


@every
def test_f24_global_random_state(case: Case) -> None:
    X = case.rows(150)

    def results(noise: int) -> list[np.ndarray]:
        out = []
        np.random.seed(noise)  # noqa: NPY002
        torch.manual_seed(noise)
        for method in ("em", "online", "gradient"):
            estimator = case.make(random_state=3, method=method, max_iter=3 if method != "em" else 100).fit(X)
            np.random.rand(noise)  # noqa: NPY002
            torch.rand(noise)
            out += [*parameters(estimator).values(), estimator.sample(20)[0], estimator.transform(X)]
        return out

    for one, other in zip(results(1), results(2), strict=True):
        np.testing.assert_array_equal(one, other)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    case.make(random_state=None, max_iter=500).fit(X).sample(3)
    np.testing.assert_array_equal(np.random.get_state()[1], state[0], "no global stream is drawn from")  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), state[1])


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def options(case: Case) -> dict[str, Any]:
    return {"tol": 1e-6, "max_iter": 500} | ({"solver": "em"} if case.name == "ppca" else {})


@every
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_f25_threads(case: Case) -> None:
    """Tiles of 8192 rows are large enough for torch to share them among threads; half of them have missing values."""
    X = case.rows(8500)
    X[:4000][np.random.default_rng(0).random((4000, X.shape[1])) < 0.02] = np.nan
    start = case.quick(warm_start=True, **options(case)).fit(X[:300]).set_params(max_iter=2, tol=0.0)
    found = []
    for n in (1, 2):
        with threads(n):
            found.append(copy.deepcopy(start).fit(X))
    assert_same(found[0], found[1], rtol=1e-10)
    np.testing.assert_allclose(found[0].transform(X), found[1].transform(X), rtol=1e-9, atol=1e-12)


def test_f25_threads_do_not_choose_another_start() -> None:
    X, found = blobs(250, gap=2.0), []
    for n in (1, 2):
        with threads(n):
            found.append(GaussianMixture(3, random_state=0, max_iter=500).fit(X))
    assert_same(found[0], found[1], rtol=1e-10)


@every
def test_f25_chunks(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = case.rows(1500)
    np.save(tmp_path / "t.npy", X)
    write_table(tmp_path / "t.parquet", {f"x{j}": X[:, j] for j in range(X.shape[1])})
    expected = case.make(**options(case)).fit(ArraySource(torch.from_numpy(X)))
    for tile in (1500, 64):
        for module in ("source", "stream"):
            monkeypatch.setattr(f"boxloop.data.{module}.tile_rows", lambda d, tile=tile: tile)
        for name in ("t.npy", "t.parquet"):
            source = open_source(tmp_path / name, memory=0)
            assert not isinstance(source, ArraySource)
            assert len(list(source.chunks())) == -(-1500 // tile)
            assert_same(case.make(**options(case)).fit(source), expected, rtol=1e-10)


@over([case for case in CASES if case.kind in (MultinomialMixture, PoissonMixture)])
def test_f25_one_chunk_or_many_of_sparse_counts(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    X = case.rows(1500)
    expected = case.make(**options(case)).fit(X)
    for tile in (1500, 100):
        monkeypatch.setattr("boxloop.data.sparse.TILE_ROWS", tile)
        assert_same(case.make(**options(case)).fit(sparse.csr_array(X)), expected, rtol=1e-10)
