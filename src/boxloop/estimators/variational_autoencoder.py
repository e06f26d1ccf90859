"""Variational autoencoders as an estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor, nn

from boxloop.average import Schedule
from boxloop.criticise import MomentPenalty
from boxloop.data import (
    ArraySource,
    Standardisation,
    StandardisedSource,
    check_count,
    check_parameters,
    has_equal_weights,
    identity_standardisation,
)
from boxloop.estimators._base import Array, to_numpy, warn_of
from boxloop.estimators._decoder import DecoderEstimator, check_image_shape
from boxloop.estimators._input import COMMON, Likelihood, map_rows, pick_device, pick_dtype
from boxloop.estimators._training import (
    COUNT,
    POSITIVE,
    RATE,
    NetworkShapes,
    TrainingRun,
    check_convergence,
    make_part,
    make_plan,
)
from boxloop.fit import (
    SINGLE_PROCESS,
    Constant,
    Epochs,
    Trainer,
    TrainState,
    Warming,
    Workers,
    coordinates,
    current_workers,
    hold_out,
    resample_rows,
)
from boxloop.loop import Outcome, Progress
from boxloop.models import (
    CONSTRAINTS,
    MAX_SCORE_DRAWS,
    Autoencoder,
    BernoulliHead,
    CategoricalHead,
    Convolutions,
    Deconvolutions,
    GaussianHead,
    Layers,
    LowRankHead,
    NormalMixturePrior,
    Part,
    PoissonHead,
    SavedModule,
    StandardNormal,
)
from boxloop.numeric import generator, join_words, mean_and_error, seed, spawn
from boxloop.persist import PROGRESS, ModelFile, ModelFileError, Saved, load_model
from boxloop.select import GroupedSums, measure_gaps_to_best
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FACTS: dict[str, Any] = {
    **PROGRESS,
    "n_samples_seen_": float,
    "history_": dict[str, list[float]],
    "alpha_": float | None,
    "alphas_": dict[str, list[float]] | None,
    "image_shape_": tuple[int, ...] | None,
    "training_digest_": str | None,
}
"""Fitted attributes in a file, beside the model."""


def _check_image_networks(estimator: Any, saved: Saved) -> str | None:
    model: Any = saved.tree
    networks = (model.encoder.network, model.decoder.network)
    if estimator.image_shape_ is None and any(isinstance(n, Convolutions | Deconvolutions) for n in networks):
        return "its networks are of images, but the fitted attribute 'image_shape_' is None"
    return None


@dataclass(eq=False, repr=False, kw_only=True)
class VariationalAutoencoder(DensityMixin, DecoderEstimator):
    r"""Variational autoencoder: rows decoded from a low-dimensional code, fitted by the evidence lower bound.

    .. math:: \frac1n \sum_i E_{q(z \mid x_i)} \log p(x_i \mid z) - \beta \, \mathrm{KL}(q(z \mid x_i) \,\|\, p(z))
        - \alpha \left( \|\text{1MEGA}\|_2 + \sqrt{\|\text{2MEGA}\|_F} \right)

    Le Corff, section 3.4; the last term, a penalty on moment gaps, is eq. 18 and 19 of Beaulac (2023). Input is rows,
    or images (n, H, W) or (n, C, H, W), for which the default networks are convolutional; images are flattened inside.

    Args:
        n_components: columns k of the code.
        encoder: a ``torch.nn.Module`` (n, d) -> (n, 2k), mean and log-variance of the code; a default when ``None``.
        decoder: a ``torch.nn.Module`` (n, k) -> (n, columns that the likelihood wants: d, or 2d with variance
            ``diagonal``, or one for each category); a default when ``None``. Modules see standardised, flattened rows.
        hidden: widths of the default networks' layers, reversed in the decoder, or channels of their convolutions;
            ``()`` makes them linear, ``None`` is (128, 128), and (32, 64) for images.
        likelihood: ``gaussian``, ``bernoulli`` (values in [0, 1]), ``poisson`` (counts), ``categorical`` (codes
            0, 1, ... in each column).
        variance: of a Gaussian likelihood: ``diagonal`` from the decoder, ``shared`` one per column, ``spherical`` one
            for all, ``low_rank`` correlated columns, shared.
        rank: of a low-rank covariance.
        noise_floor: smallest variance of a Gaussian likelihood, relative to that of a column; of all pixels together
            for images. Without a floor the likelihood is unbounded; raise it if columns hardly vary except in a few
            rows.
        prior: ``normal``, or ``mixture``, a mixture of normals that is learned.
        prior_components: members of a mixture prior.
        n_draws: M, draws of the code for a row's bound in training.
        beta: weight of the divergence.
        alpha: weight of the moment penalty, a number; a function of the step, such as
            :class:`boxloop.fit.Warming`; or ``validation``: fits at 0, 0.01, 0.03, 0.1, 0.3 and 1 from the
            same start, of which the one with the smallest moment gap of validation rows is selected among those whose
            validation bound is within one standard error (of the paired difference) of the best.
        alpha_from: share of ``max_iter`` without the penalty, which then rises to its weight over another fifth of it;
            ``patience`` begins to count after that. With 0 the penalty applies from the start, as in Beaulac (2023):
            codes then easily collapse, as one Gaussian has the right moments too. Ignored if ``alpha`` is a function.
        penalty_nodes: draws of the code for the model's moments.
        learning_rate: of AdamW.
        schedule: ``constant``, or ``cosine``: it falls to zero over ``max_iter`` epochs.
        weight_decay: of AdamW.
        clip: largest norm of a gradient.
        batch_size: rows of a mini-batch; all rows if there are fewer.
        max_iter: most epochs.
        patience: epochs without a better validation loss before training ends; ``None`` never ends it.
        validation_fraction: share of the rows that is held out to select the best epoch; with 0 the last is used.
        precision: ``full``, or ``mixed``: networks in bfloat16 where PyTorch's autocast allows it; needs ``float32``.
        score_draws: draws for :meth:`score_samples`, at most 2^20.
        random_state: seed or generator; global state is never used.
        warm_start: start from the previous fit's networks.
        verbose: show a progress bar with the parts of the bound.
        checkpoint: file to save progress in and to resume from, on any device.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: precision of the networks, ``float32`` or ``float64``.

    Attributes:
        model_: the fitted :class:`boxloop.models.vae.Autoencoder`, in the units of the data.
        n_iter_: epochs done.
        history_: lists with one entry per epoch, by name: ``elbo``, ``reconstruction``, ``divergence``, ``loss``,
            ``penalty``, ``rate``, ``refused`` steps so far, and ``validation_elbo``, ``validation_gap`` and so on, in
            nats per row.
        alpha_: the weight of the penalty, at the end of its schedule.
        alphas_: the table by which ``alpha='validation'`` selected, by column; else ``None``.
        converged_: whether validation stopped improving; False if ``max_iter`` came first, planned or not.
        interrupted_: whether Ctrl-C ended the fit; the last complete iteration is used.
        events_: concerns about the fit.
        n_samples_seen_: total weight of the rows.
        image_shape_: of one image, ``None`` for rows.

    Example:
        >>> import numpy as np
        >>> from boxloop import VariationalAutoencoder
        >>> rng = np.random.default_rng(0)
        >>> factor = rng.normal(size=(500, 1))
        >>> X = np.sin(factor * [1.0, 2.0, -1.0]) + 0.1 * rng.normal(size=(500, 3))
        >>> fit = VariationalAutoencoder(1, learning_rate=0.01, max_iter=20, patience=None, random_state=0).fit(X)
        >>> bool(np.corrcoef(factor[:, 0], fit.transform(X)[:, 0])[0, 1] ** 2 > 0.5)
        True
    """

    n_components: int = field(default=2, kw_only=False)
    encoder: nn.Module | None = None
    decoder: nn.Module | None = None
    hidden: Any = None
    likelihood: str = "gaussian"
    variance: str = "diagonal"
    rank: int = 1
    noise_floor: float = 1e-4
    prior: str = "normal"
    prior_components: int = 10
    n_draws: int = 1
    beta: float = 1.0
    alpha: Any = 0.0
    alpha_from: float = 0.5
    penalty_nodes: int = 512
    learning_rate: float = 1e-3
    schedule: str = "constant"
    weight_decay: float = 0.0
    clip: float = 100.0
    batch_size: int = 128
    max_iter: int = 200
    patience: int | None = 20
    validation_fraction: float = 0.1
    precision: str = "full"
    score_draws: int = 256
    random_state: Any = None
    warm_start: bool = False
    verbose: int = 0
    checkpoint: Any = None
    device: str = "cpu"
    dtype: str = "float32"

    _model_file: ClassVar[ModelFile] = ModelFile(
        Autoencoder,
        (
            Part, Layers, Convolutions, Deconvolutions, SavedModule, StandardNormal, NormalMixturePrior, GaussianHead,
            LowRankHead, BernoulliHead, PoissonHead, CategoricalHead,
        ),
        CONSTRAINTS,
        FACTS,
        modules={"encoder": "encoder", "decoder": "decoder"},
        checks=(check_image_shape, _check_image_networks),
    )  # fmt: skip
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "encoder": [nn.Module, None],
        "decoder": [nn.Module, None],
        "hidden": ["array-like", None],
        "likelihood": [StrOptions({"gaussian", "bernoulli", "poisson", "categorical"})],
        "variance": [StrOptions({"diagonal", "shared", "spherical", "low_rank"})],
        "prior": [StrOptions({"normal", "mixture"})],
        "alpha": [RATE, StrOptions({"validation"}), callable],
        "alpha_from": [Interval(Real, 0.0, 0.8, closed="both")],
        "penalty_nodes": [Interval(Integral, 2, None, closed="left")],
        "schedule": [StrOptions({"constant", "cosine"})],
        "patience": [COUNT, None],
        "validation_fraction": [Interval(Real, 0.0, 1.0, closed="left")],
        "precision": [StrOptions({"full", "mixed"})],
        **{name: [COUNT] for name in ("rank", "prior_components", "n_draws", "batch_size")},
        "score_draws": [Interval(Integral, 1, MAX_SCORE_DRAWS, closed="both")],
        **{name: [RATE] for name in ("beta", "weight_decay")},
        **{name: [POSITIVE] for name in ("learning_rate", "clip", "noise_floor")},
        **{
            name: COMMON[name]
            for name in (
                "n_components", "max_iter", "random_state", "warm_start", "verbose", "checkpoint", "device", "dtype",
            )
        },
    }  # fmt: skip

    @check_parameters
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train the networks.

        Args:
            X: complete rows (n, d), or images (n, H, W) or (n, C, H, W) as an array: an array, frame, source, or a path
                of a CSV, Parquet or npy file or folder. Rows of a file larger than memory are shuffled in windows.
            y: ignored.
            sample_weight: one non-negative weight per row.

        Returns:
            The estimator itself.
        """
        source = self._open(X, sample_weight, reset=True)
        if source.n_rows < 2:
            raise ValueError(f"an autoencoder needs at least 2 rows, got n_samples = {source.n_rows}")
        if self.precision == "mixed" and self.dtype != "float32":
            raise ValueError("precision='mixed' needs dtype='float32'")
        before = vars(self).get("model_") if self.warm_start else None
        survey = coordinates(source, "columns" if self.image_shape_ is None else "common")
        frame = survey if self.likelihood == "gaussian" else identity_standardisation(source)
        if before is not None:
            frame = replace(frame, origin=before.origin.to(frame.origin), scale=before.scale.to(frame.scale))
        setup = _prepare_training(self, source, frame, survey, before)
        concerns = find_data_concerns(survey, source.names, self.n_components, self.likelihood)
        self.alphas_: dict[str, list[float]] | None = None
        if isinstance(self.alpha, str):
            outcome, alpha, self.alphas_ = _select_alpha(self, setup)
        else:
            outcome = _train_with_penalty(self, setup, self.alpha, 0)
            last_step = self.max_iter * setup.epochs.per_epoch
            alpha = float(self.alpha(last_step) if callable(self.alpha) else self.alpha)
        self.alpha_: float = alpha
        state = outcome.state
        model = state.fitted(setup.start)
        if model.head.continuous:
            model = model.affine(frame.origin, frame.scale)
        else:  # Results in double precision, as those of standardised rows.
            model = replace(model, origin=model.origin.double(), scale=model.scale.double())
        self.model_: Autoencoder = replace(model, score_draws=self.score_draws)
        has_validation = setup.validation is not None
        self.converged_: bool = check_convergence(
            self, outcome, has_validation, "the validation bound still rose"
        )
        self.history_: dict[str, list[float]] = state.history_by_name()
        self.n_iter_: int = state.epoch
        self.interrupted_: bool = outcome.interrupted
        self.events_: list[str] = [
            *concerns,
            *_find_penalty_concerns(self, state, self.alpha_),
            *outcome.events,
        ]
        self.n_samples_seen_: float = frame.weight
        self.training_digest_: str | None = survey.digest
        warn_of(self.events_)
        return self

    def _from_tree(self, tree: Autoencoder) -> None:
        with torch.no_grad():  # A file's constraints check the networks of boxloop, not those of the user.
            for name, part, columns in (
                ("encoder", tree.encoder, len(tree.origin)),
                ("decoder", tree.decoder, tree.latent.columns),
            ):
                probes = torch.tensor([[0.0], [10.0], [-10.0]]).expand(3, columns)
                if not bool(torch.isfinite(part(probes).square()).all()):
                    raise ModelFileError(f"parameters of the {name} are so large that the network overflows")
        super()._from_tree(tree)

    @classmethod
    def load(
        cls, path: str | PathLike[str], *, encoder: nn.Module | None = None, decoder: nn.Module | None = None
    ) -> Self:
        """Read what :meth:`save` wrote, onto the CPU. Nothing in the file can run.

        Args:
            path: the file.
            encoder: the module whose tensors were saved, if the fit had one; its tensors are replaced.
            decoder: the same of the decoder.
        """
        return load_model(path, cls, {"encoder": encoder, "decoder": decoder})

    @property
    def _row_likelihood(self) -> Likelihood:
        likelihood: Any = self.likelihood  # one of them, as the constraints of parameters check
        return likelihood

    def _format_codes(self, codes: Tensor) -> Any:
        """Codes in the precision of the networks."""
        return codes.cpu().numpy().astype(self.dtype)

    def transform(self, X: Any) -> Array:
        """Mean of each row's code, (n, k)."""
        return self._format_codes(map_rows(self, X, lambda rows: self.model_.posterior(rows).mean))

    def posterior(self, X: Any) -> tuple[Array, Array]:
        """Mean and standard deviation of each row's code under q(z|x), (n, k) each."""

        def encode_tile(rows: Tensor) -> Tensor:
            posterior = self.model_.posterior(rows)
            return torch.cat([posterior.mean, posterior.covariance().diagonal().sqrt()], 1)

        mean, deviation = map_rows(self, X, encode_tile).chunk(2, dim=1)
        return self._format_codes(mean), self._format_codes(deviation)

    def score_samples(self, X: Any) -> Array:
        """Importance-weighted lower bound of each row's log-density from ``score_draws`` codes, (n,), in nats.

        It approaches log p(x) from below with more draws (Burda, Grosse and Salakhutdinov 2016). Minus infinity for a
        row whose density underflows.

        Raises:
            ValueError: a row on which the networks overflow.
        """
        found = to_numpy(map_rows(self, X, lambda rows: self.model_.log_prob(rows)))
        self._check_bounds(found, np.isnan(found))
        return found

    def _check_bounds(self, found: Array, bad: Any) -> None:
        """Refuse bounds that overflowed, naming the first row."""
        if bad.any():
            row = int(bad.argmax())
            remedy = "" if self.dtype == "float64" else ", or fit with dtype='float64'"
            raise ValueError(
                f"the bound of row {row} (counted from 0) of X is {found[row]}: the row lies so far from the rows of "
                f"the fit that the networks overflow; leave it out or bring it to the scale of the fit{remedy}"
            )

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Mean of :meth:`score_samples` by the weights of rows, a lower bound of the mean log-density.

        Raises:
            ValueError: a row whose bound is not finite.
        """
        mean = self._sum_rows(X, sample_weight, lambda rows: self.model_.log_prob(rows)).mean
        if not np.isfinite(mean):
            found = self.score_samples(X)
            self._check_bounds(found, ~np.isfinite(found))
        return mean

    def elbo(self, X: Any, n_draws: int = 16) -> Evidence:
        """The evidence lower bound of the rows and its parts, with standard errors over rows.

        Args:
            X: rows or images.
            n_draws: draws of the code for each row's bound.

        Raises:
            ValueError: a row whose bound is not finite.
        """
        check_is_fitted(self)
        check_count(n_draws, "n_draws")
        stream = generator(self.random_state, self.model_.origin.device)

        def measure_bound(rows: Tensor) -> Tensor:
            bound = self.model_.evidence_bound(rows, stream, n_draws)
            return torch.stack([bound.value(), bound.reconstruction, bound.divergence], 1)

        found = to_numpy(map_rows(self, X, measure_bound))
        self._check_bounds(found[:, 0], ~np.isfinite(found).all(1))
        return Evidence(*(number for column in found.T for number in mean_and_error(column)))

    def n_parameters(self) -> int:
        """Number of trained parameters."""
        check_is_fitted(self)
        return sum(value.numel() for value in self.model_.trainable())

    def plot_trace(self, ax: Axes | None = None) -> Axes:
        """The bound by epoch: of validation rows if there are any, else of the training rows."""
        return self._plot_history(ax, "elbo", "lower bound per row", "validation lower bound per row")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self.likelihood != "gaussian"
        tags.transformer_tags.preserves_dtype = []
        return tags


@dataclass(frozen=True)
class Evidence:
    """The evidence lower bound (ELBO) and its parts, as means over rows with their standard errors.

    Args:
        elbo: reconstruction less divergence; below the log-density.
        elbo_error: its standard error over rows.
        reconstruction: E log p(x|z) under q(z|x).
        reconstruction_error: its standard error.
        divergence: KL(q(z|x) || p(z)).
        divergence_error: its standard error.
    """

    elbo: float
    elbo_error: float
    reconstruction: float
    reconstruction_error: float
    divergence: float
    divergence_error: float


IGNORED = ("verbose", "checkpoint", "device", "score_draws", "warm_start")
"""Parameters that do not change the path of a fit."""

VALIDATION_VALUES = 1 << 25
"""Most values of the validation rows, which are in memory."""

RISE = 0.2
"""Share of all epochs over which a penalty that begins late rises to its weight."""


@dataclass(frozen=True)
class _TrainingSetup:
    """All that training needs, for every weight of the penalty."""

    start: Autoencoder
    epochs: Epochs
    loss: BoundLoss
    validation: Validation | None
    source: Source
    device: torch.device
    seed: int
    weighted: bool


def _find_penalty_concerns(estimator: BaseEstimator, state: TrainState, alpha: float) -> tuple[str, ...]:
    """Whether the selected epoch came before the penalty."""
    values = state.history_by_name().get("validation_loss", [])
    if callable(estimator.alpha) or not alpha or not values:
        return ()
    best = int(np.nanargmin(values)) + 1 if np.isfinite(values).any() else 0
    if best > estimator.alpha_from * estimator.max_iter or not estimator.alpha_from:
        return ()
    share = f"alpha_from={estimator.alpha_from:g} of max_iter={estimator.max_iter}"
    return (
        f"epoch {best}, the best on validation rows, came before the moment penalty began ({share}), which had no "
        "effect; lower max_iter or alpha_from",
    )


def _prepare_training(
    estimator: BaseEstimator,
    source: Source,
    frame: Standardisation,
    survey: Standardisation,
    before: Autoencoder | None,
) -> _TrainingSetup:
    device, dtype = pick_device(estimator.device), pick_dtype(estimator.dtype)
    rows = StandardisedSource(source, frame, dtype)
    streams = spawn(generator(estimator.random_state), 5)
    split_seed, order_seed, own_seed = (seed(stream) for stream in streams[:3])
    most = max(1, VALIDATION_VALUES // source.n_columns)
    mask, validation_rows = hold_out(rows, estimator.validation_fraction, split_seed, most)
    head = _make_head(estimator, source, dtype, streams[3])
    k = estimator.n_components
    latent: Any = StandardNormal(k)
    if estimator.prior == "mixture":
        latent = NormalMixturePrior.initial(estimator.prior_components, k, streams[3], dtype)
    shapes = NetworkShapes.from_parameters(source.n_columns, k, estimator.image_shape_, estimator.hidden)
    start = start_model(shapes, head, latent, estimator.encoder, estimator.decoder, device, dtype, streams[4])
    if before is None:
        start = _match_means(start, estimator.likelihood, survey)
    else:
        start = _continue_from(start, before)
    unit = frame.weight / source.n_rows
    loss = BoundLoss(
        estimator.beta, estimator.n_draws, unit, -float(frame.scale.log().sum()), current_workers()
    )
    epochs = Epochs(rows, estimator.batch_size, order_seed, mask)
    weighted = not has_equal_weights(source)
    gap = _make_moment_gap(estimator.penalty_nodes, device)
    validation = None if validation_rows is None else Validation(validation_rows, loss, gap, weighted)
    return _TrainingSetup(start, epochs, loss, validation, source, device, own_seed, weighted)


def _continue_from(start: Autoencoder, before: Autoencoder) -> Autoencoder:
    """The start with the parameters of an earlier fit."""
    learned = tuple(value.to(like) for value, like in zip(before.trainable(), start.trainable()))
    if [value.shape for value in learned] != [value.shape for value in start.trainable()]:
        raise ValueError(
            "warm_start needs a previous fit with the same columns, networks, likelihood and prior"
        )
    return start.with_trainable(learned)


def _train_with_penalty(
    estimator: BaseEstimator, setup: _TrainingSetup, alpha: Any, number: int
) -> Outcome[TrainState]:
    """Train at one weight of the penalty."""
    steps = estimator.max_iter * setup.epochs.per_epoch
    rise, after = int(RISE * steps), int(estimator.alpha_from * steps)
    late = Warming(float(alpha), rise, after) if not callable(alpha) and after else None
    weight: Schedule = alpha if callable(alpha) else late or Constant(float(alpha))
    plan = make_plan(
        estimator,
        steps,
        setup.validation is not None,
        weight=weight,
        least=after + rise if late is not None and alpha > 0.0 else 0,
        by_weight=setup.weighted,
        mixed=estimator.precision == "mixed",
    )
    last = weight(steps)
    if not last >= 0.0:
        raise ValueError(f"alpha must not be negative, got {last} at step {steps}")
    penalised = callable(alpha) or last > 0.0
    penalty = _make_moment_gap(estimator.penalty_nodes, setup.device).gap if penalised else None
    validate = None if setup.validation is None else replace(setup.validation, alpha=last)
    trainer = Trainer(setup.start, setup.epochs, setup.loss, plan, penalty, validate, current_workers())
    name = f"{type(estimator).__name__} alpha={alpha:g}" if isinstance(estimator.alpha, str) else ""
    run = TrainingRun(
        estimator, trainer, setup.source, _describe_progress, setup.seed, IGNORED, name=name, number=number
    )
    return run()


def _describe_progress(progress: Progress[TrainState]) -> str:
    """The text of the progress bar: the epoch, the bound and its parts, the moment gap."""
    state = progress.state
    recent = dict(zip(state.names, state.recent.tolist()))
    parts = [f"epoch {state.epoch}"]
    if recent:
        parts.append(
            f"elbo {recent['elbo']:.4g} = {recent['reconstruction']:.4g} - {recent['divergence']:.4g}"
        )
    past = state.history_by_name()
    if past.get("validation_elbo"):
        parts.append(f"validation {past['validation_elbo'][-1]:.4g}, gap {past['validation_gap'][-1]:.3g}")
    elif "penalty" in recent:
        parts.append(f"gap {recent['penalty']:.3g}")
    return ", ".join(parts)


def _select_alpha(
    estimator: BaseEstimator, setup: _TrainingSetup
) -> tuple[Outcome[TrainState], float, dict[str, list[float]]]:
    """Train at every weight of the grid from the same start, and select by validation rows."""
    validation = setup.validation
    if validation is None:
        raise ValueError("alpha='validation' needs rows to validate on: set validation_fraction above 0")
    outcomes: list[Outcome[TrainState]] = []
    for number, alpha in enumerate(ALPHAS):
        outcomes.append(_train_with_penalty(estimator, setup, alpha, number))
        if outcomes[-1].interrupted:
            break
    tried = ALPHAS[: len(outcomes)]
    models = [outcome.state.fitted(setup.start) for outcome in outcomes]
    bounds = [validation.compute_row_bounds(model, setup.seed) for model in models]
    gaps = [validation.measure_fixed_gap(model, setup.seed) for model in models]
    assert validation.rows.weight is not None
    best, table = choose_alpha(tried, bounds, gaps, validation.rows.weight.double().cpu().numpy())
    interrupted = outcomes[-1].interrupted
    events = [event for outcome in outcomes for event in outcome.events]
    return replace(outcomes[best], events=events, interrupted=interrupted), tried[best], table


def start_model(
    shapes: NetworkShapes,
    head: Any,
    latent: Any,
    encoder: nn.Module | None,
    decoder: nn.Module | None,
    device: torch.device,
    dtype: torch.dtype,
    stream: Generator,
) -> Autoencoder:
    """A model of standardised rows; default networks start alike on every device."""
    streams = spawn(stream, 2)
    width, image = head.raw_columns(shapes.columns), shapes.convolution_input
    encoding: Any = Layers(shapes.columns, shapes.widths, 2 * shapes.codes)
    decoding: Any = Layers(shapes.codes, shapes.widths[::-1], width)
    if image is not None:
        encoding = Convolutions(image, shapes.widths, 2 * shapes.codes)
        if width % shapes.columns == 0 and not isinstance(head, CategoricalHead):
            output = (image[0] * (width // shapes.columns), *image[1:])
            decoding = Deconvolutions(output, shapes.widths[::-1], shapes.codes)
    parts = [
        make_part(module, network, device, dtype, own)
        for module, network, own in ((encoder, encoding, streams[0]), (decoder, decoding, streams[1]))
    ]
    return Autoencoder.from_parts(parts[0], parts[1], head.to(device), latent.to(device), shapes.columns)


def _make_head(estimator: BaseEstimator, source: Source, dtype: torch.dtype, stream: Generator) -> Any:
    """The likelihood of rows given the decoder's output; categories of a column are those up to its largest code."""
    likelihood, rank, floor = estimator.likelihood, estimator.rank, estimator.noise_floor
    if likelihood == "bernoulli":
        return BernoulliHead()
    if likelihood == "poisson":
        return PoissonHead()
    if likelihood == "categorical":
        largest = torch.stack([rows.amax(0) for rows, _ in source.chunks()]).amax(0)
        return CategoricalHead.from_sizes([int(code) + 1 for code in largest.tolist()])
    if estimator.variance == "low_rank":
        if rank >= source.n_columns:
            raise ValueError(f"rank={rank} must be below the {source.n_columns} columns of the rows")
        return LowRankHead.initial(source.n_columns, rank, stream, dtype, floor=floor)
    return GaussianHead.initial(estimator.variance, source.n_columns, dtype, floor=floor)


def _match_means(model: Autoencoder, likelihood: Likelihood, frame: Standardisation) -> Autoencoder:
    """A start at the columns' means, for likelihoods whose rows cannot be standardised.

    The first layer of the default encoder standardises counts, and the last layer of the default decoder outputs the
    mean of each column: otherwise rates near 1000 take many steps to reach.
    """
    if likelihood not in ("bernoulli", "poisson"):
        return model
    mean, encoder, decoder = frame.origin, model.encoder, model.decoder
    if likelihood == "poisson" and isinstance(encoder.network, Layers):
        slope, shift, *rest = encoder.parameters
        slope = (slope.double() / frame.scale.clamp(min=1.0)[:, None]).to(slope)
        encoder = replace(encoder, parameters=(slope, shift - mean.to(slope) @ slope, *rest))
    bias = _natural_parameter(likelihood, mean, frame.weight)
    if isinstance(decoder.network, Layers):
        decoder = replace(decoder, parameters=(*decoder.parameters[:-1], bias.to(decoder.parameters[-1])))
    elif isinstance(decoder.network, Deconvolutions):
        last = decoder.parameters[-1]
        channel_bias = _natural_parameter(likelihood, mean.reshape(len(last), -1).mean(1), frame.weight)
        decoder = replace(decoder, parameters=(*decoder.parameters[:-1], channel_bias.to(last)))
    return replace(model, encoder=encoder, decoder=decoder)


def _natural_parameter(likelihood: Likelihood, mean: Tensor, weight: float) -> Tensor:
    """Log-odds or log-rates of means, at least half a row from the boundary."""
    least = 0.5 / (weight + 1.0)
    return (
        mean.clamp(least, 1.0 - least).logit() if likelihood == "bernoulli" else mean.clamp(min=least).log()
    )


ALPHAS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Weights of the moment penalty that ``alpha='validation'`` compares."""

TILE = 1 << 12
"""Rows whose bound is computed at once without gradients."""

VALIDATION_DRAWS = 16
"""Least draws of z for the bound of a validation row: these rows are few, and need no gradient."""


@dataclass(frozen=True)
class BoundLoss:
    r"""Minus the evidence lower bound of a batch, the mean over its rows.

    .. math:: -\frac1n \sum_i w_i \left( E_q \log p(x_i \mid z) - \beta \, \mathrm{KL}_i \right)

    Its parts are reported with beta = 1, and with ``offset``, the log-density of the data less that of standardised
    rows. Weights are divided by ``unit``, their mean; ``workers`` share the rows of a batch and the noise of all.
    """

    beta: float = 1.0
    draws: int = 1
    unit: float = 1.0
    offset: float = 0.0
    workers: Workers = SINGLE_PROCESS

    def __call__(
        self, model: Autoencoder, rows: Tensor, weight: Tensor, stream: Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and its parts."""
        own, count = self.workers.local_rows(len(rows))
        noise = model.draw_noise((self.draws, len(rows)), stream)
        bound = model.standard_bound(rows[own], noise[:, own])
        share = (weight[own] / (self.unit * count)).to(bound.divergence)
        fit, divergence = (bound.reconstruction + self.offset) @ share, bound.divergence @ share
        parts = {"elbo": fit - divergence, "reconstruction": fit, "divergence": divergence}
        return self.beta * divergence - fit, parts


def _make_moment_gap(nodes: int, device: torch.device) -> MomentPenalty:
    """The moment gap of Beaulac (2023), eq. 18, by Sobol nodes; on a GPU by faster pseudorandom draws."""
    return MomentPenalty(1.0, nodes, "sobol" if device.type == "cpu" else "monte_carlo")


@dataclass(frozen=True)
class Validation:
    """Validation of a model: the bound of held-out rows, and their moment gap, which counts with weight ``alpha``."""

    rows: ArraySource
    loss: BoundLoss
    gap: MomentPenalty
    weighted: bool = False
    alpha: float = 0.0

    def __call__(self, model: Autoencoder, stream: Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and its parts with the gap."""
        assert self.rows.weight is not None
        unit = float(self.rows.weight.mean())
        draws = max(self.loss.draws, VALIDATION_DRAWS)
        loss = replace(self.loss, unit=unit if unit > 0.0 else 1.0, draws=draws)
        total, parts = self.rows.rows.new_zeros(()), dict[str, Tensor]()
        for rows, weight in self.rows.chunks(TILE):
            value, parts_of_tile = loss(model, rows, weight, stream)
            share = len(rows) / self.rows.n_rows
            total = total + share * value
            parts = {name: share * part + parts.get(name, 0.0) for name, part in parts_of_tile.items()}
        parts["gap"] = self._measure_gap(model, stream)
        return total + (self.alpha * parts["gap"] if self.alpha else 0.0), parts

    def compute_row_bounds(self, model: Autoencoder, seed: int) -> Array:
        """The bound of every row, from the same draws for every model, (n,)."""
        stream = generator(seed, self.rows.rows.device)
        with torch.no_grad():
            bounds = [
                model.evidence_bound(rows, stream, VALIDATION_DRAWS).value()
                for rows, _ in self.rows.chunks(TILE)
            ]
        return np.asarray(torch.cat(bounds).double().cpu().numpy()) + self.loss.offset

    def measure_fixed_gap(self, model: Autoencoder, seed: int) -> float:
        """The gap, from the same nodes for every model."""
        with torch.no_grad():
            return float(self._measure_gap(model, generator(seed, self.rows.rows.device)))

    def _measure_gap(self, model: Autoencoder, stream: Generator) -> Tensor:
        rows = self.rows.rows
        if self.weighted and self.rows.weight is not None:
            rows = resample_rows(rows, self.rows.weight, stream)
        return self.gap.gap(model, rows, stream)


def choose_alpha(
    alphas: Sequence[float], bounds: Sequence[Array], gaps: Sequence[float], weight: Any
) -> tuple[int, dict[str, list[float]]]:
    """Index of the selected weight of the penalty, and the table of all.

    Among the weights whose mean bound is within one standard error (of the paired difference) of the best, it is the
    one with the smallest moment gap, and the smallest of those.
    """
    values = [
        GroupedSums.from_values(rows, np.arange(len(rows)), len(rows), np.asarray(weight)) for rows in bounds
    ]
    means = [rows.mean_and_error() for rows in values]
    scores = [
        mean if np.isfinite(mean) and np.isfinite(gap) else -np.inf for (mean, _), gap in zip(means, gaps)
    ]
    best = int(np.argmax(scores))
    lag, error = measure_gaps_to_best(values, best)
    near = [j for j in range(len(alphas)) if np.isfinite(scores[j]) and lag[j] <= np.nan_to_num(error[j])]
    selected = min(near or [best], key=lambda j: (gaps[j], alphas[j]))
    table = {
        "alpha": list(alphas),
        "elbo": [mean for mean, _ in means],
        "elbo_error": [error for _, error in means],
        "behind": lag.tolist(),
        "behind_error": error.tolist(),
        "gap": list(gaps),
        "chosen": [float(j == selected) for j in range(len(alphas))],
    }
    return selected, table


def find_data_concerns(
    frame: Standardisation, names: tuple[str, ...], codes: int, likelihood: str
) -> list[str]:
    """Concerns about rows and codes before training."""
    found = []
    if codes > len(names):
        found.append(
            f"n_components={codes} is more than the {len(names)} columns of the rows: parts of the code will be "
            "unused, and the bound says little about such a fit; lower n_components"
        )
    constant = [name for name, is_constant in zip(names, frame.constant.tolist(), strict=True) if is_constant]
    if constant and likelihood == "gaussian":
        found.append(
            f"constant columns ({join_words(constant, most=5)}): their density is as high as noise_floor allows, and "
            "enters every score; leave them out"
        )
    return found
