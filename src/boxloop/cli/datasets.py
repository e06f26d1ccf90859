"""``boxloop datasets``: the tables that are there after installation."""

from __future__ import annotations

from typing import Any

from boxloop.cli.options import json_option, with_examples
from boxloop.cli.output import check_outputs, echo_table, tell


@with_examples(
    "boxloop datasets", "boxloop datasets --json", "boxloop fit wine --model gaussian-mixture -o m.boxloop"
)
@json_option
def command(json_to: str | None) -> None:
    """List bundled data, which every command takes by name.

    Nothing is downloaded. A file or folder of the same name comes first. Tables that boxloop made itself are drawn
    from a fixed seed, so they are always the same.
    """
    from boxloop.cli.names import catalogue

    check_outputs([json_to])
    found: list[dict[str, Any]] = [
        {"name": name, **{key: facts.get(key) for key in ("rows", "columns", "what", "source", "seed")}}
        for name, facts in catalogue().items()
    ]
    heads = ["name", "rows", "columns", "what it is"]
    rows = [[one["name"], str(one["rows"]), str(one["columns"]), one["what"]] for one in found]
    tell({"datasets": found}, json_to, lambda: echo_table("Bundled data", heads, rows, words=heads[-1:]))
