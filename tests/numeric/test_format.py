"""Numbers as people read them."""

from __future__ import annotations

from typing import Any

import pytest

from boxloop.numeric import format_above, format_number, format_with_error, join_words


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (3.14159, 4, "3.142"),
        (3.14159, 2, "3.1"),
        (-3.14159, 4, "-3.142"),
        (31.4159, 4, "31.42"),
        (314159.0, 4, "3.142e+05"),
        (99999.0, 4, "99999"),
        (1e5, 4, "1e+05"),
        (1e-5, 2, "0.000010"),
        (0.0314159, 4, "0.03142"),
        (0.00031, 2, "0.00031"),
        (0.0, 3, "0"),
        (float("inf"), 4, "inf"),
    ],
)
def test_a_number_has_as_many_significant_digits_as_asked_for(value: float, digits: int, text: str) -> None:
    assert format_number(value, digits) == text


def test_an_error_has_two_digits_and_its_number_as_many_places() -> None:
    assert format_with_error(1234.5678, 12.3) == "1235 ± 12"
    assert format_with_error(0.123456, 0.00123) == "0.1235 ± 0.0012"


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [(1.0100004, 1.01, "1.0100004"), (1.2, 1.01, "1.200"), (1.01, 1.01, "1.010"), (float("inf"), 1.0, "inf"),
     (0.9, 1.0, "0.900")],
)  # fmt: skip
def test_a_number_above_a_limit_is_seen_to_be(value: float, limit: float, text: str) -> None:
    assert format_above(value, limit) == text


@pytest.mark.parametrize(
    ("words", "options", "text"),
    [
        ([], {}, ""),
        (["a"], {"most": 1}, "a"),
        (["a", "b"], {"most": 1}, "a and 1 more"),
        (["a", "b", "c"], {"most": 3, "conjunction": "or"}, "a, b or c"),
        (["a", "b"], {"total": 2}, "a and b"),
        (["a", "b", "c"], {"most": 2, "total": 10}, "a, b and 8 more"),
    ],
)
def test_words_are_listed_and_the_rest_counted(words: list[str], options: dict[str, Any], text: str) -> None:
    assert join_words(words, **options) == text
