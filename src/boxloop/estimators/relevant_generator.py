"""Rows generated from few latent variables in the span of the relevant ones, as an estimator."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Generator, Tensor, nn

from boxloop.data import check_parameters, fingerprint_values, select_rows
from boxloop.estimators._base import Array, FitWarning, check_no_overflow, to_numpy, warn_of
from boxloop.estimators._decoder import DecoderEstimator, check_image_shape
from boxloop.estimators._input import COMMON, Likelihood, map_rows, pick_device, pick_dtype
from boxloop.estimators._training import (
    COUNT,
    IGNORED,
    POSITIVE,
    RATE,
    TrainingRun,
    check_convergence,
    make_part,
    make_plan,
)
from boxloop.estimators._two_views import PARTS, describe_progress
from boxloop.estimators.relevant_features import RelevantFeatures
from boxloop.fit import Epochs, Trainer, coordinates, current_workers, hold_out
from boxloop.models import Layers, NormalMixturePrior, StandardNormal
from boxloop.numeric import generator, seed, spawn
from boxloop.persist import PROGRESS, ModelFile, load_model
from boxloop.twoview import (
    CONSTRAINTS,
    CodeNetwork,
    GaussianNoise,
    GeneratorModel,
    MomentSums,
    RelevanceModel,
    SquaredErrorLoss,
    SquaredErrorValidation,
    estimate_residual_variance,
    fit_code_mixture,
    keep_leading_variables,
    prepend_canonical_variables,
    solve_reduced_rank_code,
    standardise_codes,
)
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IGNORED_IN_FINGERPRINT = (*IGNORED, "features", "prior", "prior_components")
"""Parameters that do not change the path of training, or that the fingerprint holds in another form."""

HELD_OUT_VALUES = 1 << 26
"""Largest number of values of the held-out rows: they are in memory."""


@dataclass(eq=False, repr=False, kw_only=True)
class RelevantGenerator(DecoderEstimator):
    r"""A generative model whose latent variables lie in the span of the relevant features.

    .. math:: z = W^\top u(x), \qquad \hat x = \text{network}(z), \qquad \min_{W, \text{network}} E \|x - \hat x\|^2,
        \qquad p(x) = \int p(z) \, N(x; \hat x(z), \mathrm{diag}(\psi)) \, dz

    Learning relevant features for statistical inference, section 5.4. The canonical variables u of
    :class:`RelevantFeatures` are many, but may be functions of a few within their span, which the linear layer learns.
    Then z is put in standard form and given a Gaussian prior (or a mixture), and psi is the mean squared residual on
    held-out rows: ``model_`` can be criticised (:func:`boxloop.mega`) like any other.

    Args:
        n_components: columns k of the code z, the latent dimension.
        features: source of u: a fitted :class:`RelevantFeatures` is used as it is (inside a grid search wrap it in
            scikit-learn's ``FrozenEstimator``, or every copy fits its own); one that is not fitted is cloned and fitted
            to X, for which it needs a ``channel``; or a :class:`boxloop.twoview.RelevanceModel`. ``None`` takes 100
            variables (or a tenth of the rows) of 200 random features of a kernel, whose second view has noise of half a
            standard deviation on every column (for images: of all pixels).
        n_relevant: number of its variables to use, the most relevant first; ``None`` uses all.
        decoder: a ``torch.nn.Module`` (n, k) -> (n, d) for standardised rows; ``None`` takes a perceptron.
        hidden: widths of its layers. The paper's are (800, 800, 800, 800, 800), for MNIST.
        prior: distribution of the codes: ``gaussian``, or ``mixture``, fitted by EM.
        prior_components: components of a mixture.
        variance: of the residual: ``diagonal``, one per column, or ``spherical``, one for all (in standard units).
        noise_floor: its smallest value, relative to the variance of a column; of all pixels together for images.
        learning_rate: of AdamW.
        schedule: ``constant``, or ``cosine``: it falls to zero over ``max_iter`` epochs.
        weight_decay: of AdamW.
        clip: largest norm of a gradient.
        batch_size: rows of a mini-batch.
        max_iter: largest number of epochs.
        patience: epochs without a better validation before training ends; ``None`` never ends it.
        validation_fraction: share of rows held out to choose the best epoch and to estimate the noise; 0 keeps the last
            epoch, and estimates the noise on the rows of the fit, where it is too small.
        random_state: seed or generator; global state is never used.
        verbose: show a progress bar.
        checkpoint: file to save progress in and to resume from, on any device.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: precision of the network, ``float32`` or ``float64``.

    Attributes:
        model_: the fitted :class:`boxloop.twoview.GeneratorModel`, in the units of the data.
        features_: the features, fitted.
        error_: mean squared error on held-out rows (on all rows where there are none), in the units of the data. The
            best epoch was chosen by it, so it is a little too small.
        history_: a list by name, with a value per epoch: ``loss``, ``validation_loss``, ``rate``, ``refused``; losses
            of images are in squared units of the data, those of plain rows are in standard units.
        n_iter_: number of epochs.
        converged_: whether validation stopped improving; False where ``max_iter`` came first, planned or not.
        interrupted_: whether Ctrl-C ended the fit; its last complete epoch is kept.
        events_: concerns about the fit, in words.
        image_shape_: of one image, ``None`` for plain rows.

    Example:
        >>> import numpy as np
        >>> from boxloop import RelevantGenerator
        >>> angle = np.random.default_rng(0).uniform(-2.5, 2.5, size=1000)
        >>> X = np.stack([np.cos(angle), np.sin(angle), np.cos(2 * angle)], 1)
        >>> fit = RelevantGenerator(2, hidden=(64,), learning_rate=0.01, max_iter=30, patience=None, random_state=0)
        >>> bool(fit.fit(X).score(X) > -0.05 * X.var())
        True
        >>> rows, codes = fit.sample(5)
        >>> rows.shape, codes.shape
        ((5, 3), (5, 2))
    """

    n_components: int = field(default=2, kw_only=False)
    features: Any = None
    n_relevant: int | None = None
    decoder: nn.Module | None = None
    hidden: Any = (256, 256, 256)
    prior: str = "gaussian"
    prior_components: int = 10
    variance: str = "diagonal"
    noise_floor: float = 1e-4
    learning_rate: float = 1e-3
    schedule: str = "constant"
    weight_decay: float = 0.0
    clip: float = 100.0
    batch_size: int = 128
    max_iter: int = 200
    patience: int | None = 20
    validation_fraction: float = 0.1
    random_state: Any = None
    verbose: int = 0
    checkpoint: Any = None
    device: str = "cpu"
    dtype: str = "float32"

    _model_file: ClassVar[ModelFile] = ModelFile(
        GeneratorModel,
        (*PARTS, StandardNormal, NormalMixturePrior),
        CONSTRAINTS,
        {
            **PROGRESS,
            "training_digest_": str | None,
            "error_": float,
            "history_": dict[str, list[float]],
            "image_shape_": tuple[int, ...] | None,
        },
        modules={
            "decoder": "decoder",
            "x_features": "relevance.pair.left.part",
            "y_features": "relevance.pair.right.part",
        },
        checks=(check_image_shape,),
    )
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "features": [RelevantFeatures, FrozenEstimator, RelevanceModel, None],
        "n_relevant": [COUNT, None],
        "decoder": [nn.Module, None],
        "hidden": ["array-like"],
        "prior": [StrOptions({"gaussian", "mixture"})],
        "prior_components": [COUNT],
        "variance": [StrOptions({"diagonal", "spherical"})],
        "schedule": [StrOptions({"constant", "cosine"})],
        "weight_decay": [RATE],
        "batch_size": [COUNT],
        "max_iter": [COUNT],
        "patience": [COUNT, None],
        "validation_fraction": [Interval(Real, 0.0, 1.0, closed="left")],
        **{name: [POSITIVE] for name in ("learning_rate", "clip", "noise_floor")},
        **{
            name: COMMON[name]
            for name in ("n_components", "random_state", "verbose", "checkpoint", "device", "dtype")
        },
    }

    @check_parameters
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train the linear layer and the network; features that are not fitted are fitted first.

        Args:
            X: rows (n, d) without missing values, or images (n, H, W) or (n, C, H, W) as an array: an array, frame,
                source, or a path of a CSV, Parquet or npy file or folder.
            y: ignored.
            sample_weight: one non-negative weight per row.

        Returns:
            The estimator itself.
        """
        source = self._open(X, sample_weight, reset=True)
        self.features_: Any = self._fit_features(X, source, sample_weight)
        relevance = self.features_ if isinstance(self.features_, RelevanceModel) else self.features_.model_
        if relevance.pair.left.n_columns != source.n_columns:
            raise ValueError(
                f"the features are those of {relevance.pair.left.n_columns} columns, X has {source.n_columns}"
            )
        relevance = relevance.to(device=pick_device(self.device))
        self._train(keep_leading_variables(relevance, self.n_relevant), source)
        warn_of(self.events_)
        return self

    def _fit_features(self, X: Any, source: Source, weight: Any) -> Any:
        given = self.features.estimator if isinstance(self.features, FrozenEstimator) else self.features
        if isinstance(given, RelevanceModel) or (given is not None and hasattr(given, "model_")):
            return given
        if given is not None and given.channel is None:
            raise ValueError(
                "the features are not fitted, and have no channel that draws a second view: fit them first, and wrap "
                "them in sklearn.frozen.FrozenEstimator where the generator is cloned"
            )
        if given is not None:
            return clone(given).fit(X, sample_weight=weight)
        frame = coordinates(source, "columns" if self.image_shape_ is None else "common")
        sd = torch.where(frame.constant, 0.0, 0.5 * frame.scale)
        features = RelevantFeatures(
            max(self.n_components, min(100, source.n_rows // 10)),
            x_features="fourier",
            y_features="fourier",
            n_fourier=200,
            channel=GaussianNoise(sd),
            random_state=generator(self.random_state),
            device=self.device,
        )
        with warnings.catch_warnings():
            # Few columns have fewer variables than n_features.
            warnings.simplefilter("ignore", FitWarning)
            return features.fit(X, sample_weight=weight)

    def _train(self, relevance: RelevanceModel, source: Source) -> None:
        """Train a linear layer and a network on canonical variables, then add a distribution of codes and noise."""
        if source.n_rows < 3:
            raise ValueError(f"a generator needs at least 3 rows, got n_samples = {source.n_rows}")
        variables = len(relevance.canonical.correlation)
        frame = coordinates(source, "columns" if self.image_shape_ is None else "common")
        rows = prepend_canonical_variables(source, relevance, frame, pick_dtype(self.dtype))
        splits, orders, own, start, starts = spawn(generator(self.random_state), 5)
        capacity = max(1, HELD_OUT_VALUES // (variables + source.n_columns))
        mask, held_out = hold_out(rows, self.validation_fraction, seed(splits), capacity)
        train = rows if mask is None else select_rows(rows, ~mask)
        sums = train.reduce(lambda tile, weight: MomentSums.of_features(tile.double(), weight))
        code = solve_reduced_rank_code(sums, variables, self.n_components)
        network = self._start_network(code, source.n_columns, start)
        epochs, workers = Epochs(rows, self.batch_size, seed(orders), mask), current_workers()
        loss = SquaredErrorLoss(variables, frame.weight / source.n_rows, workers)
        validation = None if held_out is None else SquaredErrorValidation(held_out, variables, workers)
        plan = make_plan(self, self.max_iter * epochs.per_epoch, held_out is not None)
        trainer = Trainer(network, epochs, loss, plan, None, validation, workers)
        describe = partial(describe_progress, "error", "loss")
        also = {"code": fingerprint_values(network.code)}
        outcome = TrainingRun(self, trainer, rows, describe, seed(own), IGNORED_IN_FINGERPRINT, also)()
        state = outcome.state
        network = state.fitted(network)
        test = train if held_out is None else held_out
        variance: Any = self.variance
        residual = estimate_residual_variance(network, test, variables, variance, self.noise_floor)
        self.model_: GeneratorModel = standardise_codes(network, relevance, sums, frame, residual)
        if self.prior == "mixture":
            with torch.no_grad():
                tiles = [(self.model_.encode(tile), weight) for tile, weight in source.chunks()]
            codes, weight = (torch.cat(parts) for parts in zip(*tiles, strict=True))
            self.model_ = fit_code_mixture(self.model_, codes, weight, self.prior_components, starts)
        # Where all columns share one scale, errors are shown in the units of the data.
        unit = float(frame.scale[0]) ** 2 if bool((frame.scale == frame.scale[0]).all()) else 1.0
        self.history_: dict[str, list[float]] = {
            name: [unit * value for value in values] if name in ("loss", "validation_loss") else values
            for name, values in state.history_by_name().items()
        }
        per_column = estimate_residual_variance(network, test, variables, "diagonal", 0.0)
        self.error_: float = float((per_column * frame.scale.to(per_column).square()).mean())
        self.n_iter_: int = state.epoch
        self.interrupted_: bool = outcome.interrupted
        rising = "the error of validation rows still fell"
        self.converged_: bool = check_convergence(self, outcome, held_out is not None, rising)
        self.events_: list[str] = list(outcome.events)
        self.training_digest_: str | None = frame.digest

    def _start_network(self, code: Tensor, columns: int, stream: Generator) -> CodeNetwork:
        """The linear layer at its linear optimum, the network at random: the same on every device."""
        dtype, k = pick_dtype(self.dtype), code.shape[1]
        if isinstance(self.decoder, nn.Module):
            part = make_part(self.decoder, None, code.device, dtype, stream)
            with torch.no_grad():
                shape = tuple(part(torch.zeros(1, k, dtype=dtype, device=code.device)).shape)
            if shape != (1, columns):
                raise ValueError(f"the decoder must make {columns} columns from {k}; one row becomes {shape}")
        else:
            network = Layers(k, tuple(int(width) for width in self.hidden), columns)
            part = make_part(None, network, code.device, dtype, stream)
        return CodeNetwork(code.to(dtype), part)

    @property
    def _row_likelihood(self) -> Likelihood:
        return "gaussian"

    def _format_codes(self, codes: Tensor) -> Array:
        return to_numpy(codes)

    def transform(self, X: Any) -> Array:
        """The code of each row, (n, k): mean 0, covariance I on the rows of the fit."""
        return self._format_codes(check_no_overflow(map_rows(self, X, lambda rows: self.model_.encode(rows))))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the mean squared error of :meth:`reconstruct`, over rows by their weights and over columns."""

        def mean_squares(rows: Tensor) -> Tensor:
            return (rows - self.model_.reconstruct(rows)).square().mean(1)

        mean = self._sum_rows(X, sample_weight, mean_squares).mean
        if math.isnan(mean):
            self.reconstruct(X)  # names the row
        return -mean

    def plot_trace(self, ax: Axes | None = None) -> Axes:
        """The mean squared error after each epoch: of validation rows where there are any, else of the batches."""
        return self._plot_history(ax, "loss", "mean squared error", "mean squared error on held-out rows")

    def _from_tree(self, tree: GeneratorModel) -> None:
        self.model_, self.features, self.features_ = tree, tree.relevance, tree.relevance

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        decoder: nn.Module | None = None,
        x_features: nn.Module | None = None,
        y_features: nn.Module | None = None,
    ) -> Self:
        """Read what :meth:`save` wrote, onto the CPU. Nothing in the file can run.

        ``features_`` is then the :class:`boxloop.twoview.RelevanceModel` of the features.

        Args:
            path: the file.
            decoder: the module whose tensors were saved, where one was given to the fit; its own are replaced.
            x_features: the same of the features' first view.
            y_features: the same of their second view.
        """
        modules = {"decoder": decoder, "x_features": x_features, "y_features": y_features}
        return load_model(path, cls, modules)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags
