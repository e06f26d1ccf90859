"""What travels: functions out, statistics back, and nothing else."""

from collections.abc import Callable, Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import boxloop
from boxloop.criticise import mega
from boxloop.data import ConcatenatedRows, DaskSource, PartialSum, open_source, pickle_value, unpickle_value
from boxloop.fit import z_estimate
from boxloop.select import outliers, scores

KINDS = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]


def back(value: Any, **more: Any) -> Any:
    return unpickle_value(pickle_value(value, **more))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (3, 4), (2, 0, 3)], ids=str)
def test_kinds(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    value = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3.0).to(kind)
    found = back(value)
    assert found.dtype == kind
    assert found.shape == value.shape
    assert torch.equal(found, value)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_layouts() -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    views = [
        whole.mT,
        whole[::2],
        whole[:, 1:5:2],
        whole[1],
        whole[:, 2],
        torch.ones(1).expand(5),
        whole.flip(0),
    ]
    views += [
        torch.view_as_complex(torch.randn(3, 2)).conj(),
        torch.randn(3, dtype=torch.complex64).conj().imag,
    ]
    for view in views:
        assert torch.equal(back(view), view)
    assert back(whole.mT).stride() == whole.mT.stride()  # columns-major stays so
    assert back(torch.full((), torch.nan)).isnan()
    assert torch.equal(back(torch.eye(3).to_sparse_csr()).to_dense(), torch.eye(3))


def test_a_view_takes_its_own_values_only() -> None:
    big = torch.zeros(100_000)
    for view in (big[:3], big.view(100, 1000)[:, 0], big[:3].clone().requires_grad_(), big[:3].bfloat16()):
        assert len(pickle_value(view)) < 2000
    assert len(pickle_value(big[:3].requires_grad_(), detached=True)) < 2000


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 100_000])
def test_masks_take_a_bit_a_row(n: int) -> None:
    mask = torch.rand(n, generator=torch.Generator().manual_seed(0)) < 0.3
    assert torch.equal(back(mask), mask)
    assert torch.equal(back(mask[::2]), mask[::2])
    assert len(pickle_value(mask)) < n / 8 + 500
    back(mask).logical_not_()


def test_memory_is_nobody_elses() -> None:
    """What is written into a tensor that has travelled is seen by nobody: not by the sender, nor by a second copy."""
    value = torch.arange(6.0)
    data = pickle_value((value, value[:3], value))
    first, second = unpickle_value(data), unpickle_value(data)
    first[0].mul_(0.0).add_(7.0)
    assert torch.equal(value, torch.arange(6.0))
    assert torch.equal(second[0], value)
    assert torch.equal(first[1], value[:3])
    assert first[2] is first[0]  # one that was there twice is still one
    assert torch.equal(unpickle_value(data)[0], value)
    first[1].resize_(100).fill_(1.0)  # as buffers are
    assert torch.equal(
        unpickle_value(pickle_value(torch.empty(0))).resize_(2).fill_(3.0), torch.full((2,), 3.0)
    )


def test_gradients() -> None:
    leaf = torch.ones(2, requires_grad=True)
    assert back(leaf).requires_grad
    assert back(leaf).is_leaf
    assert not back(leaf, detached=True).requires_grad
    assert not back(leaf * 2.0, detached=True).requires_grad
    with pytest.raises(RuntimeError, match="has no gradient"):
        pickle_value(leaf * 2.0)
    layer = nn.Linear(2, 1)
    found = back(layer)
    assert isinstance(found.weight, nn.Parameter)
    assert torch.equal(found.weight, layer.weight)
    assert found.weight.data_ptr() != layer.weight.data_ptr()


def test_a_sum_has_no_gradient() -> None:
    """In memory one may differentiate through a sum; on a cluster that is refused, never forgotten."""
    source, point = (
        open_source(da.ones((6, 2), chunks=(2, 2))),
        torch.ones(2, dtype=torch.float64, requires_grad=True),
    )
    with pytest.raises(RuntimeError, match="has no gradient"):
        (twice := point * 2.0, source.reduce(lambda rows, weight: ConcatenatedRows.of(rows @ twice)))
    found = source.reduce(lambda rows, weight: ConcatenatedRows.of(rows @ point)).concatenate()
    assert not found.requires_grad  # so that backward() raises
    with torch.no_grad():
        twice = (point * 2.0).requires_grad_()
        assert torch.equal(
            source.reduce(lambda rows, weight: ConcatenatedRows.of(rows @ twice)).concatenate(),
            torch.full((6,), 4.0).double(),
        )


def test_grad_mode_travels() -> None:
    source = open_source(da.ones((6, 2), chunks=(2, 2)))

    def on(rows: Tensor, weight: Tensor) -> ConcatenatedRows:
        return ConcatenatedRows.of(torch.tensor([torch.is_grad_enabled()]))

    assert source.reduce(on).concatenate().all()
    with torch.no_grad():
        assert not source.reduce(on).concatenate().any()


def test_a_source_stays() -> None:
    """A function that mentions the source takes its shape along, not its rows, and cannot read it."""
    source = open_source(da.from_array(np.ones((100_000, 2)), chunks=(50_000, 2)))
    assert isinstance(source, DaskSource)
    assert len(pickle_value(lambda: source)) < 3000
    found = unpickle_value(pickle_value(lambda: source))()
    assert (found.n_rows, found.names) == (source.n_rows, source.names)
    with pytest.raises(ValueError, match="no rows"):
        found.reduce(lambda rows, weight: ConcatenatedRows.of(rows))


@pytest.fixture
def bytes_sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Bytes of every function that goes out, and of every sum of a partition or of several that comes back."""
    seen: dict[str, list[int]] = {"out": [], "back": []}

    def counted(value: object, **more: Any) -> bytes:
        data = pickle_value(value, **more)
        seen["back" if isinstance(value, PartialSum) else "out"].append(len(data))
        return data

    monkeypatch.setattr("boxloop.data.dask.reduce.pickle_value", counted)
    return seen


MODELS = {f"{k}": boxloop.FactorAnalysis(k).fit_covariance(np.eye(3), n_samples=9) for k in (1, 2)}
GROUPS, MOST_HELD = 1000, 4000
"""Of log-densities, and most rows that calibrate, so that tables of these tests are long."""

USES: dict[str, Callable[[Any], Any]] = {
    "factors": lambda table: boxloop.FactorAnalysis(1).fit(table),
    "mixture": lambda table: boxloop.GaussianMixture(2, means_init=[[0.0] * 3, [3.0] * 3], tol=0.1).fit(
        table
    ),
    "race of starts": lambda table: boxloop.GaussianMixture(2, random_state=0, tol=0.1).fit(table),
    "mega": lambda table: mega(
        boxloop.FactorAnalysis(1).fit_covariance(np.eye(3), n_samples=9), table, draws=0
    ),
    "equations": lambda table: z_estimate(lambda theta, rows: rows - theta, table, [0.0, 0.0, 0.0]),
    "two views": lambda table: boxloop.RelevantFeatures(1, x_features="linear", y_features="linear").fit(
        table[:, :2], table[:, 2:]
    ),
    "comparison": lambda table: boxloop.compare(MODELS, table),
    "choice": lambda table: boxloop.ModelSearchCV(
        boxloop.FactorAnalysis(), {"n_components": [1, 2]}, cv=2
    ).fit(table),
    "outliers": lambda table: boxloop.OutlierDetector(boxloop.FactorAnalysis(1), calibration=0.1).fit(table),
}


@pytest.mark.parametrize("name", USES)
def test_only_statistics_travel(
    name: str, bytes_sent: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many rows, and no more travels: nothing but statistics, a sample, and the first rows to look at."""
    sizes, brought, own = [], [0], DaskSource.fetch_rows

    def counted(self: DaskSource, first: int) -> Iterator[Tensor]:
        for tile in own(self, first):
            brought[0] += len(tile)
            yield tile

    monkeypatch.setattr(DaskSource, "fetch_rows", counted)
    monkeypatch.setattr(scores, "MAX_GROUPS", GROUPS)
    monkeypatch.setattr(outliers, "MAX_CALIBRATION", MOST_HELD)
    for n in (50_000, 100_000):
        rows = np.random.default_rng(0).normal(size=(n, 3)) + 3.0 * (np.arange(n)[:, None] % 2)
        brought[0] = 0
        bytes_sent["out"].clear()
        bytes_sent["back"].clear()
        USES[name](da.from_array(rows, chunks=(n // 5, 3)))
        sizes.append((max(bytes_sent["out"]), max(bytes_sent["back"]), brought[0]))
    assert sizes[1][0] < 1.1 * sizes[0][0] < 250_000  # the places of a sample
    assert sizes[1][1] < 1.1 * sizes[0][1]  # a sample by lot is of about the size that was asked for
    assert (
        sizes[1][2] == sizes[0][2] < (10_000 if name == "choice" else 5000)
    )  # a choice looks first for each fit
    if name in ("factors", "mixture", "equations", "two views"):
        assert sizes[1][1] < (3000 if name != "mixture" else 400_000)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.filterwarnings("ignore:.*iteration limit|.*max_iter|.*has not converged")
def test_a_network_fetches_every_row_once_a_pass(passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether weights differ, and which rows are held out, is found where the rows are."""
    n, brought, own = 3000, [0], DaskSource.fetch_rows
    rows = da.from_array(np.random.default_rng(0).normal(size=(n, 3)), chunks=(600, 3))

    def counted(self: DaskSource, first: int) -> Iterator[Tensor]:
        for tile in own(self, first):
            brought[0] += len(tile)
            yield tile

    monkeypatch.setattr(DaskSource, "fetch_rows", counted)
    boxloop.VariationalAutoencoder(1, hidden=(4,), max_iter=passes, random_state=0).fit(rows)
    assert passes * n <= brought[0] < (passes + 0.5) * n


def test_scores_bring_back_two_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(300, 2))
    fit = boxloop.GaussianMixture(2, random_state=0).fit(rows)
    sent, plain = [], DaskSource.reduce

    def noted(self: DaskSource, function: Any) -> Any:
        sent.append(plain(self, function))
        return sent[-1]

    monkeypatch.setattr(DaskSource, "reduce", noted)
    parts = da.from_array(rows, chunks=(70, 2))
    for judge in (fit.score, fit.aic, fit.bic):
        assert judge(parts) == pytest.approx(judge(rows), rel=1e-12)
    assert [sum(leaf.numel() for _, leaf in value.leaves()) for value in sent] == [2, 2, 2]
