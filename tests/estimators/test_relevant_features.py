"""RelevantFeatures: canonical variables of two views, exact or learned."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn.cross_decomposition import CCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Generator, Tensor, nn

from boxloop import FitWarning, RelevantFeatures, load
from boxloop.estimators import inflate_errors
from boxloop.persist import ModelFileError
from boxloop.twoview import Expectation

Array = NDArray[np.float64]
LINEAR = {"x_features": "linear", "y_features": "linear"}


def related(n: int = 400, seed: int = 0) -> tuple[Array, Array]:
    """Three columns and two, with one strong and one weak linear relation."""
    rng = np.random.default_rng(seed)
    x, noise = rng.normal(size=(n, 3)), rng.normal(size=(n, 2))
    return x, x @ np.array([[1.0, 0.2], [0.0, 0.5], [0.0, 0.0]]) + noise


@pytest.fixture(scope="module")
def learned() -> RelevantFeatures:
    x, y = channel(2000, 0)
    return RelevantFeatures(
        3, hidden=(16,), learning_rate=0.01, max_iter=40, patience=None, random_state=0
    ).fit(x, y)


def channel(n: int, seed: int) -> tuple[Array, Array]:
    """A Gaussian channel with gamma = 0.8, in one dimension."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 1))
    return x, x + 0.5 * rng.normal(size=(n, 1))


@parametrize_with_checks([RelevantFeatures(1, **LINEAR)])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        check(estimator)


def test_linear_variables_are_those_of_scikit_learn() -> None:
    x, y = related()
    fit = RelevantFeatures(2, **LINEAR).fit(x, y)
    peer = CCA(2, scale=False, max_iter=10_000, tol=1e-13).fit(x, y)
    u, v = peer.transform(x, y)
    theirs = [np.corrcoef(u[:, i], v[:, i])[0, 1] for i in range(2)]
    np.testing.assert_allclose(fit.correlation_, theirs, atol=1e-8)
    mine, other = fit.transform(x, y)
    np.testing.assert_allclose(mine.T @ mine / len(x), np.eye(2), atol=1e-10)
    np.testing.assert_allclose(mine.T @ other / len(x), np.diag(fit.correlation_), atol=1e-10)
    np.testing.assert_allclose(fit.score(x, y), sum(theirs), atol=1e-8)


def test_inference_with_all_linear_variables_is_least_squares() -> None:
    x, y = related()
    fit = RelevantFeatures(2, **LINEAR).fit(x, y)
    design = np.column_stack([np.ones(len(x)), x])
    np.testing.assert_allclose(fit.predict(x), design @ np.linalg.lstsq(design, y)[0], atol=1e-10)


def test_loadings_are_correlations_of_columns_with_variables() -> None:
    x, y = related()
    fit = RelevantFeatures(2, **LINEAR).fit(x, y)
    u, v = fit.transform(x, y)
    for table, variables, found in zip((x, y), (u, v), fit.loadings(x, y), strict=True):
        whole = np.corrcoef(table.T, variables.T)
        np.testing.assert_allclose(found, whole[: table.shape[1], table.shape[1] :], atol=1e-10)


def test_labels_are_one_hot_on_either_side() -> None:
    x, y = related()
    labels = np.where(y[:, 0] > 0, "up", np.where(x[:, 1] > 1, "side", "down"))
    forward = RelevantFeatures(2, x_features="linear").fit(x, labels)
    back = RelevantFeatures(2, y_features="linear").fit(labels, x)
    np.testing.assert_allclose(forward.correlation_, back.correlation_, rtol=1e-10)
    assert forward.y_schema_.labels == ["down", "side", "up"]
    np.testing.assert_allclose(forward.predict(x).sum(1), 1.0, atol=1e-12)
    means = [x[labels == value].mean(0) for value in ("down", "side", "up")]
    np.testing.assert_allclose(back.predict(["down", "side", "up"]), means, atol=1e-10)


def test_two_columns_of_labels_are_a_contingency_table() -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(3, size=500)
    b = np.where(rng.random(500) < 0.5, a, rng.integers(3, size=500))
    kinds = {"x_features": "finite", "y_features": "finite"}
    fit = RelevantFeatures(2, **kinds).fit(a, b)
    table = np.histogram2d(a, b, bins=(3, 3))[0]
    statistic = stats.chi2_contingency(table, correction=False).statistic
    np.testing.assert_allclose(500 * fit.relevance_.sum(), statistic, rtol=1e-10)
    np.testing.assert_allclose(fit.predict([0, 1, 2]), table / table.sum(1, keepdims=True), atol=1e-12)


def test_weights_are_repetitions() -> None:
    x, y = related(60)
    weight = np.random.default_rng(2).integers(0, 4, size=60)
    some = RelevantFeatures(2, **LINEAR).fit(x, y, sample_weight=weight)
    many = RelevantFeatures(2, **LINEAR).fit(np.repeat(x, weight, 0), np.repeat(y, weight, 0))
    np.testing.assert_allclose(some.correlation_, many.correlation_, rtol=1e-10)
    np.testing.assert_allclose(some.predict(x), many.predict(x), rtol=1e-8, atol=1e-10)


def test_units_do_not_matter() -> None:
    x, y = related()
    plain = RelevantFeatures(2, **LINEAR).fit(x, y)
    far = RelevantFeatures(2, **LINEAR).fit(1e7 + 0.1 * x, y * [1e-8, 1e8])
    np.testing.assert_allclose(plain.correlation_, far.correlation_, rtol=1e-6)


def test_files_tensors_and_frames_are_tables_too(tmp_path: Path) -> None:
    x, y = related()
    plain = RelevantFeatures(2, **LINEAR).fit(x, y)
    pd.DataFrame(x, columns=["a", "b", "c"]).to_csv(tmp_path / "x.csv", index=False)
    np.save(tmp_path / "y.npy", y)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    for first, second in (
        (tmp_path / "x.csv", tmp_path / "y.npy"),
        (frame, pd.DataFrame(y)),
        (torch.as_tensor(x), torch.as_tensor(y)),
    ):
        found = RelevantFeatures(2, **LINEAR).fit(first, second)
        np.testing.assert_allclose(found.correlation_, plain.correlation_, rtol=1e-9)
    with pytest.raises(ValueError, match="feature names"):
        RelevantFeatures(2, **LINEAR).fit(frame, y).transform(frame.rename(columns={"a": "z"}))


def test_a_network_learns_the_variables_of_a_gaussian_channel(learned: RelevantFeatures) -> None:
    """Relevances on new rows against 0.8^n: five standard errors of a correlation, about 1e-6 a variable."""
    x, y = channel(20_000, 1)
    u, v = learned.transform(x, y)
    for i, power in enumerate((1, 2)):
        rho = np.corrcoef(u[:, i], v[:, i])[0, 1]
        ideal = 0.8 ** (power / 2)
        pair = np.column_stack([u[:, i] - u[:, i].mean(), v[:, i] - v[:, i].mean()])
        pair /= pair.std(0)
        influence = pair.prod(1) - 0.5 * rho * (pair**2).sum(1)
        assert rho < ideal + 5.0 * influence.std() / np.sqrt(len(x))
        assert rho > ideal - 0.05
    assert learned.history_["validation_relevance"][-1] > 1.2
    assert abs(np.corrcoef(u[:, 0], x[:, 0])[0, 1]) > 0.98


def test_the_same_seed_gives_the_same_fit_whatever_the_global_state() -> None:
    x, y = channel(300, 0)
    made = []
    for noise in (0, 1):
        np.random.default_rng(noise)
        torch.randn(noise + 1)
        made.append(RelevantFeatures(2, hidden=(8,), max_iter=3, patience=None, random_state=3).fit(x, y))
    np.testing.assert_array_equal(made[0].transform(x), made[1].transform(x))


def test_images_get_convolutions() -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(200, 6, 4)) + rng.normal(size=(200, 1, 1))
    fit = RelevantFeatures(2, hidden=(4,), max_iter=2, patience=None, random_state=0).fit(
        images[:, :, :2], images[:, :, 2:]
    )
    assert type(fit.model_.pair.left.part.network).__name__ == "Convolutions"  # type: ignore[attr-defined]
    assert fit.predict(images[:5, :, :2]).shape == (5, 6, 2)
    with pytest.raises(ValueError, match="shape"):
        fit.transform(images[:, :, :2].transpose(0, 2, 1))


class Squares(nn.Module):
    """Features of a user's own making."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, rows: Tensor) -> Tensor:
        """(n, 1) -> (n, 2)."""
        return torch.tanh(self.layer(torch.cat([rows], 1)))


def test_a_module_is_trained_and_saved_as_tensors(tmp_path: Path) -> None:
    x, y = channel(500, 0)
    torch_module = Squares()
    before = [value.clone() for value in torch_module.parameters()]
    fit = RelevantFeatures(
        2, x_features=torch_module, y_features="linear", max_iter=5, patience=None, random_state=0
    )
    with pytest.warns(FitWarning, match="fewer than n_features=2"):
        fit.fit(x, y)
    for value, old in zip(torch_module.parameters(), before, strict=True):
        torch.testing.assert_close(value, old)  # the user's own is left alone
    fit.save(tmp_path / "own.boxloop")
    again = RelevantFeatures.load(tmp_path / "own.boxloop", x_features=Squares())
    np.testing.assert_array_equal(fit.predict(x), again.predict(x))
    with pytest.raises(ModelFileError, match="module of yours"):
        RelevantFeatures.load(tmp_path / "own.boxloop")


@pytest.mark.parametrize("kind", ["linear", "fourier", "network", "finite"])
def test_a_file_gives_the_fit_back(kind: str, tmp_path: Path) -> None:
    x, y = channel(300, 0)
    x = x.round() if kind == "finite" else x
    fit = RelevantFeatures(
        1, x_features=kind, y_features="linear", n_fourier=10, max_iter=3, patience=None, random_state=0
    ).fit(x, y)
    fit.save(tmp_path / "fit.boxloop")
    again = load(tmp_path / "fit.boxloop")
    np.testing.assert_array_equal(fit.predict(x), again.predict(x))
    np.testing.assert_array_equal(fit.transform(x), again.transform(x))
    np.testing.assert_array_equal(fit.relevance_, again.relevance_)
    assert again.get_params()["n_features"] == 1
    assert again.y_schema_ == fit.y_schema_


def test_a_channel_draws_the_second_view_anew() -> None:
    seen: list[float] = []

    def blur(rows: Tensor, stream: Generator) -> Tensor:
        noise = torch.randn(rows.shape, generator=stream, dtype=rows.dtype, device=rows.device)
        seen.append(float(noise[0, 0]))
        return rows + 0.5 * noise

    x, _ = channel(500, 0)
    fit = RelevantFeatures(1, hidden=(8,), channel=blur, max_iter=3, patience=None, random_state=0).fit(x)
    assert len(set(seen)) == len(seen) > 3
    assert fit.correlation_[0] > 0.7
    with pytest.raises(ValueError, match="one or the other"):
        RelevantFeatures(1, channel=blur).fit(x, x)


def test_a_checkpoint_resumes_the_same_path(tmp_path: Path) -> None:
    calls = {"left": 10**9}

    def blur(rows: Tensor, stream: Generator) -> Tensor:
        calls["left"] -= 1
        if calls["left"] == 0:
            raise KeyboardInterrupt
        return rows + 0.5 * torch.randn(rows.shape, generator=stream, dtype=rows.dtype)

    x, _ = channel(600, 0)
    plan = {"hidden": (8,), "channel": blur, "max_iter": 6, "patience": None, "random_state": 0}
    whole = RelevantFeatures(2, **plan).fit(x)
    path = tmp_path / "walk"
    calls["left"] = 7
    with pytest.warns(FitWarning, match="interrupted"):
        cut = RelevantFeatures(2, checkpoint=path, **plan).fit(x)
    assert cut.interrupted_
    assert 0 < cut.n_iter_ < 6
    with pytest.warns(FitWarning, match="interrupted after iteration"):  # of the path that led here
        again = RelevantFeatures(2, checkpoint=path, **plan).fit(x)
    np.testing.assert_array_equal(whole.transform(x), again.transform(x))


def test_training_that_was_cut_short_says_so() -> None:
    x, y = channel(400, 0)
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        RelevantFeatures(2, hidden=(8,), max_iter=3, patience=20, random_state=0).fit(x, y)


@pytest.mark.parametrize("direction", ["y_given_x", "x_given_y"])
def test_expectations_of_labels_are_those_of_the_table(direction: Any) -> None:
    """Both views finite and all variables kept: means and deviations are those of the empirical distribution."""
    rng = np.random.default_rng(3)
    x = rng.integers(3, size=300)
    y = np.where(rng.random(300) < 0.6, x, rng.integers(4, size=300))
    fit = RelevantFeatures(2, x_features="finite", y_features="finite").fit(x, y)
    (a, b), given = ((x, y) if direction == "y_given_x" else (y, x)), 1
    some = b[a == given]
    squares = fit.expect(lambda rows: rows[:, 0] ** 2, given=[given], direction=direction)
    np.testing.assert_allclose(squares.mean[0, 0], (some**2).mean(), rtol=1e-10)
    np.testing.assert_allclose(squares.deviation[0, 0], (some**2).std(), rtol=1e-9)
    shares = fit.expect(given=[given], direction=direction)
    np.testing.assert_allclose(shares.mean[0], [(some == k).mean() for k in np.unique(b)], atol=1e-12)
    expected = np.sqrt((some**2).var() / len(some))
    np.testing.assert_allclose(squares.standard_error[0, 0], expected, rtol=1e-9)


def test_expectations_after_a_file_need_rows(tmp_path: Path) -> None:
    x, y = related()
    fit = RelevantFeatures(2, **LINEAR).fit(x, y)
    fit.save(tmp_path / "a")
    again = load(tmp_path / "a")
    with pytest.raises(ValueError, match="a model file holds no rows: give data="):
        again.expect(given=x[:2])
    one, two = fit.expect(given=x[:2]), again.expect(given=x[:2], data=(x, y))
    np.testing.assert_allclose(one.standard_error, two.standard_error, rtol=1e-10)
    np.testing.assert_allclose(one.mean, fit.predict(x[:2]), rtol=1e-10)


def test_density_ratios_are_those_of_the_table() -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(2, size=400)
    y = np.where(rng.random(400) < 0.5, x, rng.integers(2, size=400))
    fit = RelevantFeatures(1, x_features="finite", y_features="finite").fit(x, y)
    together = ((x == 1) & (y == 1)).mean() / ((x == 1).mean() * (y == 1).mean())
    found = fit.density_ratio([1], [1])
    np.testing.assert_allclose(found.value, [together], rtol=1e-10)
    assert 0.0 < found.standard_error[0] < 0.2


def test_judgement_and_diagnosis_speak(learned: RelevantFeatures) -> None:
    found = learned.significance(permutations=199)
    assert found.n_rows == 200  # half of a fifth
    assert found.significant[:2].all()
    fixed = RelevantFeatures(2, **LINEAR).fit(*related())
    assert "cross-fitted" in str(fixed.significance(permutations=99))
    with pytest.raises(ValueError, match="no rows were held out"):
        RelevantFeatures(1, hidden=(4,), max_iter=1, validation_fraction=0.0, random_state=0).fit(
            *channel(300, 0)
        ).significance()
    text = str(learned.diagnose(n_given=50))
    assert "in a batch of" in text
    assert "negative mass" in text
    assert learned.plot_relevance().get_xlabel()
    assert learned.plot_trace().get_xlabel()


def test_a_direction_that_is_none_is_named() -> None:
    fit = RelevantFeatures(1, **LINEAR).fit(*related())
    with pytest.raises(ValueError, match="direction must be one of 'y_given_x', 'x_given_y'; got 'up'"):
        fit.expect(given=[[0.0] * 3], direction="up")  # type: ignore[arg-type]


def bent(n: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return x, np.column_stack([np.sin(2 * x[:, 0]), x[:, 0] * x[:, 1]]) + 0.5 * rng.normal(size=(n, 2))


def small_network(seed: int) -> RelevantFeatures:
    return RelevantFeatures(
        6, hidden=(24,), learning_rate=5e-3, schedule="cosine", max_iter=25, patience=None, random_state=seed
    )


def test_standard_errors_are_inflated_by_the_difference_of_halves() -> None:
    """By the root of half the mean squared difference over the mean squared error, of means and of deviations."""
    x, y = related()
    found = RelevantFeatures(2, **LINEAR).fit(x, y).expect(given=x[:5])

    def half(mean: float, deviation: float) -> Expectation:
        return replace(
            found,
            mean=found.mean + mean * found.standard_error,
            deviation=found.deviation + deviation * found.deviation_error,
        )

    halves = [(half(3.0, 5.0), half(-3.0, -5.0)), (half(1.0, 2.0), half(-1.0, -2.0))]
    long = inflate_errors(found, halves)
    assert long.inflation == pytest.approx(np.sqrt((6.0**2 + 2.0**2) / 4.0), rel=1e-12)
    np.testing.assert_allclose(long.standard_error, found.standard_error * long.inflation, rtol=1e-12)
    factor = np.sqrt((10.0**2 + 4.0**2) / 4.0)
    np.testing.assert_allclose(long.deviation_error, found.deviation_error * factor, rtol=1e-12)


@pytest.mark.slow
def test_refits_lengthen_error_bars_of_networks_alike() -> None:
    x, y = bent(1000, 0)
    fit = small_network(0).fit(x, y)
    plain, long = fit.expect(given=x[:20]), fit.expect(given=x[:20], refits=1)
    assert long.inflation > 1.3
    np.testing.assert_array_equal(plain.mean, long.mean)
    np.testing.assert_allclose(long.standard_error, plain.standard_error * long.inflation)
    assert (long.deviation_error >= plain.deviation_error).all()
    assert fit.expect(given=x[:20], refits=1).inflation == long.inflation
    back = fit.expect(given=y[:5], direction="x_given_y", refits=1)
    assert back.inflation >= 1.0
    fixed = RelevantFeatures(2, **LINEAR).fit(x, y)
    with pytest.raises(ValueError, match="these are fixed"):
        fixed.expect(given=x[:2], refits=1)


@pytest.mark.slow
def test_error_bars_with_refits_are_as_long_as_fits_to_other_rows_differ() -> None:
    """Pooled over 60 points, 2 columns and 12 data sets, whose means differ by chance and by what was learned.

    The claim is conservative: the ratio is 1 where errors do not fall with the rows, and the root of one half where
    they fall as one over the root of their number. Twelve data sets know it to about a fifth.
    """
    given = np.random.default_rng(5).normal(size=(60, 2))
    found = [small_network(seed).fit(*bent(1500, seed)).expect(given=given, refits=2) for seed in range(12)]
    actual = np.stack([one.mean for one in found]).var(0, ddof=1).sum()
    claimed = np.mean([(one.standard_error**2).sum() for one in found])
    bare = np.mean([((one.standard_error / one.inflation) ** 2).sum() for one in found])
    assert np.sqrt(0.5) * 0.8 < np.sqrt(actual / claimed) < 1.2
    assert np.sqrt(actual / bare) > 2.0
