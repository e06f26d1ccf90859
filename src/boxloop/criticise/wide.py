r"""The size of a second-moment gap without a d x d matrix.

With the rows and the laws' means and loadings as rows :math:`z_i` of signs :math:`s_i = \pm 1`, and independent
variances v on the diagonal,

.. math:: \Big\| \sum_i s_i z_i z_i^\top - \mathrm{diag}(v) \Big\|_F^2
   = \sum_{ij} s_i s_j (z_i^\top z_j)^2 - 2 \sum_{i} s_i \sum_c v_c z_{ic}^2 + \sum_c v_c^2 ,

so that n rows, m laws and d columns take (n + m)^2 d operations and memory for (n + m)(n + m + d) numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from boxloop.criticise.adapt import check_law
from boxloop.numeric import covariance as forms, gram, single_threaded
from boxloop.types import Covariance, Distribution


def signed_rows(rows: Tensor, law: Distribution, weight: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Rows z (r, d), signs (r,) and variances (d,) of a second-moment gap; None for laws with full covariances."""
    found = _parts(law.covariance(), weight)
    if found is None:
        return None
    loadings, variance = found
    positive = rows / len(rows) ** 0.5
    z = torch.cat([positive, law.mean * weight.sqrt()[:, None], loadings])
    signs = torch.cat([z.new_ones(len(rows)), -z.new_ones(len(z) - len(rows))])
    return z, signs, variance


@single_threaded
def second_gap_norm(rows: Tensor, law: Distribution, weight: Tensor) -> Tensor:
    """Frobenius norm of the second moment of rows about zero minus that of a mixture of laws.

    Args:
        rows: (n, d).
        law: m laws over d columns, with diagonal or low-rank covariance.
        weight: of each law, (m,).

    Example:
        >>> import torch
        >>> from boxloop.distributions import DiagonalGaussian
        >>> law = DiagonalGaussian(torch.zeros(1, 10_000), torch.ones(1, 10_000))
        >>> second_gap_norm(torch.zeros(5, 10_000), law, torch.ones(1))  # of the unit matrix
        tensor(100.)
    """
    check_law(law, "law")
    if not isinstance(rows, Tensor) or rows.dim() != 2:
        raise ValueError("rows must be a tensor (n, d)")
    if tuple(weight.shape) != (len(law.mean),):
        raise ValueError(
            f"weight must be one number for each of {len(law.mean)} laws, got shape {tuple(weight.shape)}"
        )
    found = signed_rows(rows, law, weight)
    if found is None:
        raise ValueError("laws with full covariance matrices have no low-rank form")
    z, signs, variance = found
    cross = signs @ gram(z.mT).square() @ signs
    mixed = signs @ (z.square() @ variance)
    return (cross - 2.0 * mixed + variance.square().sum()).clamp(min=0.0).sqrt()


def narrow(rows: Tensor, law: Distribution) -> bool:
    """Whether the low-rank form is smaller than d x d."""
    covariance = law.covariance()
    if isinstance(covariance, forms.Shared):
        covariance = covariance.one
    extra = (
        covariance.loadings.shape[0] * covariance.loadings.shape[2]
        if isinstance(covariance, forms.LowRank)
        else 0
    )
    return (
        isinstance(covariance, forms.Diagonal | forms.LowRank)
        and len(rows) + len(law.mean) + extra < rows.shape[1]
    )


def _parts(covariance: Covariance, weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """Mean covariance as rows of loadings (r, d) and variances (d,)."""
    if isinstance(covariance, forms.Shared):
        return _parts(covariance.one, weight.sum()[None])
    if isinstance(covariance, forms.Diagonal):
        variance = weight @ covariance.variance
        return variance.new_zeros(0, len(variance)), variance
    if isinstance(covariance, forms.LowRank):
        heavy = covariance.loadings * weight.sqrt()[:, None, None]
        return heavy.mT.reshape(-1, heavy.shape[1]), weight @ covariance.noise
    return None
