"""Rows generated from few latent variables in the span of the relevant ones, as an estimator."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from numbers import Real
from os import PathLike
from typing import Any, ClassVar, Self

import torch
from sklearn.base import _fit_context, clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from torch import nn

from boxloop.estimators._base import FitWarning, warn_of
from boxloop.estimators._decoder import has_image_shape
from boxloop.estimators._params import COMMON, pick_device
from boxloop.estimators._training import COUNT, POSITIVE, RATE
from boxloop.estimators.relevant_features import RelevantFeatures
from boxloop.estimators.relevant_generator_fit import fit_generator
from boxloop.estimators.relevant_generator_use import FittedGenerator
from boxloop.estimators.relevant_use import PARTS
from boxloop.fit import coordinates
from boxloop.models import NormalMixturePrior, StandardNormal
from boxloop.numeric import generator
from boxloop.persist import PROGRESS, ModelFile, load_model
from boxloop.twoview import CONSTRAINTS, GaussianNoise, GeneratorModel, RelevanceModel
from boxloop.types import Source


@dataclass(eq=False, repr=False, kw_only=True)
class RelevantGenerator(FittedGenerator):
    r"""A generative model whose latent variables lie in the span of the relevant features.

    .. math:: z = W^\top u(x), \qquad \hat x = \text{network}(z), \qquad \min_{W, \text{network}} E \|x - \hat x\|^2,
        \qquad p(x) = \int p(z) \, N(x; \hat x(z), \mathrm{diag}(\psi)) \, dz

    Document 003, section 5.4. The canonical variables u of :class:`RelevantFeatures` are many, but may be functions of
    a few within their span, which the linear layer looks for. Then z is put in standard form and given a Gaussian law
    (or a mixture), and psi is the mean square of what is left over on rows held out: ``model_`` can be criticised
    (:func:`boxloop.mega`) like any other.

    Args:
        n_components: columns k of the code z, the latent dimension.
        features: where u comes from: a :class:`RelevantFeatures`, used as it is when fitted (inside a grid search wrap
            it in scikit-learn's ``FrozenEstimator``, or every copy fits its own), else copied and fitted to X, for
            which it needs a ``channel``; or a :class:`boxloop.twoview.RelevanceModel`. ``None`` takes 100 variables (or
            a tenth of the rows) of 200 random features of a kernel, whose second view has noise of half a standard
            deviation on every column (for images: of all pixels).
        n_relevant: how many of its variables to use, the most relevant ones; ``None`` uses all.
        decoder: a ``torch.nn.Module`` (n, k) -> (n, d) for standardised rows; ``None`` takes a perceptron.
        hidden: widths of its layers. The document's are (800, 800, 800, 800, 800), for MNIST.
        prior: law of the codes: ``gaussian``, or ``mixture``, fitted by EM.
        prior_components: members of a mixture.
        variance: of what is left over: ``diagonal``, one a column, or ``spherical``, one for all (in standard units).
        noise_floor: its smallest value, relative to the variance of a column; of all pixels together for images.
        learning_rate: of AdamW.
        schedule: ``constant``, or ``cosine``: it falls to zero over ``max_iter`` passes.
        weight_decay: of AdamW.
        clip: largest norm of a gradient.
        batch_size: rows of a mini-batch.
        max_iter: most passes over the rows.
        patience: passes without a better validation before training ends; ``None`` never ends it.
        validation_fraction: share of the rows that is held out to choose the best pass and to measure the noise; 0
            keeps the last pass, and measures it on the rows of the fit, where it is too small.
        random_state: seed or generator; global state is never used.
        verbose: show a progress bar.
        checkpoint: file to save progress in and to resume from, on any device.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: precision of the network, ``float32`` or ``float64``.

    Attributes:
        model_: the fitted :class:`boxloop.twoview.GeneratorModel`, in the units of the data.
        features_: the features, fitted.
        error_: mean squared error of rows held out (of all rows where there are none), in the units of the data. The
            best pass was chosen by it, so it is a little too small.
        history_: a list a pass by name: ``loss``, ``validation_loss``, ``rate``, ``refused``; losses of images are in
            squared units of the data, those of plain rows are in standard units.
        n_iter_: passes done.
        converged_: whether validation stopped improving; False where ``max_iter`` came first, planned or not.
        interrupted_: whether Ctrl-C ended the fit; its last complete round is kept.
        events_: what went wrong on the way.
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
        checks=(has_image_shape,),
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

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train the linear layer and the network, after the features where these are not fitted yet.

        Args:
            X: whole rows (n, d), or images (n, H, W) or (n, C, H, W) as an array: an array, frame, source, or a path of
                a CSV, Parquet or npy file or folder.
            y: ignored.
            sample_weight: one non-negative weight a row.

        Returns:
            The estimator itself.
        """
        source = self._open(X, sample_weight, reset=True)
        self.features_ = self._featured(X, source, sample_weight)
        relevance = self.features_ if isinstance(self.features_, RelevanceModel) else self.features_.model_
        if relevance.pair.left.n_columns != source.n_columns:
            raise ValueError(
                f"the features are those of {relevance.pair.left.n_columns} columns, X has {source.n_columns}"
            )
        found = fit_generator(self, relevance.to(device=pick_device(self.device)), source)
        self.model_, self.history_, self.error_ = found.model, found.history, found.error
        self.n_iter_, self.converged_, self.interrupted_ = found.epochs, found.converged, found.interrupted
        self.events_, self.training_digest_ = list(found.events), found.digest
        warn_of(self.events_)
        return self

    def _featured(self, X: Any, source: Source, weight: Any) -> Any:
        given = self.features.estimator if isinstance(self.features, FrozenEstimator) else self.features
        if isinstance(given, RelevanceModel) or (given is not None and hasattr(given, "model_")):
            return given
        if given is not None and given.channel is None:
            raise ValueError(
                "the features are not fitted, and have no channel that draws a second view: fit them first, and keep "
                "them so with sklearn.frozen.FrozenEstimator where the generator is cloned"
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
            warnings.simplefilter(
                "ignore", FitWarning
            )  # few columns have fewer variables than were asked for
            return features.fit(X, sample_weight=weight)

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
