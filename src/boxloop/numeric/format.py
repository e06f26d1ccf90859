"""Numbers and lists of words as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

LONG = 1e5
"""Numbers from here on, or below its inverse, are written with a power of ten."""
ROUNDING = 1e-13
"""Errors so small beside their number are those of its last digit in memory, and not worth a word."""


def format_number(value: float, digits: int = 4) -> str:
    """A number for a table: so many significant digits, and no exponent where none is needed.

    Example:
        >>> [format_number(value) for value in (1234.5678, 0.0012345, 2.5e9, 0.0, float("nan"))]
        ['1235', '0.001234', '2.5e+09', '0', '-']
    """
    if not math.isfinite(value):
        return "-" if math.isnan(value) else str(value)
    if value == 0.0 or 1.0 / LONG <= abs(value) < LONG:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
        return f"{value:.{places}f}"
    return f"{value:.{digits}g}"


def count_significant_digits(value: float, unit: float, least: int = 4) -> int:
    """Significant digits that show two digits of a unit, however small it is beside the value.

    Example:
        >>> count_significant_digits(12.5, 3.0), count_significant_digits(1e7, 0.1), count_significant_digits(1.0, 0.0)
        (4, 10, 4)
    """
    if not (math.isfinite(value) and value and math.isfinite(unit) and unit):
        return least
    return min(max(least, math.ceil(math.log10(abs(value) / abs(unit))) + 2), 16)


def format_above(value: float, limit: float, places: int = 3) -> str:
    """A number that is above a limit, with as many decimals as show that it is.

    Example:
        >>> format_above(1.04321, 1.01), format_above(1.01004, 1.01)
        ('1.043', '1.01004')
    """
    while places < 16 and float(f"{value:.{places}f}") <= limit < value:
        places += 1
    return f"{value:.{places}f}"


def format_with_error(value: float, error: float, *, sign: str = "") -> str:
    """A number and its standard error, both to the error's second digit; ``sign`` "+" writes a plus, too.

    Example:
        >>> format_with_error(-10.56123, 0.1948), format_with_error(0.0353, 0.03, sign="+")
        ('-10.56 ± 0.19', '+0.035 ± 0.030')
        >>> format_with_error(2.0, float("nan"))
        '2.000'
        >>> format_with_error(-1.0986, 4e-17), format_with_error(-4.71e-16, 2e-16)
        ('-1.099', '-4.7e-16 ± 2.0e-16')
    """
    if not math.isfinite(error) or error <= ROUNDING * abs(value):
        return (sign if value > 0.0 else "") + format_number(value)
    if max(abs(value), error) < 1.0 / LONG:
        return f"{value:{sign}.1e} ± {error:.1e}"
    places = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:{sign}.{places}f} ± {error:.{places}f}"


def join_words(
    words: Sequence[str], conjunction: str = "and", *, most: int | None = None, total: int | None = None
) -> str:
    """Words as a sentence lists them: the first ``most`` by name, the others counted, ``total`` in all.

    Example:
        >>> join_words(["a"]), join_words(["a", "b"], "or"), join_words(["a", "b", "c"])
        ('a', 'a or b', 'a, b and c')
        >>> join_words(["a", "b", "c", "d"], most=2), join_words(["a", "b"], total=9)
        ('a, b and 2 more', 'a, b and 7 more')
    """
    named = list(words[:most])
    left = (len(words) if total is None else total) - len(named)
    if left:
        named.append(f"{left} more")
    return "".join(named) if len(named) < 2 else f"{', '.join(named[:-1])} {conjunction} {named[-1]}"
