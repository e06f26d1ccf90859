"""The audit of a posterior over weights: every check that its network, rows and optimiser allow."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from boxloop.concerns import ORDER, Concern, Level, sort_by_level
from boxloop.criticise import (
    ClassificationScores,
    Difference,
    RegressionScores,
    classification_scores,
    regression_scores,
)
from boxloop.data import check_count, make_frame, to_labels
from boxloop.networks.audit.chains import TEST_ROWS, ChainComparison, compare_chains
from boxloop.networks.audit.last_layer import LastLayerCheck, build_mean_network, check_last_layer
from boxloop.networks.audit.trajectory import TrajectoryCheck, check_trajectory
from boxloop.networks.distribution import Component, Posterior
from boxloop.networks.draws import has_batch_norm
from boxloop.networks.inputs import Inputs, as_inputs, count_rows, iterate_tensors, slice_rows
from boxloop.networks.methods.laplace import last_layer_laplace
from boxloop.networks.methods.window_average import WindowAverage
from boxloop.networks.posterior import WeightPosterior
from boxloop.networks.prediction import (
    ClassificationPrediction,
    RegressionPrediction,
    check_classes,
    check_targets,
    log_probabilities,
)
from boxloop.networks.predictor import Kind, Predictor
from boxloop.networks.weight_decay import DecayCheck, Loss, check_weight_decay, implied_precision
from boxloop.numeric import RandomState, generator, seed, single_threaded, spawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
Scores = RegressionScores | ClassificationScores
Check = TypeVar("Check")

WIDTH = 100  # columns of the printed audit
DEFAULT_CHAINS, MAX_WEIGHTS, MAX_WORK = 16, 500, 300_000
"""Number of chains, and the weights and weights times rows up to which they run by default."""

LEVELS = (0.5, 0.8, 0.95)
RATE = 0.01  # false-alarm rate of the tests of coverage and calibration
SIGNIFICANT = 2.0  # standard errors from which a difference of scores counts
LARGE_GAP = 0.05  # difference between nominal and observed probability that is bad


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Args:
        title: what was audited.
        trajectory: effective sample size and drift; None if not checked, like the next three.
        last_layer: comparison with the exact posterior of the last layer.
        chains: comparison with Hamiltonian Monte Carlo over all weights.
        weight_decay: of the optimiser.
        held_out: scores of predictions.
        skipped: why a check did not run.
        assumptions: values that were estimated because they were not given.

    Example:
        >>> from boxloop.criticise import regression_scores
        >>> scores = regression_scores([0.1, -0.7, 0.3], [0.0, 0.0, 0.0], 0.5)
        >>> result = Audit("Example", None, None, None, None, HeldOutScores(scores, scores, 0.0), (), ())
        >>> result.level, [concern.what for concern in result.concerns]
        ('good', ['Predictions', 'Coverage'])
    """

    title: str
    trajectory: TrajectoryCheck | None
    last_layer: LastLayerCheck | None
    chains: ChainComparison | None
    weight_decay: DecayCheck | None
    held_out: HeldOutScores
    skipped: tuple[Concern, ...]
    assumptions: tuple[str, ...]

    @property
    def concerns(self) -> tuple[Concern, ...]:
        """The findings of all checks, worst first; then checks that did not run, and good results."""
        checks = (self.trajectory, self.last_layer, self.chains, self.weight_decay, self.held_out)
        found = [concern for check in checks if check is not None for concern in check.concerns]
        return sort_by_level((*found, *self.skipped))

    @property
    def level(self) -> Level:
        """The worst level among the checks that ran."""
        return min((one.level for one in self.concerns if one.level != "not run"), key=ORDER.index)

    def table(self) -> Any:
        """A frame with one row per concern."""
        names = ("level", "what", "why", "next")
        return make_frame({name: [getattr(one, name) for one in self.concerns] for name in names})

    def plot(self) -> NDArray[np.object_]:
        """A new figure with four panels.

        Autocorrelation, standard deviations of the last layer, coverage or reliability, and differences of scores from
        the mean network.

        Returns:
            The axes, (2, 2); ``axes[0, 0].figure`` is the figure.
        """
        from boxloop.figures import dress, new_figure, score_differences, write_message

        grid = np.asarray(new_figure(11.6, 8.8).subplots(2, 2), dtype=object)
        for ax, check, name in (
            (grid[0, 0], self.trajectory, "Autocorrelation"),
            (grid[0, 1], self.last_layer, "Last layer"),
        ):
            if check is None:
                dress(ax, name)
                write_message(ax, "not checked")
            else:
                check.plot(ax)
        self.held_out.plot(grid[1, 0])
        differences = {name: (d.value, d.standard_error) for name, d in self.held_out.differences.items()}
        lower_is_better = {"CRPS", "squared error", "Brier score"}
        score_differences(differences, lower_is_better, grid[1, 1], title="Posterior minus mean network")
        return grid

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.level}", ""]
        for concern in self.concerns:
            text = f"{concern.what}. {concern.why}." + (f" Next: {concern.next}." if concern.next else "")
            first, *rest = textwrap.wrap(text, WIDTH - 10)
            lines += [f"{concern.level:<10}{first}", *(" " * 10 + line for line in rest)]
        table = self.held_out.table()
        lines += ["", "held-out rows".ljust(16) + "".join(str(name).rjust(16) for name in table.columns)]
        for name, row in zip(table.index, table.to_numpy(), strict=True):
            lines.append(str(name).ljust(16) + "".join(f"{value:16.4g}" for value in row))
        if self.assumptions:
            lines += ["", *textwrap.wrap("Assumed: " + "; ".join(self.assumptions) + ".", WIDTH)]
        return "\n".join(lines)


@single_threaded
def audit(
    posterior: Posterior,
    X: Any,
    y: Any,
    X_test: Any,
    y_test: Any,
    *,
    kind: Kind,
    prior_precision: float | None = None,
    noise: Any = None,
    optimiser: Optimizer | None = None,
    loss: Loss | None = None,
    predictor: Predictor | None = None,
    n_draws: int = 100,
    chains: int | None = None,
    chain_draws: int = 200,
    random_state: RandomState = 0,
) -> Audit:
    r"""Compare a distribution over weights with the posterior, and test its predictions.

    Iterates of an optimiser are draws from a posterior under special conditions only (Mandt, Hoffman and Blei 2017;
    Brownlie 2021, section 6.1). The audit therefore checks effective sample size and drift of the trajectory; the last
    layer against its posterior given the features of the mean network (exact for regression, Laplace's approximation
    for classes); predictions of small networks against Hamiltonian Monte Carlo over all weights; the weight decay
    against that of the prior; and log score and calibration on held-out rows, beside those of the mean network.

    The tests of drift, coverage and calibration have a false-alarm rate of 1%. The other limits between good, doubtful
    and bad, such as factors of 2 and 4 between variances, are conventions.

    Args:
        posterior: a :class:`~boxloop.networks.WeightPosterior` or any other posterior over weights; for a mixture only
            predictions and weight decay are checked.
        X: training rows, as the network takes them.
        y: their outputs or classes.
        X_test: rows that were not used for training.
        y_test: their outputs or classes.
        kind: ``"regression"`` or ``"classification"``.
        prior_precision: alpha, of the prior :math:`N(0, \alpha^{-1} I)`; None maximises the evidence of the last layer.
        noise: standard deviation of the observations, one or one per output; None maximises the evidence likewise.
        optimiser: whose weight decay is compared with that of ``prior_precision``.
        loss: scaling of its loss, see :func:`weight_decay`; None is ``mean_squared`` or ``mean_log``, by kind.
        predictor: whose predictions are scored, such as a tuned one; None draws ``n_draws`` networks.
        n_draws: number of networks.
        chains: number of Monte Carlo chains, at least 2, or 0 for none. None is 16 if the network has at most 500
            weights, and weights times rows are at most 300,000; else 0.
        chain_draws: draws of each chain, after 200 steps.
        random_state: seed or generator.

    Returns:
        :class:`Audit`: ``print(audit)`` is a page, ``audit.plot()`` a figure, ``audit.concerns`` the findings.

    Example:
        >>> import torch
        >>> from boxloop.networks import WeightPosterior
        >>> draws = torch.Generator().manual_seed(0)
        >>> x = torch.randn(300, 2, generator=draws)
        >>> y = x @ torch.tensor([[1.0], [-2.0]]) + 0.5 * torch.randn(300, 1, generator=draws)
        >>> posterior = WeightPosterior(torch.nn.Linear(2, 1), "full", random_state=0)
        >>> optimiser = torch.optim.SGD(posterior.net.parameters(), lr=0.01)
        >>> batches = [(x[i : i + 20], y[i : i + 20]) for i in range(0, 200, 20)]
        >>> _ = posterior.fit(batches, torch.nn.functional.mse_loss, optimiser, epochs=150, burn_in=50)
        >>> result = audit(posterior, x[:200], y[:200], x[200:], y[200:], kind="regression", chains=0)
        >>> result.level, result.concerns[0].what
        ('bad', 'Last layer')
    """
    if chains is not None and check_count(chains, "chains", 0) == 1:
        raise ValueError(f"chains must be 0 or at least 2, so that chains can be compared, got {chains}")
    checks = _AuditChecks(tuple(posterior.components()), X, y, kind, prior_precision, noise)
    X_test, y_test = check_rows_and_outputs(X_test, y_test, "X_test", "y_test")
    draw_seed, chain_seed, label_seed = (seed(stream) for stream in spawn(generator(random_state), 3))
    untuned = Predictor(checks.components, kind, n_draws, seed=draw_seed)
    if has_batch_norm(checks.components):
        inputs: Any = checks.X if isinstance(checks.X, Tensor | dict) else [(checks.X, checks.y)]
        untuned = untuned.refresh_batch_norm(inputs)
    # The last layer comes before what needs prior and noise, as it estimates those that are not given.
    trajectory = checks.run_or_skip("Effective sample size", lambda: checks.check_trajectory(posterior))
    last_layer = checks.run_or_skip("Last layer", lambda: checks.check_last_layer(untuned))
    scored = checks.ensure_noise(untuned if predictor is None else predictor)
    return Audit(
        title=checks.describe_posterior(posterior),
        trajectory=trajectory,
        last_layer=last_layer,
        chains=checks.run_or_skip(
            "Hamiltonian Monte Carlo",
            lambda: checks.compare_chains(untuned, X_test, chains, chain_draws, chain_seed),
        ),
        weight_decay=checks.run_or_skip("Weight decay", lambda: checks.check_weight_decay(optimiser, loss)),
        held_out=score_held_out(scored, X_test, y_test, seed=label_seed),
        skipped=tuple(checks.skipped),
        assumptions=tuple(checks.assumptions),
    )


class _SkippedError(ValueError):
    """A check that cannot run: the reason, the remedy, and how much of a concern that is."""

    def __init__(self, reason: str, remedy: str = "", level: Level = "not run") -> None:
        super().__init__(reason)
        self.remedy, self.level = remedy, level


class _AuditChecks:
    """The checks of an audit, and what they estimate of prior and noise on the way."""

    def __init__(
        self,
        components: tuple[Component, ...],
        X: Any,
        y: Any,
        kind: Kind,
        prior_precision: float | None,
        noise: Any,
    ) -> None:
        self.components, self.kind = components, kind
        self.X, self.y = check_rows_and_outputs(X, y, "X", "y")
        if prior_precision is not None and not prior_precision > 0.0:
            raise ValueError(f"prior_precision must be above 0, got {prior_precision}")
        self.has_prior, self.prior_precision = prior_precision is not None, prior_precision
        self.noise: Any = None if noise is None else np.asarray(noise, dtype=float).reshape(-1)
        self.n_rows = count_rows(self.X)
        self.skipped: list[Concern] = []
        self.assumptions: list[str] = []

    def run_or_skip(self, what: str, check: Callable[[], Check]) -> Check | None:
        """Run a check; if it cannot run, record why."""
        try:
            return check()
        except _SkippedError as error:
            self.skipped.append(Concern(error.level, what, str(error).rstrip("."), error.remedy))
        except ValueError as error:
            self.skipped.append(Concern("not run", what, str(error).rstrip(".")))
        return None

    def describe_posterior(self, posterior: Posterior) -> str:
        """The title of the audit."""
        size = sum(one.distribution.size for one in self.components)
        if isinstance(posterior, WeightPosterior):
            name, rank = type(posterior.method).__name__, self.components[0].distribution.rank
            return f"Audit of {name}: rank {rank}, {size} weights, {posterior.count} vectors"
        return f"Audit of a mixture: {len(self.components)} component(s), {size} weights"

    def check_trajectory(self, posterior: Posterior) -> TrajectoryCheck:
        """Effective sample size and drift of the observed vectors."""
        if not isinstance(posterior, WeightPosterior):
            if len(self.components) > 1:
                self._require_single_component()
            raise _SkippedError("The posterior has no trajectory")
        window = posterior.method.window if isinstance(posterior.method, WindowAverage) else 1
        try:
            return check_trajectory(posterior.trace, window)
        except ValueError as error:
            raise _SkippedError(str(error), "observe more vectors", "bad") from error

    def check_last_layer(self, predictor: Predictor) -> LastLayerCheck:
        """Comparison with the exact posterior; estimates prior and noise if they were not given."""
        component = self._require_single_component()
        buffers = predictor.with_scale(0.0).buffers
        net = build_mean_network(component, None if buffers is None else buffers[0])
        exact = last_layer_laplace(net, self.X, self.y, self.kind, self.prior_precision, self.noise)
        if self.prior_precision is None:
            self.prior_precision = float(exact.alpha.mean())
            self.assumptions.append(
                f"prior precision {self.prior_precision:.3g}, which maximises the evidence of the last layer"
            )
        if self.noise is None and exact.noise is not None:
            self.noise = exact.noise.double().cpu().numpy()
            self.assumptions.append(
                f"noise {_format_list(self.noise)}, which maximises the evidence of the last layer"
            )
        return check_last_layer(component, exact, self.X, self.kind)

    def ensure_noise(self, predictor: Predictor) -> Predictor:
        """The predictor, with noise for regression."""
        if self.kind == "classification" or predictor.noise is not None:
            return predictor
        if self.noise is not None:
            return replace(predictor, noise=self.noise)
        estimated = predictor.estimate_noise(self.X, self.y)
        self.noise = np.ravel(np.asarray(estimated.noise))
        self.assumptions.append(
            f"noise {_format_list(self.noise)}, the root mean square residual of the training rows"
        )
        return estimated

    def compare_chains(
        self, predictor: Predictor, X_test: Any, chains: int | None, draws: int, seed: int
    ) -> ChainComparison:
        """Comparison with Monte Carlo over all weights."""
        component = self._require_single_component()
        size = component.distribution.size
        if chains == 0:
            raise _SkippedError("It was disabled by chains=0")
        if chains is None and (size > MAX_WEIGHTS or size * self.n_rows > MAX_WORK):
            raise _SkippedError(
                f"By default it runs for at most {MAX_WEIGHTS} weights and {MAX_WORK} weights times rows; there are "
                f"{size} weights and {self.n_rows} rows",
                f"pass chains={DEFAULT_CHAINS} to run it",
            )
        if self.prior_precision is None or (self.kind == "regression" and self.noise is None):
            raise _SkippedError("prior_precision or noise is unknown", "pass both")
        rows = slice_rows(as_inputs(X_test), 0, TEST_ROWS)
        outputs = predictor.predict(rows).outputs
        outputs = outputs.reshape(*outputs.shape[:2], -1)
        if self.kind == "classification":
            outputs = np.exp(log_probabilities(outputs, 1.0))
        try:
            return compare_chains(
                component,
                outputs,
                self.X,
                self.y,
                rows,
                kind=self.kind,
                prior_precision=self.prior_precision,
                noise=self.noise,
                chains=DEFAULT_CHAINS if chains is None else chains,
                draws=draws,
                seed=seed,
            )
        except RuntimeError as error:  # vmap or its derivatives do not support a module
            raise _SkippedError(str(error).strip().partition("\n")[0]) from error

    def check_weight_decay(self, optimiser: Optimizer | None, loss: Loss | None) -> DecayCheck:
        """Comparison of the optimiser's weight decay with that of the prior."""
        if optimiser is None:
            raise _SkippedError("No optimiser was given", "pass optimiser=")
        scaling: Loss = loss or ("mean_squared" if self.kind == "regression" else "mean_log")
        precision = None if self.noise is None else 1.0 / float(np.mean(self.noise**2))
        n_outputs = 1 if self.kind == "classification" else math.prod(self.y.shape[1:])
        if not self.has_prior or self.prior_precision is None:
            decay = float(optimiser.param_groups[0].get("weight_decay", 0.0))
            implied = implied_precision(decay, self.n_rows, scaling, precision, n_outputs)
            raise _SkippedError(
                f"No prior precision was given; a coupled decay of {decay:.4g} corresponds to {implied:.3g}",
                "pass prior_precision=",
            )
        return check_weight_decay(
            optimiser,
            self.prior_precision,
            self.n_rows,
            scaling,
            noise_precision=precision,
            n_outputs=n_outputs,
            parameters=[one.net.get_parameter(name) for one in self.components for name in one.layout.names],
        )

    def _require_single_component(self) -> Component:
        if len(self.components) > 1:
            raise _SkippedError("The posterior is a mixture of several runs", "audit each run")
        return self.components[0]


def check_rows_and_outputs(X: Any, y: Any, *names: str) -> tuple[Inputs, Any]:
    """Rows and their outputs as tensors or arrays, from frames, lists or tensors."""
    rows, outputs = as_inputs(X), y.detach() if isinstance(y, Tensor) else to_labels(y, names[1])
    if not isinstance(outputs, Tensor) and outputs.dtype.kind not in "fiub":
        raise ValueError(f"{names[1]} must hold numbers, or class numbers 0, 1, ..., got {outputs.dtype}")
    if outputs.ndim == 0 or len(outputs) != count_rows(rows):
        n = len(outputs) if outputs.ndim else 1
        raise ValueError(f"{names[0]} has {count_rows(rows)} rows and {names[1]} has {n}")
    if not all(bool(one.isfinite().all()) for one in iterate_tensors(rows)):
        raise ValueError(f"{names[0]} must be finite, but holds NaN or infinite values")
    return rows, outputs


def _format_list(values: Array) -> str:
    return ", ".join(f"{value:.3g}" for value in values[:3]) + (", ..." if len(values) > 3 else "")


@dataclass(frozen=True)
class HeldOutScores:
    """Scores on held-out rows."""

    posterior: Any  # RegressionScores or ClassificationScores of the average over networks
    mean: Any  # those of the mean network, with the same noise or temperature
    epistemic: float  # root mean square epistemic standard deviation, or mean mutual information for classes

    @property
    def differences(self) -> dict[str, Difference]:
        """Scores of the posterior minus those of the mean network, paired by row."""
        differences: dict[str, Difference] = self.posterior.difference(self.mean)
        return differences

    @property
    def concerns(self) -> tuple[Concern, ...]:
        """One about the log score relative to the mean network, one about calibration."""
        if isinstance(self.posterior, RegressionScores):
            return (self._assess_log_score(), _assess_coverage(self.posterior))
        return (self._assess_log_score(), _assess_calibration(self.posterior))

    def table(self) -> Any:
        """A frame with one row per score: posterior, mean network, difference and its paired standard error."""
        differences = self.differences
        own, mean = _mean_scores(self.posterior), _mean_scores(self.mean)
        columns = {
            "posterior": [own[name] for name in differences],
            "mean network": [mean[name] for name in differences],
            "difference": [one.value for one in differences.values()],
            "standard_error": [one.standard_error for one in differences.values()],
        }
        return make_frame(columns, list(differences))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Coverage or reliability of both in ``ax``, or in a new figure, with the band expected by chance."""
        from boxloop.figures import predictor_coverage, reliability_diagram

        both = {"posterior": self.posterior, "mean network": self.mean}
        if isinstance(self.posterior, RegressionScores):
            transforms = {name: scores.transform for name, scores in both.items()}
            return predictor_coverage(transforms, ax, title="Coverage of held-out rows")
        curves = {name: scores.reliability.curve() for name, scores in both.items()}
        return reliability_diagram(curves, ax, title="Reliability on held-out rows")

    def _assess_log_score(self) -> Concern:
        gain = self.differences["log score"]
        why = (
            f"On {self.posterior.n_rows} held-out rows the mean log score differs from that of the mean network by "
            f"{gain}"
        )
        if gain.z < -SIGNIFICANT:
            remedy = "tune the scale on validation rows, or use the mean network (method='swa')"
            return Concern("bad", "Predictions", why, remedy)
        if not gain.z > SIGNIFICANT:
            why += ", which is not significant"
        return Concern("good", "Predictions", why)


def score_held_out(predictor: Predictor, X: Any, y: Any, *, seed: int) -> HeldOutScores:
    """Score a predictor, and the same with the mean network alone."""
    prediction, mean = predictor.predict(X), predictor.with_scale(0.0).predict(X)
    if isinstance(prediction, ClassificationPrediction):
        epistemic = float(prediction.mutual_information.mean())
    else:
        epistemic = float(np.sqrt(np.mean(prediction.epistemic_std**2)))
    return HeldOutScores(_score_prediction(prediction, y, seed), _score_prediction(mean, y, seed), epistemic)


def _score_prediction(prediction: Any, y: Any, seed: int) -> Scores:
    if isinstance(prediction, RegressionPrediction):
        m, n = prediction.outputs.shape[:2]
        observed = check_targets(y, prediction.mean.shape)
        noise = np.broadcast_to(np.asarray(prediction.noise), prediction.mean.shape).reshape(n, -1)
        draws = prediction.outputs.reshape(m, n, -1)
        return regression_scores(observed, std=noise, draws=draws, weight=prediction.allocation.weight)
    classes = check_classes(y, prediction.outputs.shape[1:])
    return classification_scores(prediction.probability, classes, random_state=seed)


def _mean_scores(scores: Scores) -> dict[str, float]:
    """Mean scores by name, the outputs of a row summed."""
    if isinstance(scores, RegressionScores):
        rows = {"log score": scores.log_score, "CRPS": scores.crps, "squared error": scores.squared_error}
        return {name: float(values.sum(1).mean()) for name, values in rows.items()}
    return {
        "log score": float(scores.log_score.mean()),
        "Brier score": float(scores.brier.mean()),
        "accuracy": scores.accuracy,
    }


def _assess_coverage(scores: Any) -> Concern:
    lines = scores.coverage(LEVELS).to_dict("records")
    worst = min(lines, key=lambda line: line["p_value"])
    if worst["p_value"] * len(lines) >= RATE:
        first = lines[: len(LEVELS)]
        shares = ", ".join(f"{line['inside']:.1%} in {line['level']:.0%} intervals" for line in first)
        why = f"The {scores.n_rows} held-out rows lie in their intervals as often as they should: {shares}"
        return Concern("good", "Coverage", why)
    gap = worst["inside"] - worst["level"]
    output = "" if len(scores.names) == 1 else f" of {worst['output']}"
    why = (
        f"The {worst['level']:.0%} intervals{output} contain {worst['inside']:.1%} of held-out rows, "
        f"{abs(worst['z']):.1f} standard errors too {'few' if gap < 0.0 else 'many'}"
    )
    level: Level = "bad" if -gap > LARGE_GAP else "doubtful"
    return Concern(level, "Coverage", why, "tune noise and scale on validation rows")


def _assess_calibration(scores: Any) -> Concern:
    reliability = scores.reliability
    why = (
        f"The calibration error is {reliability.calibration_error:.3f} ± {reliability.standard_error:.3f}; a "
        f"calibrated model would have {reliability.chance:.3f}, and at most {reliability.chance_high:.3f}"
    )
    if reliability.p_value >= RATE:
        return Concern("good", "Calibration", why)
    level: Level = "bad" if reliability.calibration_error - reliability.chance > LARGE_GAP else "doubtful"
    return Concern(level, "Calibration", why, "tune temperature and scale on validation rows")
