"""Size of each room: files, lines, functions, short functions, and private functions that are used once.

python benchmarks/house.py [FOLDER]

FOLDER is a ``src/boxloop``, of this checkout when omitted. A function is short if its body, without its docstring, has
at most 3 lines. A private function is used once if its name occurs once in all files, but for its definition.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parents[1] / "src" / "boxloop"
SHORT = 3
COLUMNS = ("files", "lines", "functions", "short", "used once")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def body_lines(function: Function) -> int:
    """Lines of the body without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) and len(function.body) > 1 else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def names_used(tree: ast.AST) -> list[str]:
    """Names, attributes and imported names of a file."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.append(node.id)
        elif isinstance(node, ast.Attribute):
            names.append(node.attr)
        elif isinstance(node, ast.alias):
            names.append(node.name)
    return names


def measure_rooms(folder: Path) -> dict[str, Counter[str]]:
    """The counts of each room; files beside the rooms are the room ``top``."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}
    used = Counter(name for tree in trees.values() for name in names_used(tree))
    rooms: dict[str, Counter[str]] = {}
    for path, tree in trees.items():
        parts = path.relative_to(folder).parts
        room = rooms.setdefault(parts[0] if len(parts) > 1 else "top", Counter())
        functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
        private = [f for f in functions if f.name.startswith("_") and not f.name.startswith("__")]
        room["files"] += 1
        room["lines"] += len(path.read_text(encoding="utf-8").splitlines())
        room["functions"] += len(functions)
        room["short"] += sum(body_lines(function) <= SHORT for function in functions)
        room["used once"] += sum(used[function.name] == 1 for function in private)
    return rooms


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=HERE)
    rooms = measure_rooms(parser.parse_args().folder)
    rooms["all"] = sum(rooms.values(), Counter())
    print(f"{'room':14}" + "".join(f"{column:>11}" for column in COLUMNS))
    for name, counts in rooms.items():
        print(f"{name:14}" + "".join(f"{counts[column]:>11,}" for column in COLUMNS))


if __name__ == "__main__":
    main()
