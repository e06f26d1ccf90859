"""Posteriors over the weights of small networks on tables for regression: SWAG, factor analysis, ensembles.

Networks of one hidden layer on UCI's tables, beyond the linear models of Brownlie (2021), section 6.2.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import ndtri
from sklearn.datasets import make_friedman1
from torch import Generator, Tensor

from boxloop.data import load_dataset
from boxloop.figures import COLOURS, FAINT, INK, dress, label_lines, new_figure
from boxloop.networks import (
    Layout,
    Posterior,
    Predictor,
    Profile,
    RegressionPrediction,
    StackedLayers,
    WeightWarning,
    last_layer_laplace,
    tune_scale,
    weight_decay,
)
from boxloop.numeric import generator, spawn
from papers.experiment import Finding, Options, Report
from papers.network_posteriors import (
    ANNEALED,
    ENSEMBLE,
    FACTOR,
    LAPLACE,
    METHODS,
    MULTI_FACTOR,
    MULTI_SWA,
    MULTI_SWAG,
    SEVERAL,
    SGD,
    SINGLE,
    SURE,
    SWA,
    SWAG,
    WITH_COVARIANCE,
    Point,
    Run,
    build_posteriors,
)
from papers.verdicts import judge_target, standard_error

Array = NDArray[np.float64]

Facts = dict[str, dict[str, list[float]]]
"""By method and measure, a number for each split."""

Results = Mapping[str, Facts]
"""Facts by table."""


@dataclass(frozen=True)
class Setting:
    """Settings of training.

    Args:
        units: in the one hidden layer.
        batch: rows of a step.
        burn_in: steps before weights are observed.
        steps: steps after that.
        every: steps between two observations.
        rate: of learning, constant.
        momentum: of SGD.
        rank: directions of a posterior.
        prior_precision: alpha, of every weight, in the standard units of inputs and target.
        noise_precision: beta, likewise; with alpha it gives the weight decay.
    """

    units: int = 50
    batch: int = 50
    burn_in: int = 2000
    steps: int = 2000
    every: int = 20
    rate: float = 0.01
    momentum: float = 0.9
    rank: int = 10
    prior_precision: float = 1.0
    noise_precision: float = 10.0

    def decay(self, rows: int) -> float:
        """Weight decay of the prior, for a mean squared error over this number of rows."""
        return weight_decay(self.prior_precision, rows, "mean_squared", self.noise_precision)


@dataclass(frozen=True)
class Trial:
    """How much to run on every table.

    Args:
        splits: of each table.
        runs: training runs of each split.
        draws: networks drawn from a posterior that has a covariance.
        setting: of training.
    """

    splits: int
    runs: int
    draws: int
    setting: Setting


FULL = Trial(20, 5, 100, Setting())

SMALL = Trial(3, 3, 20, Setting(units=20, burn_in=300, steps=200, every=5, rank=5))

FEW = 300
"""Rows of a table, in the small size."""

FILES = {
    "uci_regression_004.npz": ("energy", "boston", "concrete", "yacht"),
    "uci_regression_extra.npz": ("power", "kin8nm", "wine_red", "naval"),
}

TEST_SHARE = 0.1
"""Share of all rows for testing, and of the others for tuning."""

SCALES = (0.0, *(4.0**power for power in range(-4, 5)))
"""Scales of the covariance that are tried; the search is refined about the best."""

HALF_WIDTH = float(ndtri(0.975))
"""Half the width of intervals of 95%, in standard deviations."""

UNTUNED = " at scale 1"
"""Suffix of a measure with only the noise tuned."""

UNITS = {"nll": "nats per row", "rmse": "of the root mean squared error"}

FAR = 3.0
"""The axis ends at this multiple of the widest tuned difference."""


# Data


@dataclass(frozen=True)
class Table:
    """Inputs (n, d) and one target (n,), in their own units."""

    name: str
    x: Array
    y: Array


@dataclass(frozen=True)
class Splits:
    """S random splits of a table, each standardised by its own training rows.

    Args:
        x: inputs, by part ``"train"``, ``"valid"`` or ``"test"``: (S, n, d).
        y: targets likewise, (S, n, 1).
        scale: standard deviation of the target among training rows, (S,): the unit of y.
    """

    x: dict[str, Tensor]
    y: dict[str, Tensor]
    scale: Array

    @property
    def count(self) -> int:
        """S."""
        return len(self.scale)


def load_tables(folder: Path | None, rows: int | None, seed: int) -> list[Table]:
    """All tables.

    Args:
        folder: with the files of UCI; diabetes and Friedman's first function when None.
        rows: largest number of rows of a table, a random sample; all when None.
        seed: of the samples.

    Raises:
        FileNotFoundError: a folder without any of the files.
    """
    tables = _draw_tables(seed) if folder is None else _read_tables(folder)
    rng = np.random.default_rng(seed)
    if rows is None:
        return tables
    samples = [rng.permutation(len(table.y))[:rows] for table in tables]
    return [Table(table.name, table.x[sample], table.y[sample]) for table, sample in zip(tables, samples)]


def _draw_tables(seed: int) -> list[Table]:
    table = load_dataset("diabetes")
    x, y = make_friedman1(n_samples=600, n_features=10, noise=1.0, random_state=seed)
    return [Table("diabetes", table.rows, table.target), Table("friedman", x, y)]


def _read_tables(folder: Path) -> list[Table]:
    tables = []
    for file, names in FILES.items():
        if (folder / file).exists():
            with np.load(folder / file) as arrays:
                tables += [
                    Table(name, *(arrays[f"{name}_{part}"].astype(np.float64) for part in "Xy"))
                    for name in names
                ]
    if not tables:
        raise FileNotFoundError(f"{folder} has none of {', '.join(FILES)}")
    return tables


def split_rows(table: Table, count: int, seed: int) -> Splits:
    """Random splits into test rows, a tenth, validation rows, a tenth of the others, and training rows.

    Rows of some tables are ordered by design, so no split follows their order. A column that is constant among
    training rows is centred but not scaled.

    Args:
        table: all rows.
        count: S.
        seed: of the orders.
    """
    n = len(table.y)
    test = max(round(TEST_SHARE * n), 1)
    valid = max(round(TEST_SHARE * (n - test)), 1)
    cuts = {"test": slice(0, test), "valid": slice(test, test + valid), "train": slice(test + valid, n)}
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(n) for _ in range(count)]
    train = [order[cuts["train"]] for order in orders]
    x_mean, x_scale = zip(*(_mean_and_scale(table.x[rows]) for rows in train))
    y_mean, y_scale = zip(*(_mean_and_scale(table.y[rows, None]) for rows in train))
    x, y = {}, {}
    for part, cut in cuts.items():
        x[part] = _stack([(table.x[o[cut]] - m) / s for o, m, s in zip(orders, x_mean, x_scale)])
        y[part] = _stack([(table.y[o[cut], None] - m) / s for o, m, s in zip(orders, y_mean, y_scale)])
    return Splits(x, y, np.concatenate(y_scale))


def _mean_and_scale(values: Array) -> tuple[Array, Array]:
    mean, scale = values.mean(0), values.std(0)
    constant = scale <= 1e-6 * (np.abs(mean) + np.finfo(float).tiny)
    return mean, np.where(constant, 1.0, scale)


def _stack(parts: list[Array]) -> Tensor:
    return torch.from_numpy(np.stack(parts))


# Trials


class StackTrainer:
    """SGD of many networks at once, each on the rows of its split in an order of its own."""

    def __init__(self, stack: StackedLayers, x: Tensor, y: Tensor, split: Tensor, setting: Setting) -> None:
        self.stack, self.x, self.y, self.split, self.setting = stack, x, y, split[:, None], setting

    def __call__(
        self,
        steps: int,
        stream: Generator,
        rate: Callable[[float], float] = lambda done: 1.0,
        observe: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Take steps, starting without momentum.

        Args:
            steps: number.
            stream: of the orders.
            rate: share of finished steps -> learning rate as a share of the setting's.
            observe: called with the number of every finished step, from 1.
        """
        setting, n = self.setting, self.x.shape[1]
        optimiser = torch.optim.SGD(
            self.stack.parameters(),
            lr=setting.rate,
            momentum=setting.momentum,
            weight_decay=setting.decay(n),
        )
        step = 0
        while step < steps:
            orders = torch.rand((len(self.split), n), generator=stream).argsort(1)
            for batch in orders.split(setting.batch, dim=1)[: n // min(setting.batch, n)]:  # full batches
                if step == steps:
                    break
                for group in optimiser.param_groups:
                    group["lr"] = setting.rate * rate(step / steps)
                optimiser.zero_grad()
                residual = self.stack(self.x[self.split, batch]) - self.y[self.split, batch]
                residual.square().mean((1, 2)).sum().backward()
                optimiser.step()
                step += 1
                observe(step)


def train_runs(splits: Splits, runs: int, setting: Setting, seed: int) -> list[list[Run]]:
    """Networks by split and run, all trained together.

    Args:
        splits: of a table.
        runs: networks of each split, each with its own start and order of batches.
        setting: of training.
        seed: of starts and orders.
    """
    x, y = splits.x["train"], splits.y["train"]
    n = splits.count * runs
    starts, first, annealing, collecting, posterior_stream = spawn(generator(seed), 5)
    stack = StackedLayers((x.shape[2], setting.units, 1), "relu", spawn(starts, n))
    nets = stack.split_members()
    layout = Layout.from_network(nets[0])
    sgd = StackTrainer(stack, x, y, torch.arange(splits.count).repeat_interleave(runs), setting)
    sgd(setting.burn_in, first)
    saved = [value.detach().clone() for value in stack.parameters()]
    sgd(setting.steps, annealing, lambda done: 1.0 - done)
    annealed = [Point.of(net, layout) for net in nets]
    with torch.no_grad():
        for value, old in zip(stack.parameters(), saved, strict=True):
            value.copy_(old)
    posteriors = [build_posteriors(net, setting.rank, posterior_stream) for net in nets]

    def observe(step: int) -> None:
        if step % setting.every == 0:
            for group in posteriors:
                for posterior in group.values():
                    posterior.observe()

    sgd(setting.steps, collecting, observe=observe)
    trained: list[list[Run]] = [[] for _ in range(splits.count)]
    for place, net in enumerate(nets):
        split, run = divmod(place, runs)
        laplace = None
        if run == 0:  # at the last iterate, under the stated prior; the evidence determines the noise
            laplace = last_layer_laplace(
                net, x[split], y[split], "regression", setting.prior_precision, mode=False
            )
        trained[split].append(Run(Point.of(net, layout), annealed[place], posteriors[place], laplace))
    return trained


@dataclass(frozen=True)
class NormalPrediction:
    r"""Normal predictive distributions with the mean and variance over the drawn networks.

    .. math:: y \sim N\bigl(\bar f(x), \ s^2(x) + \sigma^2\bigr)

    Lakshminarayanan et al. (2017). With a few dozen validation rows the noise of the mixture over draws would be tuned
    to nearly zero: some draw is close to each of these rows, and far from others.

    Args:
        residual: targets minus their means, (n,).
        variance: s^2, due to the weights, (n,).
    """

    residual: Array
    variance: Array

    @classmethod
    def of(cls, prediction: RegressionPrediction, y: Tensor) -> NormalPrediction:
        """From predictions of the networks and targets."""
        return cls((y.numpy() - prediction.mean).ravel(), (prediction.epistemic_std**2).ravel())

    @property
    def rms(self) -> float:
        """Root mean square of the residuals."""
        return float(np.sqrt((self.residual**2).mean()))

    def choose_noise(self, min_noise: float) -> float:
        """Sigma of the highest density, no smaller than ``min_noise``."""
        optimum = minimize_scalar(
            lambda log_noise: -float(self.log_density(np.exp(log_noise)).mean()),
            bounds=(np.log(min_noise), np.log(max(self.rms, min_noise)) + 1.0),
            method="bounded",
            options={"xatol": 1e-6},
        )
        return float(np.exp(optimum.x))

    def log_density(self, noise: float) -> Array:
        """Of every row, (n,)."""
        variance = self.variance + noise**2
        return np.asarray(-0.5 * (np.log(2.0 * np.pi * variance) + self.residual**2 / variance))

    def scores(self, noise: float, scale: float) -> dict[str, float]:
        """In units of the target; ``inside`` is the share of rows in central intervals."""
        inside = np.abs(self.residual) <= HALF_WIDTH * np.sqrt(self.variance + noise**2)
        return {
            "rmse": float(np.sqrt((self.residual**2).mean()) * scale),
            "nll": float(np.log(scale) - self.log_density(noise).mean()),
            "inside": float(inside.mean()),
        }


def evaluate(
    posterior: Posterior, splits: Splits, place: int, draws: int | None, seed: int
) -> dict[str, float]:
    """Tune the noise, and the scale if there is one, on validation rows; then score test rows.

    The noise is no smaller than the residuals of the mean network on training rows.
    """
    x, y = ({part: value[place] for part, value in values.items()} for values in (splits.x, splits.y))
    predictor = Predictor.from_posterior(posterior, "regression", draws or 2, random_state=seed)
    min_noise = NormalPrediction.of(predictor.with_scale(0.0).predict(x["train"]), y["train"]).rms

    def profile(scale: float) -> Profile:
        prediction = NormalPrediction.of(predictor.with_scale(scale).predict(x["valid"]), y["valid"])
        noise = prediction.choose_noise(min_noise)
        return np.array([noise]), prediction.log_density(noise), 0.0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeightWarning)  # scales at the end of the grid are counted
        tuning = tune_scale("noise", profile, None, SCALES if draws else (0.0,), 4)

    def test(scale: float, noise: float) -> dict[str, float]:
        prediction = NormalPrediction.of(predictor.with_scale(scale).predict(x["test"]), y["test"])
        return prediction.scores(noise, splits.scale[place])

    results = test(tuning.scale, float(tuning.value[0]))
    values = tuning.values[tuning.scales == 1.0] if draws else tuning.values
    untuned = test(1.0, float(values[0, 0]))
    results |= {f"{measure}{UNTUNED}": value for measure, value in untuned.items()}
    results |= {"scale": tuning.scale, "at the end": float(tuning.at_largest)}
    return results | {"noise": float(tuning.value[0] * splits.scale[place])}


def run_trial(table: Table, trial: Trial, seed: int) -> Facts:
    """All methods on all splits of a table.

    Args:
        table: all rows.
        trial: sizes.
        seed: of splits, starts, orders and draws.
    """
    splits = split_rows(table, trial.splits, seed)
    results: Facts = {}
    for place, runs in enumerate(train_runs(splits, trial.runs, trial.setting, seed)):
        for method, build_posterior in METHODS.items():
            draws = trial.draws if method in WITH_COVARIANCE else None
            facts = evaluate(build_posterior(runs), splits, place, draws, seed)
            values = results.setdefault(method, {})
            for measure, value in facts.items():
                values.setdefault(measure, []).append(value)
    return results


# Findings


def split_error(values: Array) -> float:
    r"""Standard error of a mean over random splits of one table, which share most of their rows.

    .. math:: s \sqrt{\tfrac1S + \tfrac{n_\mathrm{test}}{n_\mathrm{train}}}

    Nadeau and Bengio (2003); with the first term alone errors are too small by half.
    """
    s = len(values)
    if s < 2:
        return float("nan")
    return float(values.std(ddof=1) * np.sqrt(1.0 / s + TEST_SHARE / (1.0 - TEST_SHARE)))


@dataclass(frozen=True)
class Comparison:
    """One method minus another over tables, paired by split; below 0 the first is better.

    Args:
        means: of each table.
        errors: of these, by :func:`split_error`.
        unit: of the differences.
    """

    means: Array
    errors: Array
    unit: str

    @property
    def z_scores(self) -> Array:
        """Of each table."""
        return np.divide(self.means, self.errors, out=np.zeros_like(self.means), where=self.errors > 0.0)

    @property
    def z(self) -> float:
        """Of all tables together: the sum over the root of their number (Stouffer)."""
        return float(self.z_scores.sum() / np.sqrt(len(self.means)))

    @property
    def is_lower(self) -> bool:
        """Whether the first is significantly lower: over all tables together, and in the mean."""
        return self.z < -SURE and self.mean < 0.0

    @property
    def mean(self) -> float:
        """Over tables."""
        return float(self.means.mean())

    @property
    def error(self) -> float:
        """Standard error of the mean over tables."""
        n = len(self.means)
        return float(self.means.std(ddof=1) / np.sqrt(n)) if n > 1 else float(self.errors[0])

    def __str__(self) -> str:
        better, worse = int((self.z_scores < -SURE).sum()), int((self.z_scores > SURE).sum())
        text = f"{self.mean:+.1%}" if self.unit.startswith("of") else f"{self.mean:+.3f}"
        return (
            f"{text} {self.unit}, z = {self.z:+.1f}; surely lower on {better} and higher on {worse} of "
            f"{len(self.means)} tables"
        )


def compare(results: Results, method: str, base: str, measure: str = "nll", of_base: str = "") -> Comparison:
    """Differences of log-likelihoods, or of logarithms of errors.

    Args:
        results: facts by table.
        method: that is compared.
        base: that it is compared with.
        measure: ``"nll"`` or ``"rmse"``, with or without ``" at scale 1"``.
        of_base: measure of the base, if it is another.
    """
    kind = measure.split(" ")[0]
    values = []
    for facts in results.values():
        one, other = np.asarray(facts[method][measure]), np.asarray(facts[base][of_base or measure])
        values.append(np.log(one / other) if kind == "rmse" else one - other)
    means, errors = np.array([v.mean() for v in values]), np.array([split_error(v) for v in values])
    return Comparison(means, errors, UNITS[kind])


def judge(results: Results) -> list[Finding]:
    """Single runs, what their covariances are worth, several runs, then every table."""
    findings = [
        _lower(results, SWAG, SGD, "SWAG lowers", "Maddox et al. (2019): better calibrated than SGD"),
        _lower(results, FACTOR, SGD, "factor analysis by online EM lowers", "predictions better than SGD's"),
        _parts(results),
        _no_worse(results, FACTOR, SWAG, "nll", "factor EM is as good as SWAG or better"),
        _no_worse(results, SWA, SGD, "rmse", "the mean of the trajectory predicts no worse than its end"),
        _annealed(results),
        _lower(
            results, LAPLACE, SGD, "Laplace's distribution of the last layer lowers", "not in the document"
        ),
    ]
    findings += [_alone(results, method) for method in (SWAG, FACTOR, LAPLACE)]
    findings += [_several(results), _adds(results), _coverage(results)]
    return findings + [_table(name, facts) for name, facts in results.items()]


def _lower(results: Results, method: str, base: str, words: str, paper: str) -> Finding:
    difference, error = compare(results, method, base), compare(results, method, base, "rmse")
    return Finding(
        f"{words} the negative log-likelihood of {base}",
        paper,
        str(difference),
        difference.error,
        judge_target(difference.is_lower),
        f"Root mean squared error {error.mean:+.1%} (z = {error.z:+.1f}). Noise and scale of both were tuned alike.",
    )


def _parts(results: Results) -> Finding:
    """Gain of the mean of the trajectory, and gain of the covariance around it."""
    mean = compare(results, SWA, SGD)
    with_covariance = {method: compare(results, method, SWA) for method in (SWAG, FACTOR)}
    text = "; ".join(f"{method} less SWA {one}" for method, one in with_covariance.items())
    return Finding(
        "a gain over SGD is one of the spread, not of the mean alone",
        "Brownlie (2021), section 6.2: for linear regression the mean is all there is",
        f"SWA less SGD {mean.mean:+.3f} (z = {mean.z:+.1f}); {text}",
        None,
        judge_target(all(one.is_lower for one in with_covariance.values())),
        "SWA has the same mean and no spread; its noise is tuned like that of the others.",
    )


def _no_worse(results: Results, method: str, base: str, measure: str, claim: str) -> Finding:
    difference = compare(results, method, base, measure)
    plain = compare(results, method, base, measure + UNTUNED)
    note = f" At scale 1: {plain}." if method in WITH_COVARIANCE else _lagging(results, difference)
    return Finding(
        claim,
        "Brownlie (2021), chapter 5: EM fits better"
        if method == FACTOR
        else "Izmailov et al. (2018): wider optima",
        f"{method} less {base} {difference}",
        difference.error,
        judge_target(difference.z < SURE),
        f"No worse is a z below {SURE:g}.{note}",
    )


def _lagging(results: Results, difference: Comparison) -> str:
    """Tables on which both the mean and a falling rate are significantly worse."""
    annealed_worse = compare(results, ANNEALED, SGD, "rmse").z_scores > SURE
    lagging = [
        name
        for name, z, late in zip(results, difference.z_scores, annealed_worse, strict=True)
        if z > SURE and late
    ]
    if not lagging:
        return ""
    return f" On {' and '.join(lagging)} SGD was still learning: a mean, like a falling rate, lags behind it."


def _annealed(results: Results) -> Finding:
    """The baseline without the handicap of a constant rate."""
    differences = {method: compare(results, method, ANNEALED) for method in (SWA, SWAG, FACTOR)}
    gain = compare(results, ANNEALED, SGD)
    return Finding(
        "SWAG and factor EM are better than SGD whose rate fell to 0 in as many steps",
        "not in the document",
        "; ".join(f"{method} {one}" for method, one in differences.items()),
        None,
        judge_target(all(differences[method].is_lower for method in (SWAG, FACTOR))),
        f"The end of a run at a constant rate is a noisy baseline: a falling rate alone gives {gain}.",
    )


def _alone(results: Results, method: str) -> Finding:
    """A posterior whose noise is tuned, but not its scale."""
    difference = compare(results, method, SGD, "nll" + UNTUNED, "nll")
    scales = {name: np.median(facts[method]["scale"]) for name, facts in results.items()}
    ends = np.mean([facts[method]["at the end"] for facts in results.values()])
    text = ", ".join(f"{name} {scale:.2g}" for name, scale in scales.items())
    return Finding(
        f"{method} as it is, its covariance at scale 1, lowers the negative log-likelihood of SGD",
        "not in the document",
        str(difference),
        difference.error,
        judge_target(difference.is_lower),
        f"Median of the scale that held-out rows prefer: {text}; the largest tried in {ends:.0%} of splits.",
    )


def _several(results: Results) -> Finding:
    """Whether several runs are better than the best method of one run."""
    differences = {
        method: max((compare(results, method, single) for single in SINGLE), key=lambda one: one.z)
        for method in SEVERAL
    }
    return Finding(
        "several runs together are better than any one run: MultiSWAG and deep ensembles",
        "Wilson and Izmailov (2020)",
        "; ".join(f"{method} {one.mean:+.3f} (z = {one.z:+.1f})" for method, one in differences.items()),
        None,
        judge_target(all(differences[method].is_lower for method in (ENSEMBLE, MULTI_SWAG))),
        "Each against the single-run method that it is least ahead of. They cost as many trainings as they have runs.",
    )


def _adds(results: Results) -> Finding:
    """Whether Gaussians around the members are better than the members."""
    pairs = (
        (MULTI_SWAG, ENSEMBLE),
        (MULTI_SWAG, MULTI_SWA),
        (MULTI_FACTOR, MULTI_SWA),
        (MULTI_FACTOR, MULTI_SWAG),
    )
    differences = {pair: compare(results, *pair) for pair in pairs}
    return Finding(
        "Gaussians around the members of an ensemble are better than the members: MultiSWAG less the deep ensemble",
        "Wilson and Izmailov (2020)",
        "; ".join(
            f"{one} less {other} {difference.mean:+.3f} (z = {difference.z:+.1f})"
            for (one, other), difference in differences.items()
        ),
        None,
        judge_target(differences[MULTI_SWAG, ENSEMBLE].is_lower),
        "MultiSWA has the same means without spread.",
    )


def _coverage(results: Results) -> Finding:
    """Shares of test rows in 95% intervals."""
    names = list(next(iter(results.values())))
    shares = {
        (method, end): np.array([np.mean(facts[method]["inside" + end]) for facts in results.values()])
        for method in names
        for end in ("", UNTUNED)
    }
    text = [f"{method} {shares[method, ''].mean():.3f}" for method in names]
    alone = [
        f"{method} {shares[method, UNTUNED].mean():.3f}" for method in names if method in WITH_COVARIANCE
    ]
    worst = {method: float(np.abs(shares[method, ""] - 0.95).max()) for method in names}
    return Finding(
        "95% intervals hold 95% of test rows once noise and scale are tuned, within 0.03 on every table",
        "not in the document",
        ", ".join(text) + "; at scale 1 " + ", ".join(alone),
        None,
        judge_target(max(worst.values()) < 0.03),
        "Means over tables; farthest off on one table: "
        + ", ".join(f"{method} {off:.3f}" for method, off in worst.items())
        + ".",
    )


def _table(name: str, facts: Facts) -> Finding:
    """All methods on one table."""
    text = []
    for method, measures in facts.items():
        nll, rmse = np.asarray(measures["nll"]), np.asarray(measures["rmse"])
        text.append(
            f"{method} {nll.mean():.3f} ± {standard_error(nll):.3f}, {rmse.mean():.3g} ± {standard_error(rmse):.3g}"
        )
    best = min(facts, key=lambda method: float(np.mean(facts[method]["nll"])))
    lead = np.asarray(facts[best]["nll"]) - np.asarray(facts[SGD]["nll"])
    return Finding(
        f"{name}: the best of all is one of several runs",
        "not in the document",
        "; ".join(text),
        None,
        judge_target(best in SEVERAL),
        f"Negative log-likelihood and root mean squared error in units of the target, ± s / sqrt(S) over splits. Best: "
        f"{best}, {lead.mean():+.3f} ± {split_error(lead):.3f} less SGD.",
    )


# Figures


def draw_differences(results: Results, measure: str, title: str) -> Figure:
    """Differences from SGD, paired by split, with one standard error; lower is better.

    Args:
        results: facts by table.
        measure: ``"nll"``, whose differences are drawn, or ``"rmse"``, whose ratios are.
        title: of the horizontal axes.
    """
    columns = min(4, len(results))
    lines = -(-len(results) // columns)
    names = [method for method in next(iter(results.values())) if method != SGD]
    figure = new_figure(2.9 * columns + 1.6, 0.27 * len(names) * lines + 1.2 * lines + 0.4)
    axes: Any = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for axis, (table, facts) in zip(axes.flat, results.items()):
        dress(axis, table, title)
        tuned = [_difference(facts, method, measure) for method in names]
        untuned = [_difference(facts, method, measure, UNTUNED) for method in names]
        _draw_dots(axis, tuned, -0.13, COLOURS[0], "scale tuned on other rows")
        with_covariance = [place for place, method in enumerate(names) if method in WITH_COVARIANCE]
        limit = FAR * max(abs(mean) + error for mean, error in tuned)
        _draw_dots(axis, untuned, 0.17, COLOURS[1], "scale 1", with_covariance, limit)
        axis.axvline(0.0, color=INK, linewidth=0.8)
        _set_limits(axis, tuned, [untuned[place] for place in with_covariance], limit)
        axis.xaxis.set_major_locator(MaxNLocator(4))
        if measure == "rmse":
            axis.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100.0 * share:+g}%"))
    for axis in axes.flat:
        label_lines(axis, names)
        axis.tick_params(labelleft=axis in axes[:, 0])
    for axis in axes.flat[len(results) :]:
        axis.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_coverage(results: Results) -> Figure:
    """Share of test rows in 95% intervals, a dot per table."""
    names = list(next(iter(results.values())))
    figure = new_figure(7.4, 0.42 * len(names) + 1.4)
    axis = figure.subplots()
    dress(axis, "", "share of test rows in 95% intervals")
    for end, offset, colour, word in (
        ("", -0.13, COLOURS[0], "scale tuned on other rows"),
        (UNTUNED, 0.17, COLOURS[1], "scale 1"),
    ):
        for place, method in enumerate(names):
            if end and method not in WITH_COVARIANCE:
                continue
            shares = [np.mean(facts[method]["inside" + end]) for facts in results.values()]
            label = word if place == (0 if not end else names.index(WITH_COVARIANCE[0])) else None
            axis.plot(
                shares,
                [place + offset] * len(shares),
                "o",
                color=colour,
                markersize=4.5,
                alpha=0.8,
                label=label,
            )
    axis.axvline(0.95, color=INK, linewidth=0.8)
    label_lines(axis, names)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _difference(facts: Facts, method: str, measure: str, end: str = "") -> tuple[float, float]:
    one, base = np.asarray(facts[method][measure + end]), np.asarray(facts[SGD][measure])
    values = one / base - 1.0 if measure == "rmse" else one - base
    return float(values.mean()), split_error(values)


def _draw_dots(
    axis: Any,
    differences: list[tuple[float, float]],
    offset: float,
    colour: str,
    label: str,
    places: list[int] | None = None,
    limit: float = np.inf,
) -> None:
    """Means with errors; an arrow for one beyond the axis."""
    shown = range(len(differences)) if places is None else places
    inside = [place for place in shown if abs(differences[place][0]) <= limit]
    axis.errorbar(
        [differences[place][0] for place in inside],
        [place + offset for place in inside],
        xerr=[differences[place][1] for place in inside],
        fmt="o",
        color=colour,
        markersize=4.0,
        linewidth=1.2,
        label=label,
    )
    for place in shown:
        mean = differences[place][0]
        if abs(mean) > limit:
            mark, side = (">", "right") if mean > 0.0 else ("<", "left")
            edge = np.sign(mean) * limit
            axis.plot([edge], [place + offset], mark, color=colour, markersize=5)
            axis.text(
                edge,
                place + offset,
                f"{mean:+.2g}  ",
                ha=side,
                va="center",
                fontsize=7.5,
                color=FAINT,
                clip_on=True,
            )


def _set_limits(
    axis: Any, tuned: list[tuple[float, float]], untuned: list[tuple[float, float]], limit: float
) -> None:
    """Limits that include all dots and zero."""
    low = min([0.0, *(m - e for m, e in tuned), *(max(m - e, -limit) for m, e in untuned)])
    high = max([0.0, *(m + e for m, e in tuned), *(min(m + e, limit) for m, e in untuned)])
    pad = 0.06 * (high - low)
    axis.set_xlim(low - pad, high + pad)


# Experiment


def experiment(options: Options) -> Report:
    """Train networks on random splits of every table, and compare eleven posteriors of their trajectories."""
    trial = SMALL if options.quick else FULL
    tables = load_tables(options.data, FEW if options.quick else None, options.seed)
    results: dict[str, Facts] = {}
    for place, table in enumerate(tables):
        options.progress(place, len(tables), table.name)
        results[table.name] = run_trial(table, trial, options.seed)
    options.progress(len(tables), len(tables), "done")
    return Report(
        "uci-networks",
        "Posteriors over the weights of small networks, against SGD and ensembles",
        _settings(options, trial, tables),
        judge(results),
        {"results": results},
        {
            "likelihood": draw_differences(results, "nll", "NLL less SGD's, nats per row"),
            "errors": draw_differences(results, "rmse", "RMSE against SGD's"),
            "coverage": draw_coverage(results),
        },
    )


def _settings(options: Options, trial: Trial, tables: list[Table]) -> dict[str, Any]:
    setting = asdict(trial.setting)
    rows = {table.name: list(table.x.shape) for table in tables}
    return {
        "tables": rows,
        "splits (90% to train, 10% to test)": trial.splits,
        "share of training rows to tune noise and scale with, for every method": 0.1,
        "runs": trial.runs,
        "draws": trial.draws,
        "predictive distribution": "normal, with the mean and variance of the draws and the noise",
        "least noise": "what mean networks leave of training rows",
        "scales tried": [round(scale, 4) for scale in SCALES],
        **{key.replace("_", " "): value for key, value in setting.items()},
        "weight decay": "2 alpha / (beta N), of the prior above",
        "seed": options.seed,
    }
