"""Random streams are explicit: nothing global is read or set."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from boxloop.numeric import generator, normal, seed, spawn

MAKERS = {
    "int": lambda: 3,
    "numpy int": lambda: np.int64(3),
    "numpy generator": lambda: np.random.default_rng(3),
    "numpy random state": lambda: np.random.RandomState(3),
    "torch generator": lambda: torch.Generator().manual_seed(3),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_equal_states_give_equal_streams(make) -> None:
    first, second = generator(make()), generator(make())
    assert torch.equal(normal((4, 2), first), normal((4, 2), second))


@pytest.mark.parametrize("kind", ["numpy generator", "numpy random state", "torch generator"])
def test_a_stateful_object_moves_on(kind: str) -> None:
    state = MAKERS[kind]()
    assert seed(state) != seed(state)


def test_none_asks_the_operating_system() -> None:
    assert len({seed(None) for _ in range(5)}) == 5


@pytest.mark.parametrize("bad", [-1, 1.5, "3", [3]])
def test_anything_else_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="random_state must be"):
        seed(bad)


def test_split_streams_differ_and_repeat() -> None:
    once, again = (spawn(generator(7), 4) for _ in range(2))
    first = [normal((3,), stream) for stream in once]
    assert all(torch.equal(a, normal((3,), stream)) for a, stream in zip(first, again, strict=True))
    assert len({tuple(draw.tolist()) for draw in first}) == 4


def test_the_global_state_is_neither_read_nor_set() -> None:
    before = torch.random.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()  # noqa: NPY002
    draw = normal((5,), generator(None))
    assert draw.dtype == torch.float64
    assert normal((5,), generator(1), torch.float32).dtype == torch.float32
    assert torch.equal(before, torch.random.get_rng_state())
    assert (numpy_before == np.random.get_state()[1]).all()  # noqa: NPY002
