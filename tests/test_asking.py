"""Questions, their usual answers, and who hears of doubts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch

from boxloop import asking
from boxloop.asking import ask, hopes_for, hoping, is_far, noting, told
from boxloop.numeric import ConditionError, cholesky, gram, safe_cholesky, solved

YES, NO = torch.tensor(True), torch.tensor(False)
SINGULAR = torch.zeros(2, 2, dtype=torch.float64)


@pytest.fixture
def far() -> Iterator[None]:
    with patch.object(asking, "NEAR", frozenset()):
        yield


@pytest.mark.parametrize("usual", [False, True])
@pytest.mark.parametrize("flag", [YES, NO, True, False])
def test_a_question_is_answered(flag: torch.Tensor | bool, usual: bool) -> None:
    assert ask(flag, usual=usual) is bool(flag)
    with hoping() as watch:  # near at hand
        assert ask(flag, usual=usual) is bool(flag)
    assert watch.doubts == []


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("usual", [False, True])
@pytest.mark.parametrize("flag", [YES, NO])
def test_in_hope_the_answer_is_the_usual_one_and_the_doubt_is_kept(flag: torch.Tensor, usual: bool) -> None:
    with hoping() as watch:
        assert ask(flag, usual=usual) is usual
    assert [bool(doubt) for doubt in watch.doubts] == [bool(flag) is not usual]


@pytest.mark.usefixtures("far")
def test_what_is_known_already_is_no_hope() -> None:
    with hoping() as watch:
        assert ask(True) is True
        assert watch.odd
    assert watch.doubts == []


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize(("flag", "usual", "odd"), [(YES, True, False), (YES, False, True), (NO, True, True)])
def test_noting_answers_and_remembers_what_was_odd(flag: torch.Tensor, usual: bool, odd: bool) -> None:
    with noting() as watch:
        assert ask(flag, usual=usual) is bool(flag)
        ask(NO)
    assert watch.odd is odd


@pytest.mark.usefixtures("far")
def test_hope_ends_with_its_block_however_that_ends() -> None:
    with pytest.raises(KeyboardInterrupt), hoping():
        raise KeyboardInterrupt
    assert not hopes_for(YES)
    assert ask(YES) is True


@pytest.mark.usefixtures("far")
def test_the_inner_of_two_hopes_hears_its_own_doubts() -> None:
    with hoping() as outer:
        with hoping() as inner:
            ask(YES)
        ask(NO)
        with noting():
            assert ask(YES) is True
    assert [bool(doubt) for doubt in inner.doubts] == [True]
    assert [bool(doubt) for doubt in outer.doubts] == [False]


@pytest.mark.usefixtures("far")
def test_another_thread_does_not_hope() -> None:
    with hoping() as watch, ThreadPoolExecutor(1) as pool:
        assert pool.submit(ask, YES).result() is True
    assert watch.doubts == []


def test_numbers_are_floats_until_one_hopes() -> None:
    value = torch.tensor(2.5)
    assert type(told(value)) is float
    with hoping():
        assert type(told(value)) is float  # near
    with patch.object(asking, "NEAR", frozenset()), hoping():
        assert told(value) is value
    assert not is_far(value)
    assert not is_far(2.5)


@pytest.mark.usefixtures("far")
def test_matrices_that_cannot_be_factored_are_doubts() -> None:
    with pytest.raises(torch.linalg.LinAlgError):
        cholesky(SINGULAR)
    with pytest.raises(torch.linalg.LinAlgError):
        solved(SINGULAR, SINGULAR)
    with pytest.raises(ConditionError):
        safe_cholesky(SINGULAR)
    for function in (cholesky, safe_cholesky, lambda matrix: solved(matrix, matrix)):
        with hoping() as watch:
            function(SINGULAR)
            function(torch.eye(2, dtype=torch.float64))
        assert [bool(doubt) for doubt in watch.doubts] == [True, False]


@pytest.mark.usefixtures("far")
def test_factors_and_solutions_are_the_same_bits() -> None:
    stream = torch.Generator().manual_seed(0)
    rows = torch.randn(9, 4, generator=stream, dtype=torch.float64)
    matrix, one = rows.mT @ rows, torch.ones(9, dtype=torch.float64)
    careful = cholesky(matrix), solved(matrix, rows.mT), gram(rows, one)
    with hoping():
        hoped = cholesky(matrix), solved(matrix, rows.mT), gram(rows, one)
    assert all(torch.equal(a, b) for a, b in zip(careful, hoped, strict=True))
