"""Running statistics under every draw, against torch's own on a network that holds the draw."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

from boxloop.networks import Component, InputBatches, NetworkDraws, Predictor, WeightWarning, has_batch_norm
from contract.scores import assert_scores
from networks.small_networks import filled, mlp, part_of, rows, with_batch_norm

BATCHES = [rows(n, 1, 6, 6, seed=n) for n in (7, 9, 4)]  # of different sizes, all of which count the same


def held(part: Component, vector: Tensor, batches: list[Tensor]) -> nn.Module:
    """A network with a draw's weights, its statistics by torch."""
    net = copy.deepcopy(part.net)
    part.layout.write(net, vector)
    update_bn(batches, net)
    return net.eval()


def assert_as_torch(
    draws: NetworkDraws, found: tuple[dict[str, Tensor], ...], batches: list[Tensor], rtol: float
) -> None:
    for place, part in enumerate(draws.components):
        names = [n for n, _ in part.net.named_buffers() if "running" in n]
        assert sorted(found[place]) == sorted(names)
        for i, vector in enumerate(torch.cat(list(draws.draw_chunks(place, 9)))):
            net = held(part, vector, batches)
            for name in names:
                torch.testing.assert_close(
                    found[place][name][i], net.get_buffer(name), rtol=rtol, atol=rtol, check_dtype=False
                )


@pytest.mark.parametrize("use_vmap", [True, False, None])
@pytest.mark.parametrize("memory", [1, 50_000, 2**28])
def test_statistics_are_those_of_torch(use_vmap: bool | None, memory: int) -> None:
    draws = NetworkDraws.allocate([part_of(with_batch_norm(), 0.2)], 5, seed=1)
    found = draws.compute_batch_statistics(InputBatches(BATCHES), use_vmap=use_vmap, memory=memory)
    assert_as_torch(draws, found, BATCHES, 1e-12)


def test_outputs_are_those_of_a_network_that_holds_the_draw() -> None:
    part, x = part_of(with_batch_norm(), 0.2), rows(20, 1, 6, 6)
    draws = NetworkDraws.allocate([part], 5, seed=1)
    found = draws.evaluate(x, buffers=draws.compute_batch_statistics(InputBatches(BATCHES)))
    assert found.used_vmap
    each = [held(part, v, BATCHES)(x).detach() for v in torch.cat(list(draws.draw_chunks(0, 9)))]
    np.testing.assert_allclose(found.values, torch.stack(each).numpy(), rtol=1e-10, atol=1e-12)
    for memory in (1, 30_000):
        again = draws.evaluate(
            x, buffers=draws.compute_batch_statistics(InputBatches(BATCHES)), memory=memory
        )
        np.testing.assert_allclose(again.values, found.values, rtol=1e-10, atol=1e-12)


def test_statistics_in_float32() -> None:
    draws = NetworkDraws.allocate([part_of(with_batch_norm(torch.float32), 0.2)], 3, seed=1)
    found = draws.compute_batch_statistics(InputBatches([batch.float() for batch in BATCHES]))
    assert_as_torch(draws, found, [batch.float() for batch in BATCHES], 1e-5)


def test_statistics_of_half_precision_nets_are_float32() -> None:
    found = NetworkDraws.allocate(
        [part_of(with_batch_norm(torch.bfloat16), 0.2)], 3
    ).compute_batch_statistics(InputBatches(BATCHES))
    assert {value.dtype for value in found[0].values()} == {torch.float32}


def test_a_mixture_has_statistics_of_its_own_nets() -> None:
    plain = filled(nn.Sequential(nn.Flatten(), nn.Linear(36, 2))).double()
    draws = NetworkDraws.allocate([part_of(with_batch_norm(), weight=0.5), part_of(plain, weight=0.5)], 6)
    found = draws.compute_batch_statistics(InputBatches(BATCHES))
    assert_as_torch(draws, found, BATCHES, 1e-12)
    assert found[1] == {}
    assert draws.evaluate(rows(4, 1, 6, 6), buffers=found).values.shape == (6, 4, 2)


@pytest.mark.parametrize("momentum", [0.1, None, 0.0])
def test_the_net_is_left_as_it_was(momentum: float | None) -> None:
    net = with_batch_norm()
    net[1].momentum = momentum
    net.train()
    net[1].eval()
    modes = [module.training for module in net.modules()]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    draws = NetworkDraws.allocate([part_of(net)], 3)
    found = draws.compute_batch_statistics(InputBatches(BATCHES))
    assert_as_torch(draws, found, BATCHES, 1e-12)
    assert net[1].momentum == momentum
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_dropout_stays_off() -> None:
    layers = [nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 1)]
    net = filled(nn.Sequential(*layers)).double()
    draws, batches = NetworkDraws.allocate([part_of(net)], 3), [rows(8, 3)]
    found = draws.compute_batch_statistics(InputBatches(batches))
    net[1].p = 0.0
    assert_as_torch(draws, found, batches, 1e-12)


def test_loaders_arrays_and_pairs_are_batches() -> None:
    draws = NetworkDraws.allocate([part_of(with_batch_norm(), 0.2)], 3, seed=1)
    x = rows(10, 1, 6, 6)
    loader = DataLoader(TensorDataset(x, torch.zeros(10)), batch_size=5)
    states = torch.get_rng_state()
    found = draws.compute_batch_statistics(InputBatches(loader))
    assert torch.equal(torch.get_rng_state(), states)
    assert_as_torch(draws, found, list(x.split(5)), 1e-12)
    assert_as_torch(draws, draws.compute_batch_statistics(InputBatches(x.numpy())), [x], 1e-12)
    many = rows(600, 1, 6, 6)
    assert [len(batch) for batch in InputBatches(many)] == [200, 200, 200]


def test_frames_and_lists_of_rows_are_tables() -> None:
    draws = NetworkDraws.allocate(
        [part_of(filled(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))).double())], 3, seed=1
    )
    x = rows(12, 3)
    for given in (pd.DataFrame(x.numpy()), x.tolist()):
        assert_as_torch(draws, draws.compute_batch_statistics(InputBatches(given)), [x], 1e-12)
    pairs = [(x[:6].tolist(), [0.0] * 6), (x[6:].tolist(), [0.0] * 6)]
    assert_as_torch(draws, draws.compute_batch_statistics(InputBatches(pairs)), list(x.split(6)), 1e-12)


def test_a_batch_of_one_row_is_reported() -> None:
    draws = NetworkDraws.allocate(
        [part_of(filled(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))).double())], 3
    )
    loader = DataLoader(TensorDataset(rows(11, 3)), batch_size=5)
    with pytest.raises(ValueError, match=r"A batch of refresh has one row.*drop_last=True"):
        draws.compute_batch_statistics(InputBatches(loader))


@pytest.mark.parametrize("use_vmap", [False, None])
def test_statistics_that_instance_norm_keeps_are_gathered_too(use_vmap: bool | None) -> None:
    layers = [nn.Linear(3, 8), nn.Unflatten(1, (2, 4)), nn.InstanceNorm1d(2, track_running_stats=True)]
    net = filled(nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 1))).double()
    part, x = part_of(net), rows(12, 3)
    with pytest.raises(ValueError, match="The statistics of InstanceNorm1d belong to other weights"):
        Predictor((part,), "regression", 3, noise=1.0).predict(x)
    draws = NetworkDraws.allocate([part], 3, seed=1)
    found = draws.compute_batch_statistics(InputBatches([x[:4], x[4:]]), use_vmap=use_vmap)[0]
    vectors = torch.cat(list(draws.draw_chunks(0, 3)))
    for i, vector in enumerate(vectors):
        held = copy.deepcopy(net)
        part.layout.write(held, vector)
        inner = held[:2](x).detach()
        means = [inner[rows_].mean((0, 2)) for rows_ in (slice(0, 4), slice(4, 12))]
        variances = [inner[rows_].var(2).mean(0) for rows_ in (slice(0, 4), slice(4, 12))]
        torch.testing.assert_close(found["2.running_mean"][i], sum(means) / 2, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found["2.running_var"][i], sum(variances) / 2, rtol=1e-10, atol=1e-12)
    assert net[2].momentum == 0.1


def test_batch_norm_without_statistics_is_refused() -> None:
    net = filled(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False))).double()
    with pytest.raises(
        ValueError, match=r"BatchNorm1d '1' has no running statistics.*track_running_stats=True"
    ):
        Predictor((part_of(net),), "regression", 3)


def test_a_shuffling_loader_shows_every_chunk_the_same_rows() -> None:
    draws = NetworkDraws.allocate([part_of(with_batch_norm(), 0.2)], 4, seed=1)
    loader = DataLoader(TensorDataset(rows(20, 1, 6, 6)), batch_size=5, shuffle=True)
    whole, single = (
        draws.compute_batch_statistics(InputBatches(loader), memory=memory) for memory in (2**28, 1)
    )
    for name, value in whole[0].items():
        torch.testing.assert_close(single[0][name], value, rtol=1e-12, atol=1e-12)


def test_batches_that_are_none() -> None:
    with pytest.raises(ValueError, match="only once"):
        InputBatches(iter(BATCHES))
    with pytest.raises(ValueError, match="rows or batches"):
        InputBatches(3)
    with pytest.raises(ValueError, match="at least one batch"):
        NetworkDraws.allocate([part_of(with_batch_norm())], 3).compute_batch_statistics(InputBatches([]))


def test_a_net_that_cannot_go_together_in_training_goes_one_by_one() -> None:
    class Odd(nn.Module):
        """Looks at a value, but only where it trains."""

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            found = self.layer(x)
            if self.norm.training and found.sum() > 1e9:
                raise AssertionError
            return self.norm(found)

    draws = NetworkDraws.allocate([part_of(filled(Odd()).double())], 3)
    batches = [rows(8, 3)]
    with pytest.warns(WeightWarning, match="Odd cannot be evaluated by vmap"):
        found = draws.compute_batch_statistics(InputBatches(batches))
    assert_as_torch(draws, found, batches, 1e-12)


def test_which_nets_keep_statistics() -> None:
    assert has_batch_norm([part_of(with_batch_norm())])
    assert not has_batch_norm([part_of(mlp())])
    loose = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False))
    assert not has_batch_norm([part_of(loose)])


def test_a_net_that_is_a_batch_norm_itself() -> None:
    net = nn.BatchNorm1d(3).double()
    draws, batches = NetworkDraws.allocate([part_of(net)], 3), [rows(8, 3)]
    assert_as_torch(draws, draws.compute_batch_statistics(InputBatches(batches)), batches, 1e-12)


def test_statistics_of_a_scaled_layer_are_the_closed_form() -> None:
    """A linear layer's mean over rows is w'x̄ + b under every draw. False-alarm rate 1e-6 for the mean over draws."""
    net = filled(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))).double()
    part, x = part_of(net, 0.3, which="0"), rows(50, 3)
    draws = NetworkDraws.allocate([part], 400, seed=2)
    found = draws.compute_batch_statistics(InputBatches([x]))[0]["1.running_mean"]
    vectors = torch.cat(list(draws.draw_chunks(0, 400)))
    views = part.layout.unflatten(vectors)
    exact = views["0.weight"] @ x.mean(0) + views["0.bias"]
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-12)
    own = part.layout.unflatten(part.distribution.mean)
    centred = found - (own["0.weight"] @ x.mean(0) + own["0.bias"])
    assert_scores(centred.mean(0) / centred.std(0) * 20.0)
