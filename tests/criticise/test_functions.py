"""Test functions: values against naive loops, expectations against draws, gaps in the table, batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from boxloop.criticise import (
    Below,
    Custom,
    First,
    Fourier,
    Lagged,
    ModelStandardisation,
    Power,
    Second,
    Statistic,
)
from boxloop.distributions import (
    Bernoulli,
    DiagonalGaussian,
    FullGaussian,
    LowRankGaussian,
    Poisson,
    SphericalGaussian,
    TiedGaussian,
)
from boxloop.numeric import generator, normal

D = 3
FUNCTIONS = [
    First(),
    Second(),
    Second(about="zero"),
    Power(3),
    Power(4, pairs=[("b", 2)], projections=2),
    Fourier(6),
    Below((0.2, 0.9)),
    Below(thresholds={"c": [1.5, 2.5, 2.0], 0: np.array([0.0])}),
    Custom(lambda rows: rows.amax(1), name="largest"),
]


def frame() -> ModelStandardisation:
    return ModelStandardisation(
        ("a", "b", "c"),
        torch.tensor([0.5, -1.0, 2.0]).double(),
        torch.tensor([1.0, 2.0, 0.5]).double(),
        generator(0),
    )


def factors(m: int) -> torch.Tensor:
    root = 0.4 * normal((m, D, D), generator(3))
    return torch.linalg.cholesky(root @ root.mT + 0.5 * torch.eye(D).double())


DISTRIBUTIONS = {
    "full": lambda: FullGaussian(normal((2, D), generator(1)), factors(2)),
    "tied": lambda: TiedGaussian(normal((2, D), generator(1)), factors(1)[0]),
    "diagonal": lambda: DiagonalGaussian(
        normal((2, D), generator(1)), torch.rand(2, D, generator=generator(2)).double()
    ),
    "spherical": lambda: SphericalGaussian(
        normal((2, D), generator(1)), torch.tensor([[0.5], [1.5]]).double()
    ),
    "low rank": lambda: LowRankGaussian(
        normal((D,), generator(1)), normal((D, 2), generator(2)), torch.ones(D).double()
    ),
    "poisson": lambda: Poisson(torch.tensor([[1.0, 4.0, 0.3], [2.0, 0.5, 3.0]]).double()),
    "bernoulli": lambda: Bernoulli(torch.tensor([[0.1, 0.5, 0.9], [0.3, 0.3, 0.6]]).double()),
}
table = pytest.mark.parametrize(
    "function", FUNCTIONS, ids=lambda f: type(f).__name__ + str(getattr(f, "order", ""))
)


@table
@pytest.mark.parametrize("distribution", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS.keys())
def test_expectations_are_those_of_draws(function, distribution):
    """Every entry within 5 standard errors: about 250 entries in all, a false alarm in 7,000 runs."""
    statistic, made = function.prepare(frame()), distribution()
    m = made.mean.shape[0]
    weight = torch.tensor([0.3, 0.7]).double()[:m] / (1.0 if m == 2 else 0.3)
    n = 40_000
    drawn = made.draw(n, generator(9))
    seen = [statistic.sum_rows(part, torch.ones(n).double()) for part in drawn]
    mean = sum(w * t.mean for w, t in zip(weight, seen, strict=True))
    error = sum((w * t.error).square() for w, t in zip(weight, seen, strict=True)).sqrt()
    found = statistic.sum_nodes(made, weight, generator(10), None).value
    exact = statistic.forward_moment(made, weight)
    if exact is not None:
        torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)
    slack = 5 * error * (2.0 if exact is None else 1.0)
    assert bool(((found - mean).abs() <= slack + 1e-9).all())


@table
def test_a_batch_of_tables_or_of_weights_is_each_of_them(function):
    statistic = function.prepare(frame())
    rows, weight = normal((3, 50, D), generator(4)), torch.rand(3, 50, generator=generator(5)).double()
    together, shared = statistic.sum_rows(rows, weight), statistic.sum_rows(rows[0], weight)
    for i in range(3):
        for batch, alone in (
            (together, statistic.sum_rows(rows[i], weight[i])),
            (shared, statistic.sum_rows(rows[0], weight[i])),
        ):
            for part in ("count", "first", "square", "squared_weight"):
                torch.testing.assert_close(
                    getattr(batch, part)[i], getattr(alone, part), rtol=1e-12, atol=1e-12
                )


@table
def test_entries_are_what_the_tally_adds(function):
    statistic, rows = function.prepare(frame()), normal((40, D), generator(4))
    entries = statistic.evaluate(rows)
    assert entries.shape == (40, len(statistic.label_entries()))
    torch.testing.assert_close(
        entries.sum(0), statistic.flatten(statistic.sum_rows(rows, torch.ones(40).double()).first)
    )


@table
def test_weights_are_repetitions(function):
    statistic, rows = function.prepare(frame()), normal((30, D), generator(4))
    count = torch.randint(0, 4, (30,), generator=generator(6))
    weighted = statistic.sum_rows(rows, count.double())
    repeated = statistic.sum_rows(rows.repeat_interleave(count, 0), torch.ones(int(count.sum())).double())
    torch.testing.assert_close(weighted.mean, repeated.mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "function", [First(), Second(), Power(3), Below((0.5,))], ids=lambda f: type(f).__name__
)
def test_missing_values_leave_out_their_own_entries(function):
    statistic, rows = function.prepare(frame()), normal((60, D), generator(4))
    rows[torch.rand(60, D, generator=generator(7)) < 0.3] = torch.nan
    tally = statistic.sum_rows(rows, torch.ones(60).double())
    entries = statistic.evaluate(rows)
    torch.testing.assert_close(statistic.flatten(tally.mean), entries.nanmean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(statistic.flatten(tally.count), (~entries.isnan()).sum(0).double())
    wanted = torch.stack(
        [column[~column.isnan()].std() / (~column.isnan()).sum().double().sqrt() for column in entries.mT]
    )
    torch.testing.assert_close(statistic.flatten(tally.error), wanted, rtol=1e-10, atol=1e-12)


def test_a_missing_column_spares_the_others():
    rows = normal((20, D), generator(4))
    rows[:, 1] = torch.nan
    seen = (
        Power(3, pairs=[("a", "c"), ("a", "b")], columns=True).prepare(frame()).evaluate(rows).isnan().any(0)
    )
    assert seen.tolist() == [False, True, False, False, False, True, True]


def test_second_moments_far_from_zero_keep_their_digits():
    far = ModelStandardisation(
        ("a", "b"), torch.tensor([1e7, -1e7]).double(), torch.ones(2).double(), generator(0)
    )
    near = ModelStandardisation(("a", "b"), torch.zeros(2).double(), torch.ones(2).double(), generator(0))
    rows, ones = normal((500, 2), generator(1)), torch.ones(500).double()
    shifted = rows + far.origin
    found, wanted = (
        Second().prepare(s).sum_rows(r, ones).mean for s, r in ((far, shifted), (near, shifted - far.origin))
    )
    torch.testing.assert_close(found, wanted, rtol=1e-14, atol=0.0)


def test_lagged_products_see_a_sequence():
    n = 2000
    noise = normal((n, D), generator(2))
    walk = noise.clone()
    for t in range(1, n):
        walk[t] += 0.5 * walk[t - 1]
    statistic = Lagged(1).prepare(
        ModelStandardisation(("a", "b", "c"), torch.zeros(D).double(), torch.ones(D).double(), generator(0))
    )
    for rows, z in ((noise, lambda v: v < 5), (walk, lambda v: v > 10)):
        tally = statistic.sum_rows(rows, torch.ones(n).double())
        assert all(z(float(v)) for v in (tally.mean / tally.error).abs())
    one = DiagonalGaussian(torch.ones(1, D).double(), torch.ones(1, D).double())
    assert statistic.forward_moment(one, torch.ones(1).double()).tolist() == [1.0] * D


def test_the_fourth_power_of_a_standard_normal_is_three():
    statistic = Power(4).prepare(
        ModelStandardisation(("a",), torch.zeros(1).double(), torch.ones(1).double(), generator(0))
    )
    distribution = FullGaussian(torch.zeros(1, 1).double(), torch.ones(1, 1, 1).double())
    assert float(statistic.forward_moment(distribution, torch.ones(1).double())) == pytest.approx(3.0)
    high = Power(6).prepare(
        ModelStandardisation(("a",), torch.zeros(1).double(), torch.ones(1).double(), generator(0))
    )
    assert float(high.forward_moment(distribution, torch.ones(1).double())) == pytest.approx(15.0)


def test_the_tally_of_one_row_has_no_error():
    sums = First().prepare(frame()).sum_rows(torch.ones(1, D).double(), torch.ones(1).double())
    assert bool(sums.error.isnan().all())


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (Power(0), "at least 1"),
        (Power(3, pairs=[("a", "nobody")]), "nobody"),
        (Power(3, pairs=[(0, 7)]), "no column 7"),
        (Fourier(0), "count must be at least 1"),
        (Fourier(3, width=-1.0), "positive"),
        (Below((0.0,)), "between 0 and 1"),
        (Below(thresholds={"nobody": [1.0]}), "nobody"),
        (Below(thresholds={"a": []}), "at least one"),
        (Below(thresholds={"a": [math.nan]}), "finite"),
        (Lagged(0), "at least 1"),
    ],
)
def test_bad_functions_say_why(function, says):
    with pytest.raises(ValueError, match=says):
        function.prepare(frame())


def test_names_of_entries():
    made = frame()
    assert First().prepare(made).label_entries() == ["a", "b", "c"]
    assert Second().prepare(made).label_entries()[:3] == ["a x a", "a x b", "a x c"]
    assert Power(3, pairs=[("a", "c")]).prepare(made).label_entries() == ["a + c", "a - c"]
    assert math.isclose(float(Below((0.5,)).prepare(made).thresholds[1]), -1.0)
    given = Below(thresholds={"c": [1.5, 2.5], 0: [0.0]}).prepare(made)
    assert given.label_entries() == ["c <= 1.5", "c <= 2.5", "a <= 0"]


def test_thresholds_count_the_rows_below_them():
    made = frame()
    statistic = Below(thresholds={"b": [-1.0, 0.5]}).prepare(made)
    rows = torch.tensor([[0.0, -1.0, 0.0], [0.0, 0.0, 0.0], [0.0, math.nan, 0.0]]).double()
    wanted = torch.tensor([[1.0, 1.0], [0.0, 1.0], [math.nan, math.nan]]).double()
    torch.testing.assert_close(statistic.evaluate(rows), wanted, equal_nan=True)


def test_thresholds_keep_their_digits():
    """They went through single precision: 0.7 lay below every 0.7, and one threshold stood for all near 1e7."""
    given = [0.7, 10_000_000.05, 10_000_000.1]
    statistic = Below(thresholds={"a": given}).prepare(frame())
    assert statistic.thresholds.tolist() == given
    assert len(set(statistic.label_entries())) == 3
    assert float(statistic.evaluate(torch.tensor([[0.7, 0.0, 0.0]]).double())[0, 0]) == 1.0


@pytest.mark.parametrize("about", ["mean", "zero"])
@pytest.mark.parametrize("missing", [False, True])
def test_sums_of_products_and_of_their_squares_are_those_of_the_entries(about, missing):
    """Whatever the origin, with weights, and with pairs of columns that are missing in some rows."""
    statistic = Second(about=about).prepare(frame())
    rows = normal((40, D), generator(1)) + 1.0
    if missing:
        rows[torch.rand(40, D, generator=generator(2)) < 0.3] = torch.nan
    weight = torch.rand(40, generator=generator(3)).double()
    found, wanted = statistic.sum_rows(rows, weight), Statistic.sum_rows(statistic, rows, weight)
    for part in ("count", "first", "square", "squared_weight"):
        torch.testing.assert_close(
            statistic.flatten(getattr(found, part)), getattr(wanted, part), rtol=1e-12, atol=1e-12
        )
