"""Kernels as pure functions, and the one way to move chains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from torch.testing import assert_close

from boxloop import chain
from boxloop.chain import Chains, Info, Kernel, Noise, advance
from boxloop.numeric import generator

SAME: dict[str, Any] = {"rtol": 0.0, "atol": 0.0}


def walk(asked: list[int] | None = None, ratio: bool = False) -> Kernel:
    """Positions that add up their noise; the stored number counts steps."""

    def noise(chains: Chains, n: int, stream: Generator) -> Tensor:
        if asked is not None:
            asked.append(n)
        return torch.randn((n, *chains.position.shape), generator=stream, dtype=torch.float64)

    def step(chains: Chains, move: Tensor) -> tuple[Chains, Info]:
        there = Chains(chains.position + move, chains.log_density + 1.0)
        return there, Info(move.sum(1) if ratio else None, detail=float(move.sum()))

    return Kernel(lambda x: Chains(x, torch.zeros(len(x)).double()), noise, step)


def start(c: int = 3, d: int = 2) -> Tensor:
    return torch.zeros(c, d).double()


def test_every_step_is_on_the_path() -> None:
    kernel = walk(ratio=True)
    path = advance(kernel, kernel.init(start()), 7, generator(0))
    assert path.position.shape == (7, 3, 2)
    assert path.log_density.shape == (7, 3)
    assert path.log_ratio.shape == (7, 3)
    assert len(path.details) == 7
    assert_close(path.log_density[:, 0], torch.arange(1.0, 8.0).double())
    assert_close(path.position[-1], path.chains.position, **SAME)
    assert_close(path.log_density[-1], path.chains.log_density, **SAME)
    moves = path.position.diff(dim=0, prepend=start()[None])
    assert_close(path.log_ratio, moves.sum(2))
    assert path.details == pytest.approx(moves.sum((1, 2)).tolist())


def test_a_kernel_that_refuses_nothing_has_no_ratio() -> None:
    kernel = walk()
    assert kernel.chance is None
    assert advance(kernel, kernel.init(start()), 3, generator(0)).log_ratio is None


def test_noise_is_drawn_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more at once than stays in the cache, and never more than asked for."""
    asked: list[int] = []
    kernel = walk(asked)
    advance(kernel, kernel.init(start()), 600, generator(0))
    assert sum(asked) == 600
    assert max(asked) == chain.LONGEST
    asked.clear()
    monkeypatch.setattr(chain, "NOISE", 30)
    path = advance(kernel, kernel.init(start()), 12, generator(0))
    assert asked == [5, 5, 2]
    assert path.position.shape == (12, 3, 2)
    assert len(path.details) == 12
    asked.clear()
    advance(kernel, kernel.init(start(50, 50)), 3, generator(0))
    assert asked == [1, 1, 1], "however wide, a step at least"


def test_two_paths_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole blocks one after another are the path of all steps, from the same stream."""
    monkeypatch.setattr(chain, "NOISE", 24)  # four steps
    kernel = walk(ratio=True)
    whole = advance(kernel, kernel.init(start()), 12, generator(3))
    stream, chains, parts = generator(3), kernel.init(start()), []
    for steps in (4, 8):
        parts.append(advance(kernel, chains, steps, stream))
        chains = parts[-1].chains
    assert_close(torch.cat([part.position for part in parts]), whole.position, **SAME)
    assert_close(torch.cat([part.log_ratio for part in parts]), whole.log_ratio, **SAME)
    assert parts[0].details + parts[1].details == whole.details


def test_a_stream_may_be_the_noise() -> None:
    """Kernels that draw from distributions of their own get the stream itself, once a step."""

    def step(chains: Chains, stream: Generator) -> tuple[Chains, Info]:
        move = torch.randn(chains.position.shape, generator=stream, dtype=torch.float64)
        return chains._replace(position=chains.position + move), Info()

    kernel = Kernel(walk().init, lambda chains, n, stream: [stream] * n, step)
    first = advance(kernel, kernel.init(start()), 9, generator(1))
    second = advance(kernel, kernel.init(start()), 9, generator(1))
    assert_close(first.position, second.position, **SAME)
    assert len(first.position.unique(dim=0)) == 9


def test_noise_of_several_parts() -> None:
    noise = Noise(torch.arange(6.0).reshape(3, 2), ["a", "b", "c"])
    assert len(noise) == 3
    assert noise[1][1] == "b"
    assert_close(noise[1][0], torch.tensor([2.0, 3.0]))
    assert [item[1] for item in noise] == ["a", "b", "c"]
    assert [item[0].tolist() for item in noise] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        list(Noise(torch.zeros(3), ["a"]))
