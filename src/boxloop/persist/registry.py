"""Model files of estimators: a class declares what its file holds, and one ``save`` and one ``load`` serve all classes.

A file holds the fitted model as a tree of tensors and, as JSON, the name of the class, those parameters of its
constructor that are plain values, and the fitted attributes that the class declares. What is read is of the declared
classes and types, within the constraints of its fields, and passes the checks of the estimator, or is refused.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted

from boxloop.persist.constraints import Table, describe_type, is_of_type, validate
from boxloop.persist.container import Container, ModelFileError, read_container
from boxloop.persist.trees import (
    Saved,
    decode_tree,
    encode_tree,
    name_file_in_errors,
    restore_tree,
    save_tree,
)
from boxloop.tree import Tree

PROGRESS: dict[str, Any] = {
    "n_features_in_": int,
    "n_iter_": int,
    "converged_": bool,
    "interrupted_": bool,
    "events_": list[str],
}
"""Fitted attributes of most estimators, and the types that they must have in a file."""
SEQUENCES: dict[str, Any] = {"hidden": list[int], "slopes": list[int | str]}
"""Parameters that are sequences of plain values, and how a file holds them: widths of layers, columns."""
UNBOUNDED = {"lower_bound_"}
"""Fitted attributes that are minus infinity where a fit had no iteration."""


class Labels(NamedTuple):
    """The type of a fitted attribute that is an array of class labels, (n,)."""

    values: list[bool | int | float | str]
    dtype: str


class HoldsModule(Protocol):
    """A part of a model that may be a ``torch.nn.Module`` of the user, of which a file holds the tensors alone."""

    @property
    def saved_module(self) -> str | None:
        """Name of the class of the module, where this was read from a file and waits for one; else None."""

    def without_module(self) -> Self:
        """The part as a file holds it."""

    def with_module(self, module: Any) -> Self:
        """The part that was read, with a module that takes its tensors; ValueError where these do not fit."""


Check = Callable[[Any, Saved], str | None]
"""Of an estimator, its parameters and fitted attributes set, and its file: what is wrong, or None."""


@dataclass(frozen=True)
class ModelFile:
    """What the file of an estimator class holds.

    Args:
        model: class of the tree that is the fitted model.
        parts: other classes that the tree may consist of.
        constraints: of the fields of these classes.
        facts: fitted attributes beside the model, and their types: plain values, tuples, dataclasses, ``Labels``.
        modules: parameters that may be modules of the user, with the place of their tensors in the tree.
        attribute: fitted attribute that is the tree.
        checks: of the estimator against its file, in this order.
    """

    model: type[Tree]
    parts: tuple[type, ...]
    constraints: Table
    facts: Mapping[str, Any]
    modules: Mapping[str, str] = field(default_factory=dict)
    attribute: str = "model_"
    checks: tuple[Check, ...] = ()

    @property
    def classes(self) -> dict[str, type]:
        """All classes that the tree may consist of, by name."""
        return {kind.__name__: kind for kind in (self.model, *self.parts)}


class FileMixin:
    """What estimators with a file have in common: the class declares ``_model_file``."""

    _model_file: ClassVar[ModelFile]

    def _to_tree(self) -> Tree:
        """The tree that is saved."""
        tree: Tree = getattr(self, self._model_file.attribute)
        return tree

    def _from_tree(self, tree: Any) -> None:
        """Set the fitted attributes that follow from the tree of a file; parameters and facts are set already."""
        setattr(self, self._model_file.attribute, tree)


class SaveMixin(FileMixin):
    """A scikit-learn estimator with a file."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator to one safe file, which :func:`boxloop.load` reads.

        Modules of yours are written as their tensors. Parameters that are not plain values (generators, starting
        arrays) and rows of the fit are left out.
        """
        save_model(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what :meth:`save` wrote, onto the CPU. Nothing in the file can run."""
        return load_model(path, cls)


class MetaSaveMixin(FileMixin):
    """A meta-estimator with a file, which holds the fitted estimator inside; ``_model_file`` declares the rest."""

    _fitted_attribute: ClassVar[str]

    def save(self, path: str | PathLike[str]) -> None:
        """Write this and the fitted estimator inside to one safe file, which :func:`boxloop.load` reads.

        Parameters that are not plain values (generators, functions) are left out.

        Raises:
            TypeError: the estimator inside is none of this library, and has no file.
        """
        save_meta_estimator(self, path)


@dataclass(frozen=True)
class Wrapped(Tree):
    """The tree of a meta-estimator: that of the estimator inside, and its own."""

    inner: Any
    own: Any


Estimator = TypeVar("Estimator", bound=FileMixin)


def get_model_file(kind: type[FileMixin]) -> ModelFile:
    """What the file of an estimator class holds."""
    return kind._model_file


def save_model(estimator: SaveMixin, path: str | PathLike[str]) -> None:
    """Write a fitted estimator to the file that its class declares."""
    check_is_fitted(estimator, msg="this %(name)s is not fitted yet: call fit before save")
    tree = _make_saved_tree(estimator)
    save_tree(path, tree, columns=_get_column_names(estimator), extra=_estimator_to_json(estimator))


def _make_saved_tree(estimator: FileMixin) -> Tree:
    tree = estimator._to_tree()
    for place in estimator._model_file.modules.values():
        part = _get_part(tree, place)
        if part is not None:
            tree = _replace_part(tree, place, part.without_module())
    return tree


def _estimator_to_json(estimator: FileMixin) -> dict[str, Any]:
    """Class, plain parameters and fitted attributes, as JSON."""
    attributes = vars(estimator)
    return {
        "estimator": type(estimator).__name__,
        "params": _parameters_to_json(estimator),
        "facts": {
            name: _fact_to_json(name, attributes[name], kind)
            for name, kind in estimator._model_file.facts.items()
        },
    }


def _get_column_names(estimator: FileMixin) -> list[str]:
    return [str(name) for name in vars(estimator).get("feature_names_in_", ())]


def save_meta_estimator(estimator: MetaSaveMixin, path: str | PathLike[str]) -> None:
    """Write a fitted meta-estimator and the fitted estimator inside to one file."""
    name = type(estimator).__name__
    check_is_fitted(estimator, msg="this %(name)s is not fitted yet: call fit before save")
    inner: Any = getattr(estimator, estimator._fitted_attribute, None)
    template: Any = vars(estimator)["estimator"]
    if isinstance(inner, FrozenEstimator):
        inner, template = inner.estimator, template.estimator
    if inner is None:
        raise ValueError(f"this {name} has no {estimator._fitted_attribute} to save: fit it with refit=True")
    if not isinstance(inner, SaveMixin) or type(template) is not type(inner):
        raise TypeError(
            f"{name}.save needs an estimator of boxloop inside, which has a file; got {type(inner).__name__}"
        )
    extra = {
        **_estimator_to_json(estimator),
        "inner": {**_estimator_to_json(inner), "columns": _get_column_names(inner)},
        "template": _parameters_to_json(template),
    }
    tree = Wrapped(_make_saved_tree(inner), estimator._to_tree())
    save_tree(path, tree, columns=_get_column_names(estimator), extra=extra)


def load_model(
    path: str | PathLike[str], kind: type[Estimator], modules: Mapping[str, Any] | None = None
) -> Estimator:
    """Read the file of an estimator of a class."""
    with name_file_in_errors(path):
        return _restore_estimator(read_container(path), kind, modules or {})


def load_registered(path: str | PathLike[str], find: Callable[[str], type[FileMixin] | None]) -> Any:
    """Read the file of an estimator whose class is found by its name; ``find`` gives None for an unknown one."""
    with name_file_in_errors(path):
        container = read_container(path)
        if "estimator" not in container.document["extra"]:
            raise ModelFileError(
                "holds no estimator: a checkpoint, or a part of a model that was saved by itself"
            )
        name = container.document["extra"]["estimator"]
        kind = find(name) if isinstance(name, str) else None
        if kind is None:
            raise ModelFileError(f"holds the estimator {name!r}, which this version of boxloop does not know")
        if issubclass(kind, MetaSaveMixin):
            return _restore_meta(container, kind, find)
        return _restore_estimator(container, kind, {})


def _restore_meta(
    container: Container, kind: type[MetaSaveMixin], find: Callable[[str], type[FileMixin] | None]
) -> Any:
    """A meta-estimator and the estimator inside, each checked as if it had a file of its own."""
    extra, file = container.document["extra"], kind._model_file
    inner_extra, template = extra.get("inner"), extra.get("template")
    if not isinstance(inner_extra, dict) or not is_of_type(inner_extra.get("columns"), list[str]):
        raise ModelFileError(f"holds a {kind.__name__} without the estimator inside")
    name = inner_extra.get("estimator")
    inner_kind = find(name) if isinstance(name, str) else None
    if inner_kind is None or not issubclass(inner_kind, SaveMixin):
        raise ModelFileError(f"holds the estimator {name!r} in a {kind.__name__}, which cannot be read")
    inner_file = inner_kind._model_file
    classes = {**inner_file.classes, **file.classes, Wrapped.__name__: Wrapped}
    saved = restore_tree(container, classes, {**inner_file.constraints, **file.constraints})
    if not isinstance(saved.tree, Wrapped):
        raise ModelFileError(f"{kind.__name__} has a Wrapped tree, the file a {type(saved.tree).__name__}")
    inner, own = saved.tree.inner, saved.tree.own
    parts = []
    for tree, one, columns, about in (
        (inner, inner_file, tuple(inner_extra["columns"]), inner_extra),
        (own, file, saved.columns, extra),
    ):
        if not isinstance(tree, one.model):
            raise ModelFileError(f"a {one.model.__name__} is needed, the file has a {type(tree).__name__}")
        parts.append(Saved(tree, columns, about, validate(tree, one.constraints)))
    fitted = _assemble_estimator(parts[0], inner_kind, {})
    blank = _construct_estimator(inner_kind, _read_parameters({"params": template}, inner_kind), {})
    estimator = _assemble_estimator(parts[1], kind, {}, {"estimator": blank})
    setattr(estimator, kind._fitted_attribute, fitted)
    return estimator


def _restore_estimator(container: Container, kind: type[Estimator], modules: Mapping[str, Any]) -> Estimator:
    name, file, extra = kind.__name__, kind._model_file, container.document["extra"]
    if extra.get("estimator") != name:
        raise ModelFileError(f"holds the estimator {extra.get('estimator')!r}, not {name!r}")
    saved = restore_tree(container, file.classes, file.constraints)
    if not isinstance(saved.tree, file.model):
        raise ModelFileError(f"{name} has a {file.model.__name__}, the file a {type(saved.tree).__name__}")
    return _assemble_estimator(saved, kind, modules)


def _construct_estimator(
    kind: type[Estimator], parameters: Mapping[str, Any], more: Mapping[str, Any]
) -> Any:
    """An estimator that is not fitted, its parameters checked; those in ``more`` that it does not have are left out."""
    make: Any = kind
    known = make._get_param_names()
    try:
        estimator: Any = make(**{**parameters, **{key: value for key, value in more.items() if key in known}})
        estimator._validate_params()
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"parameters that {kind.__name__} refuses: {error}") from error
    return estimator


def _assemble_estimator(
    saved: Saved, kind: type[Estimator], modules: Mapping[str, Any], more: Mapping[str, Any] | None = None
) -> Estimator:
    """A fitted estimator from what a file holds of it; ``more`` are parameters that are not plain values."""
    name, file, extra = kind.__name__, kind._model_file, saved.extra
    parameters, facts = _read_parameters(extra, kind), _read_facts(extra, file.facts)
    columns = _read_columns(saved, facts["n_features_in_"])
    given = {key: module for key, module in modules.items() if module is not None}
    estimator = _construct_estimator(kind, parameters, {**given, **(more or {})})
    estimator.__dict__.update({**facts, **columns})
    tree = saved.tree
    for parameter, place in file.modules.items():
        part = _get_part(tree, place)
        filled = _fill_module(part, parameter, given.get(parameter), name)
        tree = tree if filled is None else _replace_part(tree, place, filled)
    try:
        for check in file.checks:
            fault = check(estimator, saved)
            if fault is not None:
                raise ModelFileError(fault)
        estimator._from_tree(tree)
    except ModelFileError:
        raise
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelFileError(f"its model has no parameters that can be shown: {error}") from error
    return estimator


def _get_part(tree: Any, place: str) -> HoldsModule | None:
    """The part of a tree at a dotted path; None where a class on the way has no such field."""
    for step in place.split("."):
        tree = getattr(tree, step, None)
    found: HoldsModule | None = tree
    return found


def _replace_part(tree: Any, place: str, part: Any) -> Any:
    step, _, rest = place.partition(".")
    inner = _replace_part(getattr(tree, step), rest, part) if rest else part
    return dataclasses.replace(tree, **{step: inner})


def _fill_module(part: HoldsModule | None, parameter: str, module: Any, name: str) -> HoldsModule | None:
    """A part whose network can be called, with the tensors of the file; None where it is as it was."""
    wanted = None if part is None else part.saved_module
    if part is None or wanted is None:
        if module is not None:
            verb = "are" if parameter.endswith("s") else "is"
            raise ModelFileError(f"its {parameter} {verb} boxloop's own: leave out {parameter}=")
        return None
    if module is None:
        raise ModelFileError(
            f"its {parameter} is a module of yours ({wanted}), of which a file holds the tensors alone: "
            f"{name}.load(path, {parameter}=...) puts them into one"
        )
    try:
        return part.with_module(module)
    except ValueError as error:
        raise ModelFileError(f"the {parameter} given is not the one that was saved: {error}") from error


def _parameters_to_json(estimator: Any) -> dict[str, Any]:
    """Parameters of the constructor that are plain values, or sequences of them."""
    given = estimator.get_params(deep=False).items()
    scalars: dict[str, Any] = {
        name: value.item() if isinstance(value, np.generic) else value for name, value in given
    }
    kept: dict[str, Any] = {
        name: value
        for name, value in scalars.items()
        if value is None or isinstance(value, bool | int | float | str)
    }
    for name in SEQUENCES:
        if scalars.get(name) is not None:
            kept[name] = [item.item() if isinstance(item, np.generic) else item for item in scalars[name]]
    if "param_grid" in scalars:
        kept["param_grid"] = _grid_to_json(scalars["param_grid"])
    return kept


def _grid_to_json(value: Any) -> Any:
    """A grid of parameters as JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _grid_to_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple | range):
        return [_grid_to_json(part) for part in value]
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ModelFileError(f"param_grid holds a {type(value).__name__}, which a model file cannot hold")
    return value


def _read_parameters(extra: Mapping[str, Any], kind: type[FileMixin]) -> dict[str, Any]:
    """Parameters as a constructor takes them, on the CPU, where the tensors of a file are."""
    given = extra.get("params")
    if not isinstance(given, dict):
        raise ModelFileError("the parameters are not a JSON object")
    make: Any = kind
    found = {**given, "device": "cpu"} if "device" in make._get_param_names() else dict(given)
    for name, wanted in SEQUENCES.items():
        if found.get(name) is not None:
            if not is_of_type(found[name], wanted):
                raise ModelFileError(f"the parameter {name!r} must be a {describe_type(wanted)}")
            found[name] = tuple(found[name])
    if min(found.get("hidden") or (1,)) < 1:
        raise ModelFileError("the parameter 'hidden' must be a list of positive widths")
    return found


def _read_facts(extra: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Fitted attributes, each of its type."""
    given = extra.get("facts")
    if not isinstance(given, dict):
        raise ModelFileError("the fitted attributes are not a JSON object")
    missing = sorted(set(kinds) - set(given))
    if missing:
        raise ModelFileError(f"the fitted attribute {missing[0]!r} is missing")
    return {name: _fact_from_json(name, given[name], kind) for name, kind in kinds.items()}


def _fact_to_json(name: str, value: Any, kind: Any) -> Any:
    if kind is Labels:
        values = value.tolist()
        if not is_of_type(values, list[bool | int | float | str]):
            raise ModelFileError(
                f"{name!r} holds {value.dtype}: a model file holds labels that are text, numbers or true and false; "
                "give others to fit as text"
            )
        return {"values": values, "dtype": value.dtype.str}
    return encode_tree(value, {}) if dataclasses.is_dataclass(value) else value


def _fact_from_json(name: str, value: Any, kind: Any) -> Any:
    if kind is Labels:
        return _read_labels(name, value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        value = decode_tree(value, {}, {kind.__name__: kind}, name)
    elif isinstance(value, list) and _holds_tuples(kind):
        value = tuple(value)
    if not _is_fact(name, value, kind):
        raise ModelFileError(f"the fitted attribute {name!r} is {value!r:.40}, not {describe_type(kind)}")
    return value


def _holds_tuples(kind: Any) -> bool:
    """Whether a type is a tuple, or one or None."""
    return any(typing.get_origin(one) is tuple for one in (kind, *typing.get_args(kind)))


def _is_fact(name: str, value: Any, kind: Any) -> bool:
    """Of its type; a number by itself is finite, and a count not negative."""
    if not is_of_type(value, kind):
        return False
    if isinstance(value, int | float) and (type(value) is int or name.startswith("n_")) and value < 0:
        return False
    return not isinstance(value, float) or math.isfinite(value) or (name in UNBOUNDED and value == -math.inf)


def _read_labels(name: str, value: Any) -> NDArray[Any]:
    """Labels as they came, of the type that they had."""
    if not isinstance(value, dict) or set(value) != set(Labels._fields):
        raise ModelFileError(f"the fitted attribute {name!r} is not a list of labels with their type")
    labels, dtype = value["values"], value["dtype"]
    if not is_of_type(labels, list[bool | int | float | str]) or not isinstance(dtype, str):
        raise ModelFileError(f"the fitted attribute {name!r} holds {labels!r:.40}, which are no labels")
    try:
        found = np.asarray(labels, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"the labels of {name!r} are not of their type: {error}") from error
    if found.ndim != 1 or len(set(found.tolist())) != len(found) or found.tolist() != labels:
        raise ModelFileError(f"the labels of {name!r}, {labels!r:.80}, must be distinct and of type {dtype}")
    return found


def _read_columns(saved: Saved, n_columns: int) -> dict[str, Any]:
    """The names of the columns of the fit, where it had any, once the model is one of so many columns."""
    width = saved.axes.get("d", n_columns)
    if n_columns != width or n_columns < 1:
        raise ModelFileError(f"n_features_in_ is {n_columns}, but the model has {width} columns")
    if len(saved.columns) not in (0, n_columns):
        raise ModelFileError(f"{len(saved.columns)} names are given for {n_columns} columns")
    if len(set(saved.columns)) != len(saved.columns):
        raise ModelFileError("a name of its columns occurs more than once")
    return {"feature_names_in_": np.asarray(saved.columns, dtype=object)} if saved.columns else {}
