"""The bound on a GPU: the same as on the CPU, and no step of it waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.testing import assert_close

from boxloop.models import Autoencoder, BernoulliHead, Convolutions, Deconvolutions, Part, StandardNormal
from boxloop.numeric import generator
from models.autoencoder_cases import HEADS, LATENTS, rows_of, small

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


@contextmanager
def no_waiting() -> Iterator[None]:
    """Anything that makes the host wait for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("latent", LATENTS)
@pytest.mark.parametrize("head", HEADS)
def test_a_bound_and_its_slopes_do_not_wait_and_are_those_of_the_cpu(head: str, latent: str) -> None:
    model = small(head, latent)
    rows = rows_of(model, 64)
    there, moved = model.to("cuda"), rows.cuda()
    assert_close(there.log_prob(moved).cpu(), model.log_prob(rows), rtol=1e-9, atol=1e-9)
    stream = generator(1, "cuda")
    free = tuple(leaf.clone().requires_grad_() for leaf in there.trainable())
    torch.linalg.cholesky_ex(
        torch.eye(2, dtype=torch.float64, device="cuda")
    )  # libraries load at their first call
    moving = there.with_trainable(free)
    torch.autograd.grad(moving.evidence_bound(moved, stream, 2).value().mean(), free)
    state = stream.get_state()
    with no_waiting():
        bound = moving.evidence_bound(moved, stream, 2)
        slopes = torch.autograd.grad(bound.value().mean(), free)
    assert all(bool(torch.isfinite(slope).all()) for slope in slopes)
    stream.set_state(state)
    again = torch.autograd.grad(moving.evidence_bound(moved, stream, 2).value().mean(), free)
    assert all(torch.equal(one, two) for one, two in zip(slopes, again, strict=True)), "bit for bit"
    assert moving.sample(10, stream)[0].shape == (10, 4)
    assert moving.importance_bound(moved, stream, 8).shape == (64,)


def test_images_pass_through_convolutions() -> None:
    cuda = generator(0, "cuda")
    down, up = Convolutions((1, 28, 28), (8, 16), 8), Deconvolutions((1, 28, 28), (16, 8), 4)
    parts = (Part(net, net.draw_parameters(cuda, torch.float32)) for net in (down, up))
    model = Autoencoder.from_parts(*parts, BernoulliHead(), StandardNormal(4), 784)
    rows = (torch.rand(32, 784, device="cuda") > 0.5).float()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        half = model.evidence_bound(rows, generator(1, "cuda")).value()
    whole = model.evidence_bound(rows, generator(1, "cuda")).value()
    assert half.dtype == torch.float32
    assert_close(half, whole, rtol=0.02, atol=2.0)
    assert_close(model.to("cpu").log_prob(rows.cpu()), model.log_prob(rows).cpu(), rtol=1e-3, atol=0.1)
