from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from boxloop.average import Power, Running
from boxloop.tree import Tree


@dataclass(frozen=True)
class Pair(Tree):
    a: Tensor
    b: Tensor


def pairs(n: int) -> list[Pair]:
    stream = torch.Generator().manual_seed(5)
    return [
        Pair(torch.randn(3, generator=stream).double(), torch.randn((), generator=stream).double())
        for _ in range(n)
    ]


def average(values, schedule):
    running = Running[Pair]()
    for value in values:
        running = running.update(value, schedule)
    return running


def test_rate_one_over_t_is_the_mean():
    values = pairs(50)
    running = average(values, Power(exponent=1.0))
    assert running.count == 50
    torch.testing.assert_close(
        running.value.a, torch.stack([v.a for v in values]).mean(0), rtol=1e-12, atol=1e-14
    )
    torch.testing.assert_close(
        running.value.b, torch.stack([v.b for v in values]).mean(0), rtol=1e-12, atol=1e-14
    )


def test_rate_one_keeps_the_newest_alone():
    values = pairs(4)
    assert torch.equal(average(values, Power(exponent=0.0)).value.a, values[-1].a)


def test_a_constant_rate_is_an_exponential_window():
    values = pairs(3)
    expected = values[0].a * 0.49 + values[1].a * 0.21 + values[2].a * 0.3
    torch.testing.assert_close(average(values, lambda t: 0.3).value.a, expected, rtol=1e-12, atol=1e-14)


def test_the_first_value_is_taken_whole_whatever_the_schedule():
    assert average(pairs(1), lambda t: 0.01).value is not None
    assert torch.equal(average(pairs(1), lambda t: 0.01).value.a, pairs(1)[0].a)


def test_the_schedule_is_asked_for_step_two_first():
    asked = []

    def schedule(t):
        asked.append(t)
        return 0.5

    average(pairs(4), schedule)
    assert asked == [2, 3, 4]


def test_update_leaves_the_old_mean_alone():
    first = average(pairs(2), Power())
    before = first.value.a.clone()
    first.update(pairs(3)[2], Power())
    assert torch.equal(first.value.a, before)
    assert first.count == 2


def test_power_steps():
    assert [Power(0.5)(t) for t in (1, 4, 16)] == [1.0, 0.5, 0.25]
    assert Power(1.0, offset=9.0)(1) == 0.1
    assert Power(1.0, offset=0.0, scale=10.0)(5) == 1.0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"exponent": -0.1}, "exponent"),
        ({"exponent": 1.5}, "exponent"),
        ({"offset": -1.0}, "offset"),
        ({"scale": 0.0}, "scale"),
    ],
)
def test_power_refuses_steps_that_do_not_average(options, named):
    with pytest.raises(ValueError, match=named):
        Power(**options)
