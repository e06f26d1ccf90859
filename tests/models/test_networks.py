"""Networks as functions of parameters: the same as torch's modules, for images of any size."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from boxloop.models import Convolutions, Deconvolutions, Layers, ModuleNetwork, Part
from boxloop.numeric import generator, normal


def test_layers_are_those_of_torch() -> None:
    network = Layers(3, (5, 4), 2)
    parameters = network.draw_parameters(generator(0))
    parts: list[nn.Module] = []
    for slope, shift in zip(parameters[::2], parameters[1::2], strict=True):
        layer = nn.Linear(*slope.shape, dtype=torch.float64)
        layer.load_state_dict({"weight": slope.mT, "bias": shift})
        parts += [layer, nn.SiLU()]
    rows = normal((7, 3), generator(1))
    assert_close(network(parameters, rows), nn.Sequential(*parts[:-1])(rows))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 14), (2, 7, 5)])
def test_convolutions_are_those_of_torch_and_their_mirror_has_their_shape(
    shape: tuple[int, int, int],
) -> None:
    channels, n = (4, 6), 3
    wide = shape[0] * shape[1] * shape[2]
    down = Convolutions(shape, channels, 5)
    parameters = down.draw_parameters(generator(0))
    rows = normal((n, wide), generator(1))
    image = rows.reshape(n, *shape)
    for i, (before, after) in enumerate(((shape[0], 4), (4, 6))):
        layer = nn.Conv2d(before, after, 4, 2, 1, dtype=torch.float64)
        layer.load_state_dict({"weight": parameters[2 * i], "bias": parameters[2 * i + 1]})
        image = nn.functional.silu(layer(image))
    assert_close(down(parameters, rows), image.flatten(1) @ parameters[-2] + parameters[-1])
    up = Deconvolutions((2 * shape[0], *shape[1:]), channels[::-1], 5)
    found = up(up.draw_parameters(generator(2)), normal((n, 5), generator(3)))
    assert found.shape == (n, 2 * wide)
    assert float(found.std()) > 0.01


def test_what_starts_is_neither_vanishing_nor_exploding() -> None:
    """Outputs of a last layer have a variance near 1/3 for inputs of variance 1, whatever the depth."""
    rows, codes = normal((200, 784), generator(0)), normal((200, 10), generator(1))
    for network, at in (
        (Layers(784, (256, 256), 20), rows),
        (Convolutions((1, 28, 28), (16, 32), 20), rows),
        (Layers(10, (256, 256), 784), codes),
        (Deconvolutions((1, 28, 28), (32, 16), 10), codes),
    ):
        spread = float(network(network.draw_parameters(generator(2)), at).var())
        assert 0.05 < spread < 0.5, (network, spread)


def test_a_part_works_in_the_precision_of_its_parameters() -> None:
    network = Layers(2, (3,), 1)
    part = Part(network, network.draw_parameters(generator(0), torch.float32))
    assert part(torch.ones(4, 2).double()).dtype == torch.float32
    assert part.to(dtype=torch.float64)(torch.ones(4, 2)).dtype == torch.float64
    assert [path for path, _ in part.leaves()] == [f"parameters.{i}" for i in range(4)]


def test_a_module_is_copied_and_evaluated() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5))
    part = Part(*ModuleNetwork.from_module(module, torch.float64, torch.device("cpu")))
    rows = torch.ones(5, 2)
    assert_close(part(rows), part(rows), rtol=0, atol=0)
    assert module.training
    assert next(module.parameters()).dtype == torch.float32


def test_what_a_module_does_not_train_follows_it_to_another_precision() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    module[2].requires_grad_(False)
    module[1].running_mean.fill_(0.5)
    part = Part(*ModuleNetwork.from_module(module, torch.float32, torch.device("cpu")))
    assert len(part.parameters) == 4
    rows = normal((5, 2), generator(0))
    wide = part.to(dtype=torch.float64)
    assert wide(rows).dtype == torch.float64
    assert_close(wide(rows), module.double().eval()(rows), rtol=1e-10, atol=1e-10)
    assert_close(part(rows).double(), wide(rows), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layers(0, (), 1), "at least one column"),
        (lambda: Layers(1, (4, 0), 1), "at least one column"),
        (lambda: Convolutions((28, 28), (4,), 1), "an image has the shape"),  # type: ignore[arg-type]
        (lambda: Convolutions((1, 28, 28), (), 1), "channels"),
        (lambda: Deconvolutions((1, 5, 28), (4, 4, 4), 1), "cannot be halved 3 times"),
    ],
)
def test_bad_networks_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
