"""Variational autoencoders as an estimator."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar, Self

import torch
from sklearn.base import _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from torch import nn

from boxloop.estimators._base import warn_of
from boxloop.estimators._params import COMMON
from boxloop.estimators.autoencoder_train import Trained, train
from boxloop.estimators.autoencoder_use import FittedAutoencoder
from boxloop.estimators.codes import has_image_shape
from boxloop.estimators.learned import COUNT, POSITIVE, RATE
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
from boxloop.persist import PROGRESS, ModelFile, ModelFileError, Saved, load_model

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


def _has_images(estimator: Any, saved: Saved) -> str | None:
    model: Any = saved.tree
    networks = (model.encoder.network, model.decoder.network)
    if estimator.image_shape_ is None and any(isinstance(n, Convolutions | Deconvolutions) for n in networks):
        return "its networks are of images, but the fitted attribute 'image_shape_' is None"
    return None


@dataclass(eq=False, repr=False, kw_only=True)
class VariationalAutoencoder(FittedAutoencoder):
    r"""Rows as the image of a low-dimensional code under a network, fitted by the evidence lower bound.

    .. math:: \frac1n \sum_i E_{q(z \mid x_i)} \log p(x_i \mid z) - \beta \, \mathrm{KL}(q(z \mid x_i) \,\|\, p(z))
        - \alpha \left( \|\text{1MEGA}\|_2 + \sqrt{\|\text{2MEGA}\|_F} \right)

    Document 002, section 3.4; the last term, a penalty on moment gaps, is document 000, eq. 18 and 19. Rows may be
    plain rows, or images (n, H, W) or (n, C, H, W), which get convolutions; columns are flattened inside.

    Args:
        n_components: columns k of the code.
        encoder: a ``torch.nn.Module`` (n, d) -> (n, 2k), mean and log-variance of the code; a default when ``None``.
        decoder: a ``torch.nn.Module`` (n, k) -> (n, columns that the likelihood wants: d, or 2d with variance
            ``diagonal``, or one for each category); a default when ``None``. Modules see standardised, flattened rows.
        hidden: widths of the default networks' layers, reversed in the decoder, or channels of their convolutions;
            ``()`` makes them linear, ``None`` is (128, 128), and (32, 64) for images.
        likelihood: ``gaussian``, ``bernoulli`` (values in [0, 1]), ``poisson`` (counts), ``categorical`` (codes
            0, 1, ... in each column).
        variance: of a Gaussian likelihood: ``diagonal`` from the decoder, ``shared`` one a column, ``spherical`` one
            for all, ``low_rank`` correlated columns, shared.
        rank: of a low-rank covariance.
        noise_floor: smallest variance of a Gaussian likelihood, relative to that of a column; of all pixels together
            for images. Without one the likelihood has no bound; raise it where columns hardly vary but for a few rows.
        prior: ``normal``, or ``mixture``, a mixture of normals that is learned.
        prior_components: members of a mixture prior.
        n_draws: M, draws of the code behind a row's bound in training.
        beta: weight of the divergence.
        alpha: weight of the moment penalty, a number; a function of the step, such as
            :class:`boxloop.fit.Warming`; or ``validation``: trained at 0, 0.01, 0.03, 0.1, 0.3 and 1 from
            the same start, kept where the validation bound is within one standard error (of the paired difference) of
            the best and the moment gap of validation rows is smallest.
        alpha_from: share of ``max_iter`` without the penalty, which then rises to its weight over another fifth of it;
            ``patience`` begins to count after that. 0 has it all along, as in the document: codes then easily collapse,
            as one Gaussian has the right moments too. A function of the step has its own beginning.
        penalty_nodes: draws of the code behind the model's moments.
        learning_rate: of AdamW.
        schedule: ``constant``, or ``cosine``: it falls to zero over ``max_iter`` epochs.
        weight_decay: of AdamW.
        clip: largest norm of a gradient.
        batch_size: rows of a mini-batch; all rows where there are fewer.
        max_iter: most passes over the rows.
        patience: passes without a better validation before training ends; ``None`` never ends it.
        validation_fraction: share of the rows that is held out to choose the best pass; 0 keeps the last.
        precision: ``full``, or ``mixed``: networks in bfloat16 where PyTorch thinks it safe; needs ``float32``.
        score_draws: draws behind :meth:`score_samples`, at most 2^20.
        random_state: seed or generator; global state is never used.
        warm_start: start from the previous fit's networks.
        verbose: show a progress bar with the parts of the bound.
        checkpoint: file to save progress in and to resume from, on any device.
        device: ``cpu``, ``cuda`` or ``auto``.
        dtype: precision of the networks, ``float32`` or ``float64``.

    Attributes:
        model_: the fitted :class:`boxloop.models.vae.Autoencoder`, in the units of the data.
        n_iter_: passes done.
        history_: a list a pass by name: ``elbo``, ``reconstruction``, ``divergence``, ``loss``, ``penalty``, ``rate``,
            ``refused`` steps so far, and ``validation_elbo``, ``validation_gap`` and so on, in nats a row.
        alpha_: the weight of the penalty, at the end of its schedule.
        alphas_: the table from which ``alpha='validation'`` chose, by column; else ``None``.
        converged_: whether validation stopped improving; False where ``max_iter`` came first, planned or not.
        interrupted_: whether Ctrl-C ended the fit; its last complete round is kept.
        events_: what went wrong on the way.
        n_samples_seen_: total weight of the rows.
        image_shape_: of one image, ``None`` for plain rows.

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
        checks=(has_image_shape, _has_images),
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

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train the networks.

        Args:
            X: whole rows (n, d), or images (n, H, W) or (n, C, H, W) as an array: an array, frame, source, or a path
                of a CSV, Parquet or npy file or folder. Rows of a file larger than memory are shuffled in windows.
            y: ignored.
            sample_weight: one non-negative weight a row.

        Returns:
            The estimator itself.
        """
        source = self._open(X, sample_weight, reset=True)
        start = self.model_ if self.warm_start and hasattr(self, "model_") else None
        self._store(train(self, source, start))
        return self

    def _store(self, trained: Trained) -> None:
        self.model_ = trained.model
        self.history_ = trained.history
        self.n_iter_ = trained.epochs
        self.alpha_, self.alphas_ = trained.alpha, trained.alphas
        self.converged_, self.interrupted_ = trained.converged, trained.interrupted
        self.events_, self.n_samples_seen_ = list(trained.events), trained.weight
        self.training_digest_ = trained.digest
        warn_of(self.events_)

    def _from_tree(self, tree: Autoencoder) -> None:
        with torch.no_grad():  # the constraints of a file know the networks of boxloop, not those of the user
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
            encoder: the module whose tensors were saved, where one was given to the fit; its own are replaced.
            decoder: the same of the decoder.
        """
        return load_model(path, cls, {"encoder": encoder, "decoder": decoder})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self.likelihood != "gaussian"
        tags.transformer_tags.preserves_dtype = []
        return tags
