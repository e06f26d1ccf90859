"""Which parameters stand where in a vector."""

import pytest
import torch
from torch import nn

from boxloop.networks import Layout


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


class Tied(nn.Module):
    """An autoencoder whose decoder is its encoder's transpose, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.decoder = nn.Linear(3, 3)
        self.decoder.weight = self.encoder.weight


def test_a_vector_is_the_parameters_in_order() -> None:
    one = net()
    layout = Layout.from_network(one)
    assert layout.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert layout.size == 12 + 4 + 8 + 2
    vector = layout.read(one, torch.empty(layout.size))
    assert torch.equal(vector, nn.utils.parameters_to_vector(one.parameters()))
    views = layout.unflatten(vector)
    for name, value in one.named_parameters():
        assert torch.equal(views[name], value)
        assert torch.equal(vector[layout.slices[name]], value.reshape(-1))


def test_what_is_written_is_read() -> None:
    one = net()
    layout = Layout.from_network(one, ["0.bias", "2"])
    before = one[0].weight.detach().clone()
    vector = torch.arange(float(layout.size))
    layout.write(one, vector)
    assert torch.equal(layout.read(one, torch.empty(layout.size)), vector)
    assert torch.equal(one[0].weight, before)
    many = layout.unflatten(torch.stack([vector, -vector]))
    assert many["2.weight"].shape == (2, 2, 4)
    assert torch.equal(many["2.weight"][0], one[2].weight)


def test_frozen_parameters_are_left_out() -> None:
    one = net()
    one[0].requires_grad_(False)
    assert Layout.from_network(one).names == ("2.weight", "2.bias")
    with pytest.raises(ValueError, match="no trainable parameter"):
        Layout.from_network(one, "0")
    one.requires_grad_(False)
    with pytest.raises(ValueError, match="Sequential has no trainable parameter"):
        Layout.from_network(one)


def test_tied_parameters_are_counted_once_by_any_of_their_names() -> None:
    one = Tied()
    assert Layout.from_network(one).names == ("encoder.weight", "encoder.bias", "decoder.bias")
    assert Layout.from_network(one, ["decoder.weight"]).names == ("encoder.weight",)
    assert Layout.from_network(one, "decoder").names == ("encoder.weight", "decoder.bias")
    assert Layout.from_network(one, ["encoder", "decoder"]).size == 9 + 3 + 3


@pytest.mark.parametrize(
    ("which", "names"),
    [
        ("last", ("2.weight", "2.bias")),
        ("0", ("0.weight", "0.bias")),
        (["2.bias", "0.bias"], ("0.bias", "2.bias")),
        (["0", "0.weight"], ("0.weight", "0.bias")),
        ("", ("0.weight", "0.bias", "2.weight", "2.bias")),
    ],
)
def test_subsets(which: str | list[str], names: tuple[str, ...]) -> None:
    assert Layout.from_network(net(), which).names == names


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="Sequential has no parameter and no module named '5'"):
        Layout.from_network(net(), ["0", "5"])


def test_changed_networks_are_named_by_their_parameter() -> None:
    one = net()
    layout = Layout.from_network(one)
    out = torch.zeros(layout.size)
    one[2] = nn.Linear(4, 3)
    with pytest.raises(ValueError, match=r"'2.weight' had shape \(2, 4\) and now has shape \(3, 4\)"):
        layout.read(one, out)
    one[2] = nn.Identity()
    with pytest.raises(ValueError, match=r"'2.weight' .* is missing now"):
        layout.write(one, out)
    assert not bool(out.any())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read_into_the_vectors(dtype: torch.dtype) -> None:
    one = net().to(dtype)
    layout = Layout.from_network(one)
    vector = layout.read(one, torch.empty(layout.size, dtype=torch.float32))
    assert torch.equal(vector, nn.utils.parameters_to_vector(one.parameters()).float())
    layout.write(one, vector + 1.0)
    assert one[0].weight.dtype == dtype


def test_a_scalar_parameter_and_one_without_entries() -> None:
    one = nn.ParameterDict({"a": nn.Parameter(torch.tensor(2.0)), "b": nn.Parameter(torch.zeros(0, 3))})
    layout = Layout.from_network(one)
    assert layout.sizes == (1, 0)
    assert layout.unflatten(layout.read(one, torch.empty(1)))["b"].shape == (0, 3)


class Complex(nn.Module):
    """A real layer, and below it a parameter that is complex."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 1)
        self.inner = nn.ParameterDict({"phase": nn.Parameter(torch.ones(2, dtype=torch.cfloat))})


class Scripted(torch.jit.ScriptModule):
    """A network of torch.jit."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 1)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Complex, r"'inner.phase' is complex64"),
        (lambda: nn.Sequential(nn.LazyLinear(2)), r"has no shape yet: run the network on a batch"),
        (lambda: nn.DataParallel(nn.Linear(2, 1)), r"pass its net.module"),
        (lambda: nn.ParameterList([torch.empty(0)]), r"no trainable parameter among those selected"),
        (Scripted, r"pass the module that was scripted or traced"),
    ],
)
def test_networks_that_cannot_be_followed_say_what_to_do(made: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Layout.from_network(made())  # type: ignore[operator]


def test_the_real_parameters_of_a_network_with_complex_ones_can_be_named() -> None:
    assert Layout.from_network(Complex(), "first").names == ("first.weight", "first.bias")


@pytest.mark.parametrize("given", [[], 3, [nn.Linear(2, 1).weight]])
def test_parameters_are_given_by_name(given: object) -> None:
    with pytest.raises(ValueError, match=r"parameters must be names of parameters or modules"):
        Layout.from_network(nn.Linear(2, 1), given)  # type: ignore[arg-type]


def test_what_is_not_a_network_is_reported_so() -> None:
    with pytest.raises(TypeError, match=r"net must be a torch.nn.Module, got a generator"):
        Layout.from_network(net().parameters())  # type: ignore[arg-type]


@pytest.mark.parametrize("vector", [torch.zeros(25), torch.zeros(1, 26), [0.0] * 26])
def test_a_vector_of_another_size_is_not_written(vector: object) -> None:
    one = net()
    before = [value.clone() for value in one.parameters()]
    with pytest.raises(ValueError, match=r"one tensor of shape \(26,\)"):
        Layout.from_network(one).write(one, vector)  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(before, one.parameters(), strict=True))


def test_compiled_and_plain_networks_are_reported_apart() -> None:
    plain = net()
    compiled = torch.compile(plain, backend="eager")
    with pytest.raises(ValueError, match=r"pass the compiled network"):
        Layout.from_network(compiled).read(plain, torch.empty(26))
    with pytest.raises(ValueError, match=r"pass the network inside"):
        Layout.from_network(plain).read(compiled, torch.empty(26))
