"""Write the tree of ARCHITECTURE.md: every file of the library with the first line of its docstring."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- tree -->", "<!-- end of tree -->"


def describe_files(folder: Path, depth: int = 0) -> list[str]:
    """A line for each file: its name, and what its docstring says first."""
    lines = []
    for path in sorted(folder.iterdir(), key=lambda p: (p.is_dir(), p.name)):
        if path.is_dir() and (path / "__init__.py").exists():
            lines.append(_line(f"{path.name}/", path / "__init__.py", depth))
            lines += describe_files(path, depth + 1)
        elif path.suffix == ".py" and not path.name.startswith("__"):
            lines.append(_line(path.name, path, depth))
    return lines


def _line(name: str, path: Path, depth: int) -> str:
    first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
    return f"{'  ' * depth}{name:<{28 - 2 * depth}} {first}".rstrip()


def fill_page(page: str) -> str:
    """The page with its tree replaced by that of the files."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    tree = "\n".join(
        [*describe_files(ROOT / "src" / "boxloop"), "", "papers/", *describe_files(ROOT / "papers", 1)]
    )
    return f"{before}{BEGIN}\n```\n{tree}\n```\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
