import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from boxloop.average import Running
from boxloop.persist import ModelFileError, load_tree, save_tree
from boxloop.tree import Tree
from boxloop.types import Expected


@dataclass(frozen=True)
class Normal(Tree):
    mean: Tensor
    floor: float = 1e-6


@dataclass(frozen=True)
class Mix(Tree):
    log_weight: Tensor
    family: Normal


@dataclass(frozen=True)
class Every(Tree):
    tensors: tuple[Tensor, ...]
    trees: tuple[Normal, ...]
    names: tuple[str, ...]
    nested: tuple[Any, ...]
    flag: bool
    number: int
    none: None = None
    derived: int = field(init=False, default=3)


@dataclass(frozen=True)
class Scale:
    """Not a tree."""

    origin: Tensor
    weight: float


CLASSES = {cls.__name__: cls for cls in (Normal, Mix, Every, Scale, Running, Expected)}


def bits(tensor):
    return tensor.dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).tolist()


def round_trip(tmp_path, tree, **options):
    save_tree(tmp_path / "m.boxloop", tree, **options)
    return load_tree(tmp_path / "m.boxloop", CLASSES)


def mix() -> Mix:
    return Mix(torch.tensor([0.4, 0.6], dtype=torch.float64).log(), Normal(torch.ones(2, 3)))


def test_a_model_comes_back_bit_for_bit(tmp_path):
    saved = round_trip(tmp_path, mix(), columns=["a", "b", "<c>"], extra={"n_components": 2, "tol": 1e-3})
    assert type(saved.tree) is Mix
    assert type(saved.tree.family) is Normal
    assert [(n, bits(t)) for n, t in saved.tree.leaves()] == [(n, bits(t)) for n, t in mix().leaves()]
    assert saved.tree.family.floor == 1e-6
    assert (saved.columns, saved.extra) == (("a", "b", "<c>"), {"n_components": 2, "tol": 1e-3})


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([math.nan, -0.0, math.inf, 5e-324], dtype=torch.float64),
        torch.ones(2, 3, dtype=torch.float32),
        torch.ones(3, dtype=torch.float16),
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor([2**62, -1]),
        torch.tensor([1, 2], dtype=torch.int32),
        torch.Generator().manual_seed(3).get_state(),
        torch.tensor([True, False]),
        torch.tensor(2.5, dtype=torch.float64),
        torch.zeros(0, 4),
        torch.arange(12.0).reshape(3, 4).T[1:],
        torch.ones(1).expand(5),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=lambda t: f"{str(t.dtype)[6:]}{list(t.shape)}",
)
def test_every_type_and_layout_comes_back_bit_for_bit(tmp_path, tensor):
    loaded = round_trip(tmp_path, Normal(tensor)).tree.mean
    assert bits(loaded) == bits(tensor.detach().contiguous())
    assert loaded.is_contiguous()
    assert not loaded.requires_grad


def test_plain_fields_come_back_as_they_were(tmp_path):
    tensor = torch.arange(3.0)
    tree = Every((tensor, tensor), (Normal(tensor, math.inf),), ("x", "é\n"), ((1, 0.1), (), None), True, -7)
    loaded = round_trip(tmp_path, tree).tree
    assert (loaded.names, loaded.nested, loaded.flag, loaded.number, loaded.none, loaded.derived) == (
        ("x", "é\n"),
        ((1, 0.1), (), None),
        True,
        -7,
        None,
        3,
    )
    assert [type(item) for item in loaded.nested[0]] == [int, float]
    assert loaded.trees[0].floor == math.inf
    assert all(torch.equal(item, tensor) for item in loaded.tensors)


def test_generic_trees_and_plain_dataclasses(tmp_path):
    tree = Running(Expected(Scale(torch.ones(2), 0.1), torch.tensor(1.0), torch.tensor(2.0)), 4)
    loaded = round_trip(tmp_path, tree).tree
    assert loaded.count == 4
    assert loaded.value.statistics.weight == 0.1
    assert torch.equal(loaded.value.statistics.origin, torch.ones(2))


def test_a_tree_without_tensors(tmp_path):
    assert round_trip(tmp_path, Running(None, 2)).tree == Running(None, 2)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, math.inf, -math.inf])
def test_plain_floats_are_exact(tmp_path, value):
    assert math.copysign(1.0, value) == math.copysign(
        1.0, round_trip(tmp_path, Normal(torch.ones(1), value)).tree.floor
    )
    assert round_trip(tmp_path, Normal(torch.ones(1), value)).tree.floor == value


def test_nan_as_a_plain_value(tmp_path):
    saved = round_trip(tmp_path, Normal(torch.ones(1), math.nan), extra={"missing": math.nan})
    assert math.isnan(saved.tree.floor)
    assert math.isnan(saved.extra["missing"])


def test_the_same_tree_gives_the_same_file(tmp_path):
    for name in ("a", "b"):
        save_tree(tmp_path / name, mix(), columns=["x"], extra={"q": 1, "p": 2})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_any_safetensors_reader_opens_it(tmp_path):
    save_tree(tmp_path / "m.boxloop", mix())
    assert sorted(safetensors.torch.load_file(tmp_path / "m.boxloop")) == ["family.mean", "log_weight"]


def test_loaded_tensors_can_be_written_to(tmp_path):
    assert round_trip(tmp_path, mix()).tree.family.mean.add_(1.0)[0, 0] == 2.0


@pytest.mark.parametrize(
    "extra", [{1: "a", 10: "b", 2: "c"}, {"deep": [{"x": (1, 2)}, None]}, {"é": "\ud800"}]
)
def test_extras_are_json(tmp_path, extra):
    saved = round_trip(tmp_path, Running(None, 0), extra=extra).extra
    assert list(saved) == [str(key) for key in sorted(extra, key=str)]


def test_a_field_missing_from_an_older_file_takes_its_default(tmp_path):
    @dataclass(frozen=True)
    class Old(Tree):
        mean: Tensor

    save_tree(tmp_path / "m", Old(torch.ones(2)))
    assert load_tree(tmp_path / "m", {"Old": Normal}).tree.floor == 1e-6


@pytest.mark.parametrize(
    ("tree", "options", "named"),
    [
        (Normal([1.0]), {}, "mean is a list"),
        (Mix(torch.ones(1), Normal(torch.Generator())), {}, r"family\.mean is a Generator"),
        (Normal(torch.ones(1, dtype=torch.complex128)), {}, r"'mean' is torch\.complex128"),
        (Normal(torch.eye(2).to_sparse()), {}, r"'mean' is .*sparse"),
        (Normal(torch.Size([2])), {}, "mean is a Size"),
        (mix(), {"extra": {"model": object()}}, "extra must be plain JSON"),
        (mix(), {"extra": {1: 0, "1": 0}}, "extra must be plain JSON"),
        (mix(), {"columns": [1]}, "column names"),
        (mix(), {"extra": {"text": "x" * 17_000_000}}, "more than"),
    ],
)
def test_what_a_file_cannot_hold_is_refused_before_it_is_touched(tmp_path, tree, options, named):
    save_tree(tmp_path / "m.boxloop", Running(None, 1))
    with pytest.raises(ModelFileError, match=named):
        save_tree(tmp_path / "m.boxloop", tree, **options)
    assert load_tree(tmp_path / "m.boxloop", CLASSES).tree == Running(None, 1)


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_tree(tmp_path / "m.boxloop", CLASSES)
