"""The estimator of energy-based models. z-scores below 4 are a failure rate of 6e-5 each."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor, nn

from boxloop import FitWarning, GaussianMixture, compare, mega
from boxloop.criticise import First, Power, Second
from boxloop.data import ArraySource
from boxloop.estimators import EnergyBasedModel
from boxloop.fit import Trainer
from boxloop.numeric import generator
from boxloop.persist import ModelFileError
from boxloop.sample import MALA, Target


def hills(n: int, seed: int) -> np.ndarray:
    """Two clusters on a line, far from the origin."""
    rng = np.random.default_rng(seed)
    return 100.0 + 10.0 * (rng.choice([-1.5, 1.5], size=(n, 1), p=[0.4, 0.6]) + 0.5 * rng.normal(size=(n, 1)))


SMALL = {"hidden": (16, 16), "max_iter": 150, "learning_rate": 0.02, "chains": 128, "buffer": 256, "steps": 5}


def small(**more) -> EnergyBasedModel:
    return EnergyBasedModel(**{**SMALL, "partition_chains": 1024, "random_state": 0, **more})


TINY = {"max_iter": 4, "hidden": (4,), "chains": 8, "buffer": 16, "steps": 2, "partition_chains": 64}


@pytest.fixture(scope="module")
def fitted() -> EnergyBasedModel:
    return small(max_iter=300).fit(hills(800, 0))  # settles from each of six seeds; after 150 from five


def grid() -> tuple[np.ndarray, float]:
    line = np.linspace(30.0, 170.0, 14_001)
    return line[:, None], line[1] - line[0]


def test_a_good_fit_has_converged(fitted):
    assert fitted.converged_
    assert fitted.events_ == []


def test_chains_that_do_not_reach_the_model_are_found_out():
    """Their own contrasts say little; draws annealed from the base say all."""
    with pytest.warns(FitWarning, match="has not converged"):
        fit = small(restart=1.0, steps=2, max_iter=300).fit(hills(800, 0))
    assert not fit.converged_
    assert abs(fit.contrast_) > 1.0


def test_the_density_integrates_to_one(fitted):
    """By quadrature, to within the reported error of log Z."""
    points, cell = grid()
    whole = float(np.logaddexp.reduce(fitted.score_samples(points))) + math.log(cell)
    assert abs(whole) < 4 * fitted.log_partition_error_
    assert fitted.log_partition_error_ < 0.05


def test_density_energy_and_constant_agree(fitted):
    rows = hills(20, 3)
    np.testing.assert_allclose(
        fitted.score_samples(rows), -fitted.energy_of(rows) - fitted.log_partition_, rtol=1e-12
    )
    assert fitted.score(rows) == pytest.approx(fitted.score_samples(rows).mean())


def test_it_beats_a_gaussian_on_held_out_rows(fitted):
    models = {"energy": fitted, "gaussian": GaussianMixture(1).fit(hills(800, 0))}
    found = compare(models, hills(800, 1))
    assert found.best == "energy"
    assert np.isfinite(found.aic).all()


def test_draws_are_of_the_fitted_density(fitted):
    points, _ = grid()
    share = np.exp(-fitted.energy_of(points) - np.logaddexp.reduce(-fitted.energy_of(points)))
    drawn = fitted.sample(4000)
    assert drawn.shape == (4000, 1)
    for power in (1, 2, 3):
        value, exact = (drawn[:, 0] - 100.0) ** power, share @ (points[:, 0] - 100.0) ** power
        # resampled chains share ancestors: the effective number is that of the weights, no fewer than half of them
        assert abs(value.mean() - exact) < 4 * value.std() / 2000**0.5
    assert len(np.unique(drawn)) > 0.99 * len(drawn)


@pytest.mark.filterwarnings("ignore:the log-likelihood per row would still rise")  # few iterations
def test_units_do_not_matter():
    rows = hills(200, 0)
    one, other = small(max_iter=20).fit(rows), small(max_iter=20).fit(1e-6 * (rows - 7.0))
    moved = other.score_samples(1e-6 * (rows - 7.0)) + math.log(1e-6)
    np.testing.assert_allclose(moved, one.score_samples(rows), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:the log-likelihood per row would still rise")  # few iterations
@pytest.mark.filterwarnings("ignore:a few nodes carry nearly all")  # of the fourth moment, by rounding
def test_criticism_by_moments(fitted):
    rows = hills(500, 5)
    good = mega(fitted, rows, functions=[First(), Second(), Power(4)], draws=199)
    assert good.p_value > 1e-3
    node = good.gaps[0].node_error[0] / (fitted.model_.draws.std() / len(fitted.model_.draws) ** 0.5)
    assert 0.2 < float(node) < 2.5  # 8 batches tell a standard deviation within that, but for 1e-4
    gaussian = small(max_iter=0, partition_chains=4096).fit(hills(800, 0))
    bad = mega(gaussian, hills(2000, 6), functions=[Power(4)], draws=199)
    assert bad.p_value < 0.02


def test_training_errors_are_not_claimed(fitted):
    with pytest.raises(TypeError, match="parameter error of EnergyModel cannot be computed"):
        mega(fitted, hills(50, 5), train=hills(50, 6))


class Quartic(nn.Module):
    """It confines itself."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([0.0, 0.0, -1.0]))

    def forward(self, rows: Tensor) -> Tensor:
        x = rows[:, 0]
        return self.theta[0] * x + self.theta[1] * x**2 + self.theta[2].exp() * x**4


@pytest.mark.filterwarnings("ignore:.*has not converged")
@pytest.mark.parametrize("kernel", ["mala", "random_walk", "hmc", lambda f, h: MALA(h).kernel(Target(f))])
def test_a_module_without_a_base(kernel):
    module = Quartic()
    fit = small(energy=module, base=None, kernel=kernel, max_iter=40).fit(hills(300, 0))
    points, cell = grid()
    whole = float(np.logaddexp.reduce(fit.score_samples(points))) + math.log(cell)
    assert abs(whole) < 4 * fit.log_partition_error_
    assert module.theta.tolist() == [0.0, 0.0, -1.0]
    assert fit.n_parameters() == 3


@pytest.mark.filterwarnings("ignore:the log-likelihood per row would still rise")  # few iterations
def test_a_diagonal_base_and_single_precision():
    fit = small(base="diag", dtype="float32", max_iter=20).fit(np.c_[hills(200, 0), hills(200, 1)])
    assert fit.model_.parameters[0].dtype == torch.float32
    assert fit.score_samples(np.c_[hills(5, 2), hills(5, 3)]).dtype == np.float64


def test_weights_move_the_fit():
    rows = hills(400, 0)
    heavy = small().fit(rows, sample_weight=np.where(rows[:, 0] > 100.0, 5.0, 0.1))
    assert heavy.score_samples([[115.0]]) - heavy.score_samples([[85.0]]) > 2.0


def test_a_file_and_back(fitted, tmp_path):
    fitted.save(tmp_path / "e.boxloop")
    found = EnergyBasedModel.load(tmp_path / "e.boxloop")
    rows = hills(30, 8)
    assert np.array_equal(found.score_samples(rows), fitted.score_samples(rows))
    assert np.array_equal(found.sample(3), fitted.sample(3))
    assert found.get_params() == {**fitted.get_params(), "device": "cpu"}
    assert found.contrasts_ == fitted.contrasts_


@pytest.mark.filterwarnings("ignore:.*has not converged")
def test_files_of_others_are_refused(fitted, tmp_path):
    GaussianMixture(1).fit(hills(50, 0)).save(tmp_path / "g.boxloop")
    with pytest.raises(ModelFileError, match="'GaussianMixture'"):
        EnergyBasedModel.load(tmp_path / "g.boxloop")
    own = small(energy=Quartic(), base=None, max_iter=2).fit(hills(50, 0))
    with pytest.raises(ModelFileError, match="only the default energy"):
        own.save(tmp_path / "own.boxloop")


class Stop(Exception):
    """Instead of a kill."""


def interrupting(monkeypatch, when: int, what: type[BaseException]) -> None:
    step = Trainer.__call__

    def counted(trainer, state):
        if state.count == when:
            raise what
        return step(trainer, state)

    monkeypatch.setattr(Trainer, "__call__", counted)


@pytest.mark.filterwarnings("ignore:the log-likelihood per row would still rise")  # few iterations
def test_a_killed_fit_resumes_bit_for_bit(tmp_path):
    rows, path = hills(200, 0), tmp_path / "fit.boxloop"
    whole = small(max_iter=30).fit(rows)
    with pytest.MonkeyPatch.context() as patch:
        interrupting(patch, 11, Stop)
        with pytest.raises(Stop):
            small(max_iter=30, checkpoint=path).fit(rows)
    again = small(max_iter=30, checkpoint=path).fit(rows)
    assert again.contrasts_ == whole.contrasts_
    assert all(
        torch.equal(a, b) for a, b in zip(again.model_.parameters, whole.model_.parameters, strict=True)
    )
    with pytest.raises(ModelFileError, match="'rows'"):
        small(max_iter=30, checkpoint=path).fit(rows + 1.0)
    with pytest.raises(ModelFileError, match="'steps'"):
        small(max_iter=30, checkpoint=path, steps=6).fit(rows)
    with pytest.raises(ValueError, match="integer random_state"):
        small(checkpoint=path, random_state=None).fit(rows)


def test_ctrl_c_keeps_the_last_update(monkeypatch):
    interrupting(monkeypatch, 7, KeyboardInterrupt)
    with pytest.warns(FitWarning, match="interrupted after iteration 7"):
        fit = small().fit(hills(200, 0))
    assert fit.interrupted_
    assert not fit.converged_
    assert fit.n_iter_ == 7
    assert np.isfinite(fit.score(hills(20, 1)))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.array([[1.0, np.nan], [2.0, 3.0]]), "NaN"),
        (np.array([[1.0, np.inf], [2.0, 3.0]]), "column 'x1' holds an infinite value"),
        (np.zeros((0, 2)), "0 sample"),
        (np.ones((1, 2)), "at least 2 rows"),
        (np.c_[np.arange(9.0), np.ones(9)], "column 'x1' is constant"),
        (
            ArraySource(torch.tensor([[1.0, 2.0], [torch.nan, 3.0]]).double()),
            "column 'x0' has a missing value",
        ),
    ],
)
def test_rows_that_cannot_be_fitted(rows, message):
    with pytest.raises(ValueError, match=message):
        small().fit(rows)


def test_columns_of_a_file_are_those_of_the_fit(tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 2))
    np.savetxt(tmp_path / "fit.csv", X, delimiter=",", header="a,b", comments="")
    np.savetxt(tmp_path / "swapped.csv", X[:, ::-1], delimiter=",", header="b,a", comments="")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # a short fit
        fit = EnergyBasedModel(**TINY, random_state=0).fit(tmp_path / "fit.csv")
    assert fit.feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(
        ValueError, match=r"X has 2 columns \(b, a\), but EnergyBasedModel was fitted to 2 \(a, b\)"
    ):
        fit.score(tmp_path / "swapped.csv")


@pytest.mark.parametrize(
    "wrong",
    [
        {"kernel": "gibbs"},
        {"hidden": 3},
        {"base": "low"},
        {"restart": 2.0},
        {"steps": 0},
        {"learning_rate": 0.0},
        {"energy": "network"},
        {"partition_chains": 3},
        {"device": "abacus"},
        {"dtype": "float16"},
    ],
)
def test_parameters_are_checked(wrong):
    with pytest.raises(ValueError):
        small(**wrong).fit(hills(50, 0))


class Broken(nn.Module):
    """Never a number."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1))

    def forward(self, rows: Tensor) -> Tensor:
        return self.theta * rows[:, 0] * torch.nan


def test_energies_that_cannot_be_trained():
    with pytest.raises(FloatingPointError, match="10 steps in a row"):
        small(energy=Broken()).fit(hills(50, 0))
    with pytest.raises(ValueError, match="one number per row"):
        small(energy=nn.Linear(1, 1)).fit(hills(50, 0))


def test_calls_that_make_no_sense(fitted):
    with pytest.raises(ValueError, match="n_samples"):
        fitted.sample(0)
    with pytest.raises(ValueError, match="features"):
        fitted.score_samples(np.ones((2, 3)))
    with pytest.raises(ValueError, match="NaN"):
        fitted.score_samples([[np.nan]])
    with pytest.raises(Exception, match="not fitted"):
        EnergyBasedModel().sample()


@pytest.mark.filterwarnings("ignore:the log-likelihood per row would still rise")  # few iterations
def test_seeds_decide():
    rows = hills(100, 0)
    one, two = (EnergyBasedModel(**TINY, random_state=3).fit(rows) for _ in range(2))
    assert np.array_equal(one.score_samples(rows), two.score_samples(rows))
    other = EnergyBasedModel(**TINY, random_state=generator(4)).fit(rows)
    assert not np.array_equal(one.score_samples(rows), other.score_samples(rows))
    assert clone(one).get_params() == one.get_params()


@pytest.mark.filterwarnings("ignore:.*has not converged")
def test_few_weights_are_reported():
    """An energy of steep spikes that annealing in few chains cannot follow."""

    class Spikes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta = nn.Parameter(torch.zeros(1))

        def forward(self, rows: Tensor) -> Tensor:
            return 2000.0 * (rows[:, 0] - 3.0) ** 2 + 0.0 * self.theta

    fit = small(energy=Spikes(), max_iter=1, partition_chains=16, kernel=stuck)
    with pytest.warns(FitWarning, match="few weights dominate"):
        fit.fit(hills(50, 0))


def stuck(f, scale):
    """Chains that hardly move."""
    return MALA(1e-9).kernel(Target(f))


@pytest.mark.filterwarnings("ignore::boxloop.FitWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([EnergyBasedModel(**TINY, random_state=0)])
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.parametrize("iterations", [1, 10])
def test_a_fit_that_has_hardly_begun_has_not_converged(iterations):
    """At the start V is zero, and so is its mean over anything: the mean energies agree before anything is learned."""
    with pytest.warns(FitWarning, match="would still rise by about"):
        fit = small(max_iter=iterations).fit(hills(800, 0))
    assert abs(fit.contrast_) < 0.05
    assert not fit.converged_


def test_rows_of_the_base_need_no_training():
    rows = np.random.default_rng(0).normal(size=(400, 2))
    assert small(max_iter=1).fit(rows).converged_
