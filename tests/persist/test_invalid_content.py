"""Files whose checksums are right and whose content is not: refused by ``load``, or as good as any."""

from __future__ import annotations

import dataclasses
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import boxloop
from boxloop.persist import (
    LOG_SIMPLEX,
    LOWER_FACTOR,
    POSITIVE_DEFINITE,
    SIMPLEX,
    Array,
    Constraints,
    ModelFile,
    ModelFileError,
    get_model_file,
    is_of_type,
    match_axis,
)
from persist.mutations import mutations, seal, split
from persist.saved_models import MODELS, SavedModel, not_finite

TRACES = {"history_", "lower_bound_", "lower_bounds_", "loglike_", "contrasts_", "alphas_"}
"""What a fit went through: numbers that are shown, and that nothing is computed from."""
UNKNOWN = {"standard_errors_", "monte_carlo_errors_", "log_likelihood_"}
"""Of random effects, NaN where they are not known: as they are documented, and nothing is computed from them."""
CONSTANT = {"x_units_"}
"""A column that is constant has an infinite scale: a model of other rows, but a model."""
QUICK = (
    "gaussian-full", "factor", "bayesian-sticks", "linear-two", "effects-poisson", "autoencoder-shared", "classifier",
    "regressor-two", "weights-window swag",
)  # fmt: skip
STRIDE = 37
"""Of the mutations of a file, every so many are tried in the fast tests."""


def faults(case: SavedModel, path: Path, folder: Path, usual: dict[str, set[str]]) -> list[str]:
    """What is wrong with an estimator read from a file; nothing where the file is refused.

    Args:
        case: how it is read and called.
        path: the file.
        folder: for what calls write.
        usual: names of calls, and the places in their answers that are not finite even for the file as it was saved.
    """
    try:
        estimator = case.load(path)
    except ModelFileError as error:
        return [] if str(path) in str(error) else [f"a message that does not name the file: {error}"]
    except Exception as error:  # the fault that is looked for
        return [f"load: {type(error).__name__}: {error}"]
    found = []
    for name, call in case.calls(estimator, folder):
        if name not in usual:
            continue
        try:
            answer = call()
        except ValueError as error:
            if name == "observe":  # a trajectory may leave any state
                break
            if "feature names should match" in str(error):  # a model of columns with other names
                continue
            found.append(f"{name}: {type(error).__name__}: {error}")
        except Exception as error:
            found.append(f"{name}: {type(error).__name__}: {error}")
        else:
            strange = (
                set(not_finite(answer)) - usual[name] if name not in TRACES | CONSTANT | UNKNOWN else set()
            )
            found += [f"{name}: not finite at {place!r}" for place in sorted(strange)]
    return found


def answers(case: SavedModel, path: Path, folder: Path) -> dict[str, set[str]]:
    """The calls that the file as it was saved can answer, and where their answers are not finite."""
    found = {}
    for name, call in case.calls(case.load(path), folder):
        try:
            found[name] = set(not_finite(call()))
        except (ValueError, AttributeError, NotImplementedError):
            continue
    return found


def tried(case: SavedModel, folder: Path, stride: int) -> Iterator[str]:
    """Every file with one thing changed that is neither refused nor right, with what is wrong."""
    path = case.write(folder / "m.boxloop")
    data = path.read_bytes()
    usual = answers(case, path, folder)
    assert {"save"} < set(usual)
    path.write_bytes(seal(*split(data)))
    assert faults(case, path, folder, usual) == [], "the sealing itself must be harmless"
    refused = 0
    for i, (label, make) in enumerate(mutations(data)):
        if i % stride == 0:
            path.write_bytes(make())
            wrong = faults(case, path, folder, usual)
            refused += not wrong
            yield from (f"{label}: {one}" for one in wrong[:1])
    assert refused > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", [case for case in MODELS if case.name in QUICK], ids=repr)
def test_one_change_in_many_is_refused_or_harmless(case: SavedModel, tmp_path: Path) -> None:
    assert list(tried(case, tmp_path, STRIDE)) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", MODELS, ids=repr)
def test_every_single_change_is_refused_or_harmless(case: SavedModel, tmp_path: Path) -> None:
    assert list(tried(case, tmp_path, 1)) == []


def test_the_fuzzer_sees_what_it_looks_for(tmp_path: Path) -> None:
    """A variance of zero in memory, which no file may hold, gives answers that it calls wrong."""
    case = next(case for case in MODELS if case.name == "gaussian-diag")
    path = case.write(tmp_path / "m.boxloop")
    usual = answers(case, path, tmp_path)
    broken = case.load(path)
    object.__setattr__(broken.model_.family, "variance", torch.zeros_like(broken.model_.family.variance))
    spoilt = dataclasses.replace(case, load=lambda path: broken)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert faults(spoilt, path, tmp_path, usual) != []


FILES: dict[str, ModelFile] = {
    name: get_model_file(getattr(boxloop, name))
    for name in boxloop.estimators.__all__
    if hasattr(getattr(boxloop, name), "save")
}
"""What each estimator says that its file holds; posteriors over weights are parts of those of networks."""
PARTS = sorted(
    {(kind, name) for name, file in FILES.items() for kind in file.classes.values()},
    key=lambda pair: (pair[0].__name__, pair[1]),
)


@pytest.mark.parametrize(("kind", "estimator"), PARTS, ids=lambda given: getattr(given, "__name__", given))
def test_every_tensor_that_a_file_may_hold_has_a_constraint(kind: type, estimator: str) -> None:
    hints = typing.get_type_hints(kind)
    tensors = {field.name for field in dataclasses.fields(kind) if Tensor in _parts(hints[field.name])}
    rules = FILES[estimator].constraints.get(kind, Constraints())
    assert tensors <= {name for name, rule in rules.fields.items() if isinstance(rule, Array)} | FREE.get(
        kind.__name__, set()
    )


FREE = {
    "Part": {"parameters"},
    "EnergyModel": {"parameters"},
    "LogPoisson": {"log_rate"},
    "LogitBernoulli": {"logits"},
}
"""Compared as a whole with the network that they are of, or only made while a model is used."""


def _parts(annotation: Any) -> list[Any]:
    if isinstance(annotation, list):  # the arguments of a function
        return []
    return [annotation, *(part for inner in typing.get_args(annotation) for part in _parts(inner))]


@pytest.mark.parametrize(
    ("value", "annotation", "right"),
    [
        (1, int, True), (True, int, False), (2**63, int, False), (1, float, True), ("1", float, False),
        (None, str | None, True), (("a",), tuple[str, ...], True), ((1, "a"), tuple[int, int], False),
        ("exact", typing.Literal["exact"], True), ("other", typing.Literal["exact"], False),
        ({"a": [1.0]}, dict[str, list[float]], True), ({"a": 1.0}, dict[str, list[float]], False),
    ],
)  # fmt: skip
def test_types(value: Any, annotation: Any, right: bool) -> None:
    assert is_of_type(value, annotation) is right


def test_axes_of_one_name_have_one_length() -> None:
    axes: dict[str, Any] = {}
    assert match_axis("k-1", 0, axes)
    assert axes == {"k": 1}
    assert not match_axis("k", 2, axes)
    assert match_axis("d|1", 1, axes)
    assert "d" not in axes
    assert match_axis("3", 3, axes)
    assert not match_axis("3", 4, axes)


def test_values_of_matrices_and_weights() -> None:
    eye = torch.eye(2).double()
    assert POSITIVE_DEFINITE.hold(torch.stack([eye, 1e-200 * eye]))  # whatever its scale
    assert not POSITIVE_DEFINITE.hold(torch.stack([eye, eye - 1.0]))
    assert not POSITIVE_DEFINITE.hold(torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    assert LOWER_FACTOR.hold(eye)
    assert not LOWER_FACTOR.hold(-eye)
    assert not LOWER_FACTOR.hold(eye + 1.0)
    assert SIMPLEX.hold(torch.tensor([[0.25, 0.75]]))
    assert not SIMPLEX.hold(torch.tensor([[0.25, 0.5]]))
    assert LOG_SIMPLEX.hold(torch.tensor([0.0, -torch.inf]))  # a component without weight
    assert not LOG_SIMPLEX.hold(torch.tensor([0.0, torch.nan]))


@pytest.mark.parametrize(("name", "field"), [("gradient", "stream.moment"), ("factor", "turn")])
def test_weights_of_which_no_distribution_comes_are_refused(name: str, field: str, tmp_path: Path) -> None:
    """Each number may stand by itself; the variances made of them are negative, or beyond all numbers."""
    case = next(case for case in MODELS if case.name == f"weights-{name}")
    path = case.write(tmp_path / "m.boxloop")
    document, tensors = split(path.read_bytes())
    changed = tensors[f"estimate.{field}"].clone().contiguous()
    changed.reshape(-1)[1] = 1e8 if name == "gradient" else 1e100
    path.write_bytes(seal(document, {**tensors, f"estimate.{field}": changed}))
    with pytest.raises(ModelFileError, match=r"estimate gives .*distribution"):
        case.load(path)


def _single(document: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every number in single precision, which no fit of these estimators writes."""
    return {
        name: tensor.float() if tensor.dtype == torch.float64 else tensor for name, tensor in tensors.items()
    }


@pytest.mark.parametrize(
    "name",
    ["factor", "ppca", "gaussian-full", "bayesian-sticks", "linear-two", "features-linear", "classifier"],
)
def test_models_of_another_precision_than_their_rows_are_refused(name: str, tmp_path: Path) -> None:
    """All tensors agree, so that only the products with rows failed."""
    case = next(case for case in MODELS if case.name == name)
    path = case.write(tmp_path / "m.boxloop")
    document, tensors = split(path.read_bytes())
    path.write_bytes(seal(document, _single(document, tensors)))
    with pytest.raises(ModelFileError, match="float32"):
        case.load(path)


TOGETHER_TOO_FAR: list[tuple[str, dict[str, float]]] = [
    (
        "bayesian-diag",
        dict.fromkeys(
            ("parameter_posterior.components.strength", "parameter_prior.components.strength"), 1e-174
        ),
    ),
    ("bayesian-diag", {"parameter_posterior.components.dof": 1e-300}),
    ("bayesian-multinomial", {"parameter_posterior.components.concentration": 1e200}),
    ("bayesian-factor", {"coefficients": 1e106}),
    ("linear-two", {"variance": 1e308}),
]
"""Numbers that stand by themselves, and products of them that do not."""


@pytest.mark.parametrize(("name", "fields"), TOGETHER_TOO_FAR)
def test_numbers_whose_products_are_beyond_all_numbers_are_refused(
    name: str, fields: dict[str, float], tmp_path: Path
) -> None:
    case = next(case for case in MODELS if case.name == name)
    path = case.write(tmp_path / "m.boxloop")
    document, tensors = split(path.read_bytes())
    changed = {field: torch.full_like(tensors[field], value) for field, value in fields.items()}
    path.write_bytes(seal(document, {**tensors, **changed}))
    with pytest.raises(ModelFileError, match=r"square|overflow"):
        case.load(path)


@pytest.mark.parametrize("view", ["left", "right"])
def test_canonical_variables_that_depend_on_each_other_are_refused(view: str, tmp_path: Path) -> None:
    """Rotations are in units of the length of what each variable adds to those before it."""
    case = next(case for case in MODELS if case.name == "cca")
    path = case.write(tmp_path / "m.boxloop")
    document, tensors = split(path.read_bytes())
    field = f"model.canonical.{view}"
    first = tensors[field][:, :1]
    for changed in (torch.zeros_like(tensors[field]), torch.cat([first, torch.zeros_like(first)], 1)):
        path.write_bytes(seal(document, {**tensors, field: changed}))
        with pytest.raises(ModelFileError, match=f"{field}.*independent"):
            case.load(path)


def test_a_part_that_is_no_network_is_refused(tmp_path: Path) -> None:
    """It is a class of the file, but not one that maps rows."""
    case = next(case for case in MODELS if case.name == "autoencoder-codes")
    path = case.write(tmp_path / "m.boxloop")
    document, tensors = split(path.read_bytes())
    document["tree"]["fields"]["encoder"]["fields"]["network"] = {
        "class": "CategoricalHead",
        "fields": {"sizes": {"tensor": "sizes"}},
    }
    path.write_bytes(seal(document, {**tensors, "sizes": torch.tensor([3, 3, 3])}))
    with pytest.raises(ModelFileError, match="cannot be called"):
        case.load(path)
