"""Which parameters stand where in a vector."""

import pytest
import torch
from torch import nn

from boxloop.weights import Layout


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
    layout = Layout.of(one)
    assert layout.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert layout.size == 12 + 4 + 8 + 2
    vector = layout.read(one, torch.empty(layout.size))
    assert torch.equal(vector, nn.utils.parameters_to_vector(one.parameters()))
    views = layout.views(vector)
    for name, value in one.named_parameters():
        assert torch.equal(views[name], value)
        assert torch.equal(vector[layout.places[name]], value.reshape(-1))


def test_what_is_written_is_read() -> None:
    one = net()
    layout = Layout.of(one, ["0.bias", "2"])
    before = one[0].weight.detach().clone()
    vector = torch.arange(float(layout.size))
    layout.write(one, vector)
    assert torch.equal(layout.read(one, torch.empty(layout.size)), vector)
    assert torch.equal(one[0].weight, before)
    many = layout.views(torch.stack([vector, -vector]))
    assert many["2.weight"].shape == (2, 2, 4)
    assert torch.equal(many["2.weight"][0], one[2].weight)


def test_frozen_parameters_are_left_out() -> None:
    one = net()
    one[0].requires_grad_(False)
    assert Layout.of(one).names == ("2.weight", "2.bias")
    with pytest.raises(ValueError, match="no trainable parameter"):
        Layout.of(one, "0")
    one.requires_grad_(False)
    with pytest.raises(ValueError, match="Sequential has no trainable parameter"):
        Layout.of(one)


def test_tied_parameters_are_counted_once_by_any_of_their_names() -> None:
    one = Tied()
    assert Layout.of(one).names == ("encoder.weight", "encoder.bias", "decoder.bias")
    assert Layout.of(one, ["decoder.weight"]).names == ("encoder.weight",)
    assert Layout.of(one, "decoder").names == ("encoder.weight", "decoder.bias")
    assert Layout.of(one, ["encoder", "decoder"]).size == 9 + 3 + 3


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
    assert Layout.of(net(), which).names == names


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="Sequential has no parameter and no module named '5'"):
        Layout.of(net(), ["0", "5"])


def test_changed_networks_are_named_by_their_parameter() -> None:
    one = net()
    layout = Layout.of(one)
    out = torch.zeros(layout.size)
    one[2] = nn.Linear(4, 3)
    with pytest.raises(
        ValueError, match=r"'2.weight' was followed with shape \(2, 4\) and has shape \(3, 4\)"
    ):
        layout.read(one, out)
    one[2] = nn.Identity()
    with pytest.raises(ValueError, match=r"'2.weight' .* is no longer there"):
        layout.write(one, out)
    assert not bool(out.any())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read_into_the_vectors(dtype: torch.dtype) -> None:
    one = net().to(dtype)
    layout = Layout.of(one)
    vector = layout.read(one, torch.empty(layout.size, dtype=torch.float32))
    assert torch.equal(vector, nn.utils.parameters_to_vector(one.parameters()).float())
    layout.write(one, vector + 1.0)
    assert one[0].weight.dtype == dtype


def test_a_scalar_parameter_and_one_without_entries() -> None:
    one = nn.ParameterDict({"a": nn.Parameter(torch.tensor(2.0)), "b": nn.Parameter(torch.zeros(0, 3))})
    layout = Layout.of(one)
    assert layout.sizes == (1, 0)
    assert layout.views(layout.read(one, torch.empty(1)))["b"].shape == (0, 3)


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
        (lambda: nn.Sequential(nn.LazyLinear(2)), r"has no shape yet: run the network once"),
        (lambda: nn.DataParallel(nn.Linear(2, 1)), r"follow its net.module"),
        (lambda: nn.ParameterList([torch.empty(0)]), r"no trainable parameter there that holds a number"),
        (Scripted, r"follow the module that was scripted or traced"),
    ],
)
def test_networks_that_cannot_be_followed_say_what_to_do(made: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Layout.of(made())  # type: ignore[operator]


def test_the_real_parameters_of_a_network_with_complex_ones_can_be_named() -> None:
    assert Layout.of(Complex(), "first").names == ("first.weight", "first.bias")


@pytest.mark.parametrize("given", [[], 3, [nn.Linear(2, 1).weight]])
def test_parameters_are_given_by_name(given: object) -> None:
    with pytest.raises(ValueError, match=r"takes names of parameters or modules"):
        Layout.of(nn.Linear(2, 1), given)  # type: ignore[arg-type]


def test_what_is_not_a_network_is_told_so() -> None:
    with pytest.raises(TypeError, match=r"a network is a torch.nn.Module, got a generator"):
        Layout.of(net().parameters())  # type: ignore[arg-type]


@pytest.mark.parametrize("vector", [torch.zeros(25), torch.zeros(1, 26), [0.0] * 26])
def test_a_vector_of_another_size_is_not_written(vector: object) -> None:
    one = net()
    before = [value.clone() for value in one.parameters()]
    with pytest.raises(ValueError, match=r"one tensor of shape \(26,\)"):
        Layout.of(one).write(one, vector)  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(before, one.parameters(), strict=True))


def test_compiled_and_plain_networks_are_told_apart() -> None:
    plain = net()
    compiled = torch.compile(plain, backend="eager")
    with pytest.raises(ValueError, match=r"give the compiled network"):
        Layout.of(compiled).read(plain, torch.empty(26))
    with pytest.raises(ValueError, match=r"give the network within"):
        Layout.of(plain).read(compiled, torch.empty(26))
