"""Vectors and comparisons that the tests of the stream share."""

from __future__ import annotations

import torch
from torch import Tensor

from boxloop.fit import FactorStream
from boxloop.models import FactorModel

D, K, T, WARMUP = 37, 3, 300, 40


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors(n: int = T, seed: int = 0) -> Tensor:
    """Rows of a factor model whose columns differ in place and scale."""
    stream = draws(seed)
    scale = torch.logspace(-1, 1, D, dtype=torch.float64)
    loadings = torch.randn(D, K, generator=stream, dtype=torch.float64)
    z = torch.randn(n, K, generator=stream, dtype=torch.float64)
    noise = torch.randn(n, D, generator=stream, dtype=torch.float64)
    return scale * (2.0 + z @ loadings.mT + noise)


def stream_of(seed: int = 1, **options: object) -> FactorStream:
    return FactorStream.start(D, K, draws(seed), **{"dtype": torch.float64, "warmup": WARMUP, **options})


def first_loadings(seed: int = 1) -> Tensor:
    """The orthonormal start: Q of a QR decomposition, signs as the Cholesky factor gives them."""
    normals = torch.randn(K, D, generator=draws(seed), dtype=torch.float64).mT
    q, r = torch.linalg.qr(normals)
    return q * r.diagonal().sign()


def close(model: FactorModel, expected: tuple[Tensor, Tensor, Tensor], tol: float) -> None:
    for found, right in zip((model.mean, model.loadings, model.noise), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=tol, atol=tol * float(right.abs().max()))


def same(a: FactorStream, b: FactorStream) -> bool:
    left, right = a.state(), b.state()
    return left.count == right.count and all(
        torch.equal(x, y) for (_, x), (_, y) in zip(left.leaves(), right.leaves(), strict=True)
    )
