"""The shape of the code: which room imports which, how long things are, what is never written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

ROOT = Path(__file__).parents[1] / "src" / "boxloop"
FILES = sorted(ROOT.rglob("*.py"))
ROOMS = sorted(p.parent.name for p in ROOT.glob("*/__init__.py"))
TOP = 9
RANK = {
    "version": 0,
    "exports": 0,
    "caller": 0,
    "concerns": 0,
    "types": 0,
    "tree": 0,
    "average": 1,
    "chain": 1,
    "figures": 1,
    "numeric": 1,
    "data": 1,
    "loop": 1,
    "progress": 1,
    "persist": 2,
    "distributions": 2,
    "models": 3,
    "fit": 4,
    "sample": 4,
    "criticise": 4,
    "select": 5,
    "twoview": 5,
    "networks": 5,
    "estimators": 6,
    "report": 7,
    "cli": 8,
    "__main__": TOP,
    "__init__": TOP,
}
ENGINES = {name for name, rank in RANK.items() if rank == RANK["fit"]}
BANNED_CALLS = {
    "warnings.warn": "warn_caller points at the user's line",
    "torch.load": "a model file holds nothing executable",
    "torch.manual_seed": "global seeds are not set",
    "np.random.seed": "global seeds are not set",
}
BANNED_TEXT = re.compile(r"\b(TODO|FIXME|XXX)\b|type: ignore(?!\[)")


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_modules(node: ast.AST, package: list[str]) -> Iterator[str]:
    """Dotted names that a statement imports; those of ``from boxloop import models`` begin with ``boxloop.models``."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        yield from (f"{module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


def imported_rooms(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Line and room of each import from this package; a name that is no room belongs to the top."""
    package = ["boxloop", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(text)):
        for module in imported_modules(node, package):
            head, _, rest = module.partition(".")
            if head == "boxloop":
                room = rest.partition(".")[0]
                yield node.lineno, room if room in RANK else "__init__"


def against_arrow(path: Path, text: str) -> list[str]:
    here = room_of(path)
    return [
        f"line {line}: {here} imports {room}"
        for line, room in imported_rooms(path, text)
        if RANK[room] > RANK[here] or (here != room and {here, room} <= ENGINES)
    ]


def swallows_all(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches everything; one for BaseException may, if it tidies up and raises again."""
    caught = ast.unparse(handler.type) if handler.type else ""
    again = isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None
    return caught in {"", "Exception"} or (caught == "BaseException" and not again)


def smells(path: Path, text: str) -> list[str]:
    found = [f"line {i}: {s.strip()}" for i, s in enumerate(text.splitlines(), 1) if BANNED_TEXT.search(s)]
    banned = {**BANNED_CALLS, "print": "the library never prints"}
    banned.pop({"cli": "print", "caller": "warnings.warn"}.get(room_of(path), ""), None)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in banned:
            found.append(f"line {node.lineno}: {ast.unparse(node.func)}(: {banned[ast.unparse(node.func)]}")
        if isinstance(node, ast.ExceptHandler) and swallows_all(node):
            found.append(f"line {node.lineno}: name the exception that can come")
    return found


REPOSITORY = ROOT.parents[1]
OUTSIDE = [
    p for folder in ("tests", "benchmarks", "papers") for p in sorted((REPOSITORY / folder).rglob("*.py"))
]


def past_the_door(path: Path, text: str) -> list[str]:
    """Imports from a file inside a room, or of a private name, by what is not in that room."""
    package = ["boxloop", *path.relative_to(ROOT).parent.parts] if path.is_relative_to(ROOT) else []
    here = room_of(path) if package else ""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [(alias.name, 2) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(name, 3) for name in imported_modules(node, package)]
        else:
            continue
        for name, depth in names:
            head, room, *inside = [*name.split("."), ""]
            private = inside[:-1] and inside[-2].startswith("_")
            if head == "boxloop" and room in ROOMS and room != here and (len(inside) > depth - 1 or private):
                found.append(f"line {node.lineno}: {name}")
    return found


@pytest.mark.parametrize("path", [*FILES, *OUTSIDE], ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_rooms_are_imported_through_their_door(path: Path) -> None:
    """``from boxloop.room import name``: so that what is inside can move."""
    assert past_the_door(path, path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "from boxloop.distributions.gaussian_full import FullGaussian",
        "from boxloop.distributions import _full",
        "import boxloop.distributions.gaussian_full",
        "def f():\n    from boxloop.fit.equations.averages import sum_group_products",
    ],
)
def test_the_door_test_can_fail(line: str) -> None:
    assert past_the_door(ROOT / "models" / "mixture.py", line) != []
    assert past_the_door(REPOSITORY / "tests" / "test_x.py", line) != []


@pytest.mark.parametrize(
    "line", ["from boxloop.distributions import FullGaussian", "import boxloop.distributions"]
)
def test_the_door_test_allows_the_door(line: str) -> None:
    assert past_the_door(ROOT / "models" / "mixture.py", line) == []


PROTOCOLS = {"_repr_html_"}
"""Names that other programs ask for, here a notebook."""


def private_names(text: str) -> set[str]:
    """Private functions, classes, attributes and constants that a file defines."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
            names.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return {name for name in names if re.match("_[a-z]|_[A-Z]", name)} - PROTOCOLS


PRIVATE = set().union(*(private_names(path.read_text()) for path in FILES))


def reached_into(text: str) -> list[str]:
    """Private names of the library that a test reads or replaces, as attributes or as text for ``monkeypatch``."""
    foreign = PRIVATE - private_names(text)
    nodes = list(ast.walk(ast.parse(text)))
    read = [node.attr for node in nodes if isinstance(node, ast.Attribute)]
    replaced = [
        arg.value
        for node in nodes
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] in {"setattr", "getattr", "object"}
        for arg in node.args[1:2]
        if isinstance(arg, ast.Constant)
    ]
    return sorted({name for name in [*read, *replaced] if name in foreign})


def test_no_test_reads_a_private_name() -> None:
    found = {str(p.relative_to(REPOSITORY)): reached_into(p.read_text()) for p in OUTSIDE}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "text",
    [
        "DaskSource._current_client",
        "monkeypatch.setattr(tasks, '_current_client', f)",
        "patch.object(tasks, '_current_client', 1)",
    ],
)
def test_the_test_of_private_names_can_fail(text: str) -> None:
    assert reached_into(text) == ["_current_client"]
    assert reached_into(f"def _current_client(): ...\n{text}") == []


def prefixed(folder: Path) -> list[str]:
    """Modules cut off a sibling (``x_y`` beside ``x``) or named after their folder."""
    stems = {p.stem for p in folder.glob("*.py")}
    return sorted(
        f"{folder.name}/{stem}"
        for stem in stems
        if stem.startswith(f"{folder.name}_")
        or any(stem.startswith(f"{other}_") for other in stems - {stem, "__init__"})
    )


def test_no_module_is_cut_off_a_sibling() -> None:
    folders = {p.parent for p in FILES}
    assert [name for folder in folders for name in prefixed(folder)] == []


def test_the_test_of_prefixes_can_fail(tmp_path: Path) -> None:
    for stem in ("stream", "stream_tiles", "streaming"):
        (tmp_path / f"{stem}.py").touch()
    assert prefixed(tmp_path) == [f"{tmp_path.name}/stream_tiles"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_file_keeps_the_rules(path: Path) -> None:
    """It belongs to a room, imports along the arrow, and has nothing that is never written."""
    assert room_of(path) in RANK, "give the new room its place in the import arrow, here and in the design"
    assert path.stem != "utils"
    text = path.read_text()
    assert against_arrow(path, text) == []
    assert smells(path, text) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("distributions/gaussian_full.py", "from boxloop.models import mixture"),
        ("distributions/gaussian_full.py", "import boxloop.models.mixture"),
        ("distributions/gaussian_full.py", "from boxloop import models"),
        ("distributions/gaussian_full.py", "from ..models.mixture import Mixture"),
        ("distributions/gaussian_full.py", "from .. import models"),
        ("distributions/gaussian_full.py", "def f():\n    from boxloop.models import Mixture"),
        ("distributions/gaussian_full.py", "importlib.import_module('boxloop.models')"),
        ("fit/em.py", "from boxloop.sample import mala"),
        ("models/mixture.py", "from boxloop import GaussianMixture"),
    ],
)
def test_the_arrow_test_sees_every_form_of_import(file: str, line: str) -> None:
    assert against_arrow(ROOT / file, line) != []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("models/mixture.py", "from boxloop.distributions import gaussian_full"),
        ("models/mixture.py", "from .. import distributions"),
        ("models/mixture.py", "from .factor import FactorAnalysis"),
        ("distributions/gaussian_full.py", "from . import counts"),
        ("distributions/gaussian_full.py", "import torch.models"),
        ("__init__.py", "from .estimators import GaussianMixture"),
    ],
)
def test_the_arrow_test_allows_what_it_should(file: str, line: str) -> None:
    assert against_arrow(ROOT / file, line) == []


@pytest.mark.parametrize(
    "text",
    ["print(1)", "x = 1  # TODO", "try:\n    f()\nexcept:\n    pass", "torch.load(path)"]
    + [f"try:\n    f()\nexcept {name} as e:\n    pass" for name in ("Exception", "BaseException")],
)
def test_the_smell_test_can_fail(text: str) -> None:
    assert smells(ROOT / "loop.py", text) != []


def documented(value: object) -> bool:
    """Whether a class or function has a docstring of its own, not the one a dataclass writes for itself."""
    doc = value.__doc__ or ""
    return doc.strip() != "" and not doc.startswith(f"{value.__name__}(")


def undocumented_methods(value: type) -> list[str]:
    """Public methods and properties of a class of ours, its own or inherited, that say nothing."""
    ours = [base for base in value.__mro__ if base.__module__.startswith("boxloop.")]
    members = {name: member for base in reversed(ours) for name, member in vars(base).items()}
    return [
        name
        for name, member in members.items()
        if not name.startswith("_")
        and isinstance(member, (FunctionType, property, classmethod, staticmethod))
        and not (getattr(value, name).__doc__ or "").strip()
    ]


def test_the_test_of_documented_methods_can_fail() -> None:
    plain = type("Plain", (), {"run": lambda self: None, "__module__": "boxloop.distributions"})
    assert undocumented_methods(plain) == ["run"]


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_public_names_are_documented(room: str) -> None:
    module = import_module(f"boxloop.{room}" if room else "boxloop")
    assert (module.__doc__ or "").strip() != "", "a room says what it is for"
    public = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
    assert [n for n, v in public.items() if isinstance(v, (type, FunctionType)) and not documented(v)] == []
    classes = {n: v for n, v in public.items() if isinstance(v, type)}
    assert [f"{n}.{name}" for n, v in classes.items() for name in undocumented_methods(v)] == []


def test_top_level_names_have_an_example() -> None:
    boxloop = import_module("boxloop")
    public = {name: getattr(boxloop, name) for name in boxloop.__all__}
    assert [n for n, v in public.items() if callable(v) and ">>>" not in (v.__doc__ or "")] == []
