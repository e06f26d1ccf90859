"""Channels: permutations of neighbours with the displacement that was asked for, noise, shifts in time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from boxloop.numeric import generator
from boxloop.twoview import Composed, GaussianNoise, PixelShuffle, TimeShift, mean_displacement, self_views

FAR = 4.5
"""z-score beyond which a test fails: 7e-6 for each of about 15 comparisons, 1e-4 in all."""


def homes(n: int, height: int, width: int) -> torch.Tensor:
    """n images whose two channels are the place of each pixel."""
    down, across = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([down, across]).double().reshape(1, -1).repeat(n, 1)


def moved(channel: PixelShuffle, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where pixels come from, (n, 2, H, W), and how far, (n,) on average."""
    rows = homes(n, *channel.shape[1:])
    found, home = (part.reshape(n, *channel.shape) for part in (channel(rows, generator(seed)), rows))
    return found, (found - home).square().sum(1).sqrt().mean((1, 2))


@pytest.mark.parametrize("shape", [(28, 28), (8, 8), (5, 9), (1, 12)])
@pytest.mark.parametrize("displacement", [0.25, 1.0, 2.0])
def test_mean_displacement_is_the_one_asked_for(shape: tuple[int, int], displacement: float) -> None:
    _, far = moved(PixelShuffle((2, *shape), displacement, noise=0.0), 600, seed=3)
    error = float(far.std() / len(far) ** 0.5)
    assert abs(float(far.mean()) - displacement) < FAR * error
    assert error < 0.05 * displacement  # so that the comparison says something


def test_every_image_has_a_permutation_of_its_own() -> None:
    found, _ = moved(PixelShuffle((2, 6, 7), 1.0, noise=0.0), 50, seed=0)
    place = (found[:, 0] * 7 + found[:, 1]).reshape(50, -1)
    assert torch.equal(place.sort(1).values, torch.arange(42).double().expand(50, -1))
    assert len(torch.unique(place, dim=0)) == 50


def test_one_sweep_moves_a_pixel_to_a_neighbour_at_most_and_swaps_pairs() -> None:
    channel = PixelShuffle((2, 1, 9), 0.3, noise=0.0)
    assert channel.sweeps[0] == 1
    found, _ = moved(channel, 200, seed=1)
    place = found[:, 1, 0].long()
    assert int((place - torch.arange(9)).abs().max()) == 1
    assert torch.equal(place.gather(1, place), torch.arange(9).expand(200, -1))  # its own inverse


def test_expected_displacement_of_two_pixels_by_hand() -> None:
    # One sweep: the pair begins at place 0 in half of the images, and is then swapped with chance p.
    assert mean_displacement(1, 2, 1, 0.4) == pytest.approx(0.5 * 0.4, rel=1e-12)
    # Two sweeps: in one of them the pair is whole, whatever comes first.
    assert mean_displacement(1, 2, 2, 0.4) == pytest.approx(0.4, rel=1e-12)
    assert mean_displacement(2, 2, 2, 0.5) == pytest.approx(0.5 + 0.25 * 2**0.5, rel=1e-12)


def test_channels_of_an_image_move_together_and_no_direction_is_preferred() -> None:
    rows = homes(400, 8, 8)
    both = torch.cat([rows, rows[:, :64]], 1)
    found = PixelShuffle((3, 8, 8), 1.0, noise=0.0)(both, generator(5)).reshape(400, 3, 64)
    assert torch.equal(found[:, 0], found[:, 2])
    middle = (found - both.reshape(400, 3, 64)).reshape(400, 3, 8, 8)[:, :2, 3, 4]
    z = middle.mean(0) / (middle.std(0) / 20.0)
    assert float(z.abs().max()) < FAR


def test_noise_comes_after_the_swaps() -> None:
    channel = PixelShuffle((4, 4), 0.0, noise=0.3)
    found = channel(torch.zeros(4000, 16).double(), generator(0))
    n = found.numel()
    assert abs(float(found.var()) / 0.09 - 1.0) < FAR * (2.0 / n) ** 0.5
    assert abs(float(found.mean())) < FAR * 0.3 / n**0.5


def test_the_same_stream_gives_the_same_view_and_the_next_another() -> None:
    channel, rows = PixelShuffle((4, 4)), torch.rand(5, 16, generator=generator(0))
    one, two = generator(7), generator(7)
    assert torch.equal(channel(rows, one), channel(rows, two))
    assert not torch.equal(channel(rows, one), channel(rows, generator(7)))
    assert channel(rows, one).dtype == torch.float32


@pytest.mark.parametrize("bad", [{"shape": (4,)}, {"shape": (0, 3)}, {"displacement": -1.0}, {"noise": -0.1}])
def test_shuffles_that_cannot_be_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"shape|negative"):
        PixelShuffle(**{"shape": (4, 4), **bad})  # type: ignore[arg-type]


def test_a_displacement_beyond_the_image_is_refused() -> None:
    with pytest.raises(ValueError, match="more than swaps reach in an image of 4 x 4"):
        PixelShuffle((4, 4), 3.0)
    assert PixelShuffle((4, 4), 1.6).sweeps[0] > 3


def test_noise_by_column_and_composition() -> None:
    sd = torch.tensor([0.0, 2.0])
    both = Composed((GaussianNoise(sd), GaussianNoise(torch.tensor([0.0, 1.5]))))
    found = both(torch.zeros(5000, 2).double(), generator(2))
    assert float(found[:, 0].abs().max()) == 0.0
    assert abs(float(found[:, 1].var()) / 6.25 - 1.0) < FAR * (2.0 / 5000) ** 0.5
    with pytest.raises(ValueError, match="negative"):
        GaussianNoise(-1.0)


def test_time_shift_pairs_rows_with_later_ones_of_the_same_series() -> None:
    rows = torch.arange(7.0)[:, None]
    x, y = TimeShift(2)(rows, torch.tensor([0, 0, 0, 0, 1, 1, 1]))
    assert torch.equal(x[:, 0], torch.tensor([0.0, 1.0, 4.0]))
    assert torch.equal(y - x, torch.full((3, 1), 2.0))
    with pytest.raises(ValueError, match="more than 7 rows"):
        TimeShift(7)(rows)
    with pytest.raises(ValueError, match="no series"):
        TimeShift(3)(rows, torch.tensor([0, 0, 1, 1, 2, 2, 2]))
    with pytest.raises(ValueError, match="lag"):
        TimeShift(0)


def test_views_of_one_table_keep_its_kind_and_shape() -> None:
    images = np.random.default_rng(0).random((6, 4, 4)).astype(np.float32)
    x, y = self_views(images, PixelShuffle((4, 4), 1.0, 0.0), random_state=0)
    assert x.shape == y.shape == (6, 4, 4)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(np.sort(x.reshape(6, -1)), np.sort(y.reshape(6, -1)))
    again = self_views(images, PixelShuffle((4, 4), 1.0, 0.0), random_state=0)[1]
    np.testing.assert_array_equal(y, again)
    early, late = self_views(np.arange(5), TimeShift(1))
    assert early.shape == late.shape == (4,)
    tensor = torch.zeros(3, 2)
    assert isinstance(self_views(tensor, GaussianNoise(1.0), 0)[1], torch.Tensor)
