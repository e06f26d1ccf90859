"""``boxloop datasets``: the tables that are there after installation."""

from __future__ import annotations

from typing import Any

from boxloop.cli import console, shared


@shared.with_examples(
    "boxloop datasets", "boxloop datasets --json", "boxloop fit wine --model gaussian-mixture -o m.boxloop"
)
@shared.json_option
def command(json_to: str | None) -> None:
    """List bundled data, which every command takes by name.

    Nothing is downloaded. A file or folder of the same name comes first. Tables that boxloop made itself are drawn
    from a fixed seed, so they are always the same.
    """
    from boxloop.cli.names import load_catalogue

    console.check_outputs([json_to])
    found: list[dict[str, Any]] = [
        {"name": name, **{key: facts.get(key) for key in ("rows", "columns", "what", "source", "seed")}}
        for name, facts in load_catalogue().items()
    ]
    heads = ["name", "rows", "columns", "what it is"]
    rows = [[one["name"], str(one["rows"]), str(one["columns"]), one["what"]] for one in found]
    console.write_findings(
        {"datasets": found},
        json_to,
        lambda: console.echo_table("Bundled data", heads, rows, words=heads[-1:]),
    )
