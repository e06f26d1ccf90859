from dataclasses import FrozenInstanceError, dataclass

import pytest
import torch
from torch import Tensor

from boxloop.tree import Tree


@dataclass(frozen=True)
class Leaf(Tree):
    a: Tensor
    kind: str = "plain"


@dataclass(frozen=True)
class Nest(Tree):
    leaf: Leaf
    many: tuple[Leaf, ...]
    pair: tuple[Tensor, Tensor]
    names: tuple[str, ...] = ("x", "y")
    none: Tensor | None = None
    floor: float = 0.5


def nest(start: float) -> Nest:
    values = [torch.arange(2, dtype=torch.float64) + start + i for i in range(5)]
    return Nest(Leaf(values[0]), (Leaf(values[1]), Leaf(values[2])), (values[3], values[4]))


def test_leaves_have_dotted_paths_in_field_order():
    assert [path for path, _ in nest(0.0).leaves()] == ["leaf.a", "many.0.a", "many.1.a", "pair.0", "pair.1"]


def test_arithmetic_reaches_every_tensor_and_nothing_else():
    tree = nest(1.0)
    combined = (tree + tree * 2.0) - tree
    for (_, got), (_, leaf) in zip(combined.leaves(), tree.leaves(), strict=True):
        assert torch.equal(got, leaf * 2.0)
    assert (combined.names, combined.none, combined.floor) == (("x", "y"), None, 0.5)
    assert type(combined) is Nest


def test_scaling_by_a_tensor():
    assert torch.equal((Leaf(torch.ones(2)) * torch.tensor(3.0)).a, torch.full((2,), 3.0))


def test_trees_of_other_shape_do_not_add():
    one = Nest(Leaf(torch.ones(1)), (), (torch.ones(1), torch.ones(1)))
    with pytest.raises(ValueError, match="zip"):
        one + nest(0.0)


def test_trees_do_not_change():
    with pytest.raises(FrozenInstanceError):
        nest(0.0).floor = 1.0


def test_to_changes_only_floating_types():
    @dataclass(frozen=True)
    class Mixed(Tree):
        real: Tensor
        count: Tensor
        flag: Tensor

    moved = Mixed(torch.ones(2), torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool)).to(
        "cpu", torch.float64
    )
    assert (moved.real.dtype, moved.count.dtype, moved.flag.dtype) == (torch.float64, torch.int64, torch.bool)


def test_dot_is_the_inner_product_of_the_flat_vectors():
    left, right = nest(1.0), nest(-2.0)
    flat = [torch.cat([leaf for _, leaf in tree.leaves()]) for tree in (left, right)]
    torch.testing.assert_close(left.dot(right), flat[0] @ flat[1], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_is_finite_sees_one_bad_entry_anywhere(bad):
    tree = nest(0.0)
    assert tree.is_finite()
    tree.pair[1][0] = bad
    assert not tree.is_finite()


@dataclass(frozen=True)
class Longer(Tree):
    parts: tuple[int, ...]

    def __add__(self, other: "Longer") -> "Longer":
        return Longer(self.parts + other.parts)


def test_a_tree_absorbs_another_in_its_own_memory():
    one, two = nest(1.0), nest(5.0)
    places = [leaf.data_ptr() for _, leaf in one.leaves()]
    whole = one + two
    kept = two + two * 0.0
    got = one.absorb(two)
    for (_, a), (_, b), place in zip(got.leaves(), whole.leaves(), places, strict=True):
        assert torch.equal(a, b)
        assert a.data_ptr() == place
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(two.leaves(), kept.leaves(), strict=True))
    assert torch.equal(Leaf(torch.ones(1)).absorb(Leaf(torch.ones(2))).a, torch.full((2,), 2.0))
    assert Leaf(torch.ones(1)).absorb(Leaf(torch.ones(1).double())).a.dtype == torch.float64
    assert Longer((1,)).absorb(Longer((2,))).parts == (1, 2)
