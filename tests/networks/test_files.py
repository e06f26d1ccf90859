"""Posteriors on disk."""

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from boxloop.average import Power
from boxloop.networks import CLASSES, FactorEM, Method, WeightPosterior, load_posterior, save_posterior
from boxloop.persist import ModelFileError, load_tree, save_tree
from boxloop.tree import Tree
from networks.trajectories import METHODS


def network(width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 1))


def move(net: nn.Module, posterior: WeightPosterior, steps: int, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        with torch.no_grad():
            for value in net.parameters():
                value += 0.01 * torch.randn(value.shape, generator=draws)
        posterior.observe()


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("steps", [0, 2, 15])
def test_a_trajectory_goes_on_bit_for_bit(method: Method, steps: int, tmp_path: Path) -> None:
    net = network()
    posterior = WeightPosterior(net, method, random_state=0)
    posterior.n_refused = 3
    move(net, posterior, steps, seed=1)
    save_posterior(tmp_path / "a.boxloop", posterior)
    twin = copy.deepcopy(net)
    again = load_posterior(tmp_path / "a.boxloop", twin)
    assert (again.method, again.layout, again.dtype) == (method, posterior.layout, posterior.dtype)
    assert (again.count, again.n_refused) == (steps, 3)
    move(net, posterior, 12, seed=2)
    move(twin, again, 12, seed=2)
    for (name, one), (_, other) in zip(posterior.state().leaves(), again.state().leaves(), strict=True):
        assert torch.equal(one, other), name
    assert torch.equal(again.trace.values, posterior.trace.values)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize(
    "twin_of", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy], ids=["pickle", "copy"]
)
def test_copies_go_on_bit_for_bit_with_a_network_of_their_own(method: Method, twin_of: Any) -> None:
    net = network()
    posterior = WeightPosterior(net, method, dtype=torch.float64, random_state=0)
    move(net, posterior, 15, seed=1)
    posterior.n_refused = 3
    twin = twin_of(posterior)
    assert twin.net is not net
    assert (twin.count, twin.n_refused, twin.dtype, twin.device) == (15, 3, posterior.dtype, posterior.device)
    move(net, posterior, 12, seed=2)
    move(twin.net, twin, 12, seed=2)
    for (name, one), (_, other) in zip(posterior.state().leaves(), twin.state().leaves(), strict=True):
        assert torch.equal(one, other), name


def test_a_posterior_loads_what_it_saved(tmp_path: Path) -> None:
    net = network()
    posterior = WeightPosterior(net, "swa", random_state=0)
    move(net, posterior, 3, seed=1)
    posterior.save(tmp_path / "a.boxloop")
    again = WeightPosterior.load(tmp_path / "a.boxloop", network())
    assert again.count == 3
    assert torch.equal(again.mean(), posterior.mean())


def test_part_of_a_network_and_its_precision(tmp_path: Path) -> None:
    net = network()
    posterior = WeightPosterior(net, "swag", rank=2, parameters="last", dtype=torch.float64, random_state=0)
    move(net, posterior, 5, seed=1)
    save_posterior(tmp_path / "a.boxloop", posterior)
    again = load_posterior(tmp_path / "a.boxloop", network())
    assert again.layout.names == ("2.weight", "2.bias")
    assert again.dtype == again.distribution().mean.dtype == torch.float64


def test_another_network_is_refused_by_the_name_of_a_parameter(tmp_path: Path) -> None:
    posterior = WeightPosterior(network(), "swa", random_state=0)
    save_posterior(tmp_path / "a.boxloop", posterior)
    with pytest.raises(ValueError, match=r"'0.weight' had shape \(4, 2\) and now has shape \(5, 2\)"):
        load_posterior(tmp_path / "a.boxloop", network(5))
    with pytest.raises(ValueError, match=r"'0.weight' .* is missing now"):
        load_posterior(tmp_path / "a.boxloop", nn.Linear(2, 1))


def test_files_that_are_not_posteriors(tmp_path: Path) -> None:
    path = tmp_path / "a.boxloop"
    save_tree(path, mean_state())
    with pytest.raises(ModelFileError, match="a MeanState, not a posterior"):
        load_posterior(path, network())
    torch.save({"a": torch.zeros(1)}, path)
    with pytest.raises(ModelFileError, match="nothing in it was run"):
        load_posterior(path, network())


def mean_state() -> Tree:
    return CLASSES["MeanState"](torch.zeros(2), 1)


def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "a.boxloop"
    save_posterior(path, WeightPosterior(network(), "swag", random_state=0))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="damaged"):
        load_posterior(path, network())


def test_parts_that_are_something_else(tmp_path: Path) -> None:
    path = tmp_path / "a.boxloop"
    state = WeightPosterior(network(), "swa", random_state=0).state()
    for change in ({"method": Power()}, {"layout": Power()}, {"trace": Power()}, {"dtype": "float16"}):
        save_tree(path, replace(state, **change))
        with pytest.raises(ModelFileError, match=r"the field '[a-z]*' is a|dtype is 'float16'"):
            load_posterior(path, network())


def test_a_schedule_that_is_code_is_not_written(tmp_path: Path) -> None:
    posterior = WeightPosterior(network(), FactorEM(2, schedule=lambda t: 1.0 / t), random_state=0)
    with pytest.raises(ModelFileError, match="a model file cannot hold"):
        save_posterior(tmp_path / "a.boxloop", posterior)
    assert not list(tmp_path.iterdir())


def test_only_these_classes_are_built(tmp_path: Path) -> None:
    path = tmp_path / "a.boxloop"
    save_posterior(path, WeightPosterior(network(), "factor", random_state=0))
    with pytest.raises(ModelFileError, match="StreamSettings"):
        load_tree(path, {name: kind for name, kind in CLASSES.items() if name != "StreamSettings"})
