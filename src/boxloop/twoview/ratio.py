r"""How much likelier two things are together than apart.

.. math:: \frac{p(x, y)}{p(x) p(y)} \approx 1 + \sum_{i=1}^{r} \eta_i u_i(x) v_i(y)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from boxloop.data import check_kind
from boxloop.numeric import single_threaded
from boxloop.twoview.conditional import Conditional
from boxloop.twoview.expectation import Estimated
from boxloop.twoview.influence import Side


@single_threaded
def density_ratio(conditional: Conditional, x: Any, y: Any) -> Estimated:
    r"""Joint density over the product of the marginal ones, for pairs of rows, with standard errors.

    .. math:: \frac{p(x, y)}{p(x) p(y)} \approx 1 + \sum_{i=1}^{r} \eta_i u_i(x) v_i(y)

    Document 003, eq. 1. It averages to 1 over either view, and may be negative where few variables are kept. The error
    is that of an expectation (:class:`boxloop.twoview.Conditional`) whose function is known at x alone.

    Args:
        conditional: the fit with its rows.
        x: rows of the first view, (m, d_x).
        y: rows of the second view, (m, d_y), one for each x.

    Returns:
        (m,).

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview import FiniteView, RelevanceModel, ViewPair
        >>> rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]).double()
        >>> coin = FiniteView(torch.tensor([0.0, 1.0]).double())
        >>> model = RelevanceModel.solve(ViewPair(coin, coin), ArraySource(rows), most=1)
        >>> found = density_ratio(Conditional(model, ArraySource(rows)), [[0.0], [1.0]], [[0.0], [1.0]])
        >>> found.value.round(6)
        array([2.      , 1.333333])
    """
    check_kind(conditional, "conditional", Conditional, "Conditional(model, source) makes one")
    with torch.no_grad():
        a = conditional.given(y)
        rows = conditional.rows_of(x, conditional.model.pair.left.n_columns, "x")
        if len(rows) != len(a):
            raise ValueError(f"a ratio needs one y for each x, got {len(rows)} and {len(a)}")
        b = Side(*conditional.basis.lefts(rows))
        value = (a.kept * conditional.basis.eta * b.kept).sum(1)
        some = 4096
        errors = [
            conditional.single_errors(
                a[slice(i, i + some)], _nothing(len(a[slice(i, i + some)])), b[slice(i, i + some)]
            )
            for i in range(0, len(a), some)
        ]
    return Estimated(value.cpu().numpy(), torch.cat(errors).cpu().numpy())


def _nothing(m: int) -> Any:
    def zero(rows: Tensor) -> Tensor:
        return torch.zeros(len(rows), m, dtype=torch.float64, device=rows.device)

    return zero
