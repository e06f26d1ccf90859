"""Tables that commands print."""

from __future__ import annotations

import pytest

from boxloop.cli import echo_table


@pytest.mark.parametrize("width", [None, 80])
def test_names_and_numbers_are_whole_wherever_tables_go(
    width: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file has all the room there is; in a narrow terminal cells break between words, and no column is lost."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    cells = [
        "spherical 12, chosen",
        "1062",
        "-8.9630 ± 0.0014",
        "-0.79022 ± 0.00097",
        "1.613e+07",
        "1.613e+07",
    ]
    echo_table(
        "title", ["covariance components", "parameters", "held out", "below the best", "AIC", "BIC"], [cells]
    )
    shown = capsys.readouterr().out
    assert set(" ".join(cells).split()) <= set(shown.split())
    assert max(map(len, shown.splitlines())) <= (width or 1000)
    assert width or any(
        " ".join(cells[2].split()) in line and cells[0] in line for line in shown.splitlines()
    )
