"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pytest

from report.small import few_candidates

SOURCE = Path(__file__).parents[1] / "src"
EXAMPLES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): ">>>"
    in path.read_text(encoding="utf-8")
    for path in sorted(SOURCE.rglob("*.py"))
}
"""Whether a module has any."""


def test_every_module_can_be_imported() -> None:
    for name in EXAMPLES:
        import_module(name)


@pytest.mark.parametrize("name", [name for name, some in EXAMPLES.items() if some])
def test_examples(name: str) -> None:
    module = import_module(name)
    with few_candidates(most=10) if name.startswith("boxloop.report.") else nullcontext():
        outcome = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert outcome.failed == 0, "the report above shows the example"
