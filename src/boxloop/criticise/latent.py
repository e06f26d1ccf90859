"""What the codes of an autoencoder are worth: which of their columns tell anything about a row.

A decoder that ignores z, and an encoder that gives the prior back, make up a model with a fine bound and nothing in it
(posterior collapse).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.criticise.adapt import as_model, as_rows, check_columns
from boxloop.data import ConcatenatedRows, make_frame, on_device, open_source
from boxloop.models import Autoencoder
from boxloop.numeric import single_threaded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
ACTIVE = 0.01
"""Variance of a code's posterior mean from which on it counts as used (Burda, Grosse and Salakhutdinov 2016)."""


@dataclass(frozen=True)
class ActiveUnits:
    """How much each column of the code tells about a row.

    Args:
        variance: of the posterior mean over rows, (k,).
        error: its standard error.
        divergence: mean over rows of KL(q(z_j|x) || p(z_j)), in nats, (k,).
        divergence_error: its standard error.
        n_rows: judged by.
        threshold: variance above which a column is active.

    Example:
        >>> import numpy as np
        >>> one = np.ones(2)
        >>> ActiveUnits(np.array([0.9, 0.001]), 0.01 * one, np.array([1.2, 0.0]), 0.01 * one, 100).count
        1
    """

    variance: Array
    error: Array
    divergence: Array
    divergence_error: Array
    n_rows: int
    threshold: float = ACTIVE

    @property
    def active(self) -> NDArray[np.bool_]:
        """Which columns are used, (k,)."""
        return self.variance > self.threshold

    @property
    def count(self) -> int:
        """How many columns are used."""
        return int(self.active.sum())

    def summary(self) -> Any:
        """One line a column of the code, the one that tells most first, as a frame."""
        order = np.argsort(-self.divergence, kind="stable")
        columns = {
            "variance": self.variance,
            "error": self.error,
            "divergence": self.divergence,
            "divergence error": self.divergence_error,
            "active": self.active,
        }
        return make_frame({name: value[order].tolist() for name, value in columns.items()}, code_names(order))

    def plot(self, ax: Axes | None = None, *, top: int = 40) -> Axes:
        """Divergence of each column with its error, the one that tells most on top; those not used stand out.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            top: most columns that are shown.

        Returns:
            The axes.

        Example:
            >>> import numpy as np
            >>> one = np.ones(2)
            >>> found = ActiveUnits(np.array([0.9, 0.001]), 0.01 * one, np.array([1.2, 0.0]), 0.01 * one, 100)
            >>> found.plot().get_title(loc="left")
            '1 of 2 columns of the code are used'
        """
        from boxloop.figures import forest

        order = np.argsort(-self.divergence, kind="stable")[:top]
        return forest(
            code_names(order),
            self.divergence[order],
            self.divergence_error[order],
            ax,
            marked=(~self.active[order]).tolist(),
            title=f"{self.count} of {len(self.variance)} columns of the code are used",
            across="KL(q(z|x) || p(z)) of a column, nats; orange: not used",
        )


@single_threaded
def active_units(model: object, X: Any, *, threshold: float = ACTIVE) -> ActiveUnits:
    r"""Which columns of an autoencoder's code depend on the row at all.

    .. math:: A_j = \mathrm{Var}_x \left( E_{q(z \mid x)}[z_j] \right) > 0.01

    Burda, Grosse and Salakhutdinov (2016), "Importance weighted autoencoders", section 5.2.

    Args:
        model: an autoencoder, or a fitted estimator of one.
        X: rows, held out or not.
        threshold: variance above which a column is active.

    Returns:
        Variances and divergences of every column with their errors over rows. Against a learned prior a column is
        compared with the prior's marginal, and the divergences do not add up to that of the code.

    Raises:
        TypeError: the model has no encoder.
        ValueError: fewer than two rows, or missing values.

    Example:
        >>> import torch
        >>> from boxloop.models.vae import Autoencoder
        >>> from boxloop.models.vae import GaussianHead
        >>> from boxloop.models.vae import StandardNormal
        >>> from boxloop.models.networks import Layers, Part
        >>> to_code = Part(Layers(1, (), 4), (torch.tensor([[0.5, 0.0, 0.0, 0.0]]), torch.zeros(4)))
        >>> to_row = Part(Layers(2, (), 2), (torch.zeros(2, 2), torch.zeros(2)))
        >>> model = Autoencoder.start(to_code, to_row, GaussianHead(), StandardNormal(2), 1)
        >>> active_units(model, [[-1.0], [0.0], [1.0]]).variance.tolist()
        [0.25, 0.0]
    """
    own = autoencoder_of(model)
    source = on_device(open_source(as_rows(X)), own.origin.device)
    check_columns(own, source.n_columns)
    if source.n_rows < 2:
        raise ValueError(f"at least 2 rows are needed, got {source.n_rows}")
    names = source.names

    def codes(rows: Tensor, weight: Tensor) -> ConcatenatedRows:
        dense = rows.to_dense() if rows.layout != torch.strided else rows
        check_complete(dense, names)
        law = own.posterior(dense)
        apart = own.latent.column_divergence(law.mean, law.variance.log())
        return ConcatenatedRows.of(torch.cat([law.mean, apart], 1).double())

    with torch.no_grad():
        mean, divergence = source.reduce(codes).concatenate().chunk(2, dim=1)
    n = len(mean)
    apart = mean - mean.mean(0)
    variance = apart.square().sum(0) / (n - 1)
    fourth = apart.pow(4).mean(0)
    error = ((fourth - variance.square()).clamp(min=0.0) / n).sqrt()
    return ActiveUnits(
        as_array(variance),
        as_array(error),
        as_array(divergence.mean(0)),
        as_array(divergence.std(0) / n**0.5),
        n,
        threshold,
    )


def autoencoder_of(given: object) -> Autoencoder:
    """The autoencoder behind a fitted estimator, or itself.

    Raises:
        TypeError: the model has no encoder.
    """
    model = as_model(given)
    if not isinstance(model, Autoencoder):
        raise TypeError(f"{type(model).__name__} has no encoder: only autoencoders have codes to look at")
    return model


def check_complete(rows: Tensor, names: tuple[str, ...]) -> None:
    """Raise where a value is missing, naming its column."""
    missing = torch.isnan(rows).any(0)
    if bool(missing.any()):
        column = names[int(missing.nonzero()[0])]
        raise ValueError(f"column {column!r} has missing values, which an autoencoder does not take")


def code_names(places: Iterable[int]) -> list[str]:
    """Names of columns of the code."""
    return [f"z{place}" for place in places]


def as_array(value: Tensor) -> Array:
    """Float64, on the host."""
    found: Array = value.double().cpu().numpy()
    return found
