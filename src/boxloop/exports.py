"""Lazy exports: names that a package lists in its ``__init__.pyi``, and inner packages, are imported on first use.

The stub is what type checkers and readers see; here it is read at run time, as in Scientific Python's SPEC 1. Names in
its ``__all__`` are for users; names imported as ``x as x`` are for the other packages of the library.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType


def export_lazily(package: str) -> None:
    """Make a package import the names of its ``__init__.pyi`` when they are first asked for."""
    module = sys.modules[package]
    assert module.__file__ is not None
    stub = ast.parse(Path(module.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    module.__class__ = _LazyPackage
    module.__dict__["_homes"] = dict(_read_modules(stub, package))
    folder = Path(module.__file__).parent
    module.__dict__["_packages"] = {init.parent.name for init in folder.glob("[!_]*/__init__.py")}
    module.__dict__["__all__"] = _read_all(stub)


class _LazyPackage(ModuleType):
    _homes: dict[str, str]
    _packages: set[str]

    def __getattr__(self, name: str) -> object:
        if name not in self._homes:
            if name in self._packages:
                return import_module(f"{self.__name__}.{name}")
            raise AttributeError(
                f"module {self.__name__!r} has no attribute {name!r}{self._suggest_names(name)}"
            )
        value = getattr(import_module(self._homes[name]), name)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # Importing the module criticise.mega must not hide the function criticise.mega.
        if not (isinstance(value, ModuleType) and name in self._homes):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[object, ...]:
        return import_module, (
            self.__name__,
        )  # cloudpickle sends plain modules by name, not those of a subclass

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self.__dict__["__all__"], *self._packages})

    def _suggest_names(self, name: str) -> str:
        if name.startswith("_"):
            return ""
        from difflib import get_close_matches

        near = get_close_matches(name, [*self.__dict__["__all__"], *self._packages], n=3)
        return f"; did you mean {' or '.join(near)}?" if near else ""


def _read_modules(stub: ast.Module, package: str) -> list[tuple[str, str]]:
    """Each name and the module that defines it."""
    homes = []
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            module = f"{package}.{node.module}" if node.level else str(node.module)
            homes += [(alias.name, module) for alias in node.names]
    return homes


def _read_all(stub: ast.Module) -> list[str]:
    for node in stub.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise ValueError("a stub of exports needs __all__")
