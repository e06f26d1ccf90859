"""The fused kernel against the plain pass. Needs a GPU and Triton, as no test of it is true without them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from boxloop.fit import FactorStream, factor_kernels

needs_gpu = pytest.mark.skipif(
    factor_kernels.triton is None or not torch.cuda.is_available(), reason="needs a GPU and Triton"
)


def run(columns: int, rank: int, fused: bool, options: dict[str, object]) -> tuple[Tensor, ...]:
    """Mean, noise and the covariance's action on two vectors, which no rotation of the factors changes."""
    device, batch = "cuda" if fused else "cpu", int(options.get("batch", 1))
    others = {name: value for name, value in options.items() if name != "batch"}
    stream = FactorStream.start(
        columns, rank, torch.Generator().manual_seed(0), warmup=60, device=device, **others
    )
    draws = torch.Generator().manual_seed(1)
    loadings = torch.randn(columns, 3, generator=draws)
    for _ in range(120):
        z, noise = torch.randn(batch, 3, generator=draws), torch.randn(batch, columns, generator=draws)
        stream.observe((1.0 + z @ loadings.mT + noise).to(device))
    assert stream.uses_kernels == fused
    model = stream.model().to("cpu", torch.float64)
    return model.mean, model.noise, model.loadings @ (model.loadings.mT @ loadings[:, :2].double())


OPTIONS = [
    *({}, {"expand": False}, {"variant": "paper"}, {"floor": 0.5}),
    *({"refresh": 5}, {"refresh": 16}, {"batch": 7}, {"batch": 20}),
]


@needs_gpu
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("columns", "rank"), [(100, 3), (256, 1), (5003, 10), (2000, 32)])
def test_the_kernel_does_what_the_plain_pass_does(
    columns: int, rank: int, options: dict[str, object]
) -> None:
    for found, right in zip(
        run(columns, rank, True, options), run(columns, rank, False, options), strict=True
    ):
        assert float((found - right).norm() / right.norm()) < 2e-5


@needs_gpu
def test_a_stream_may_change_device() -> None:
    here = FactorStream.start(500, 3, torch.Generator().manual_seed(0), warmup=5)
    rows = torch.randn(60, 500, generator=torch.Generator().manual_seed(1))
    for row in rows[:30]:
        here.observe(row)
    there = FactorStream.restore(here.state(), device="cuda")
    for row in rows[30:]:
        here.observe(row)
        there.observe(row)
    torch.testing.assert_close(there.model().noise.cpu(), here.model().noise, rtol=1e-4, atol=0.0)


def test_without_a_gpu_the_plain_pass_is_taken() -> None:
    assert not factor_kernels.is_supported(torch.zeros(3, 10), 2)
