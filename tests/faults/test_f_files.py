"""Faults 40 to 43 and 53: model files that are damaged, foreign, hostile, newer than this library, or lies."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import pytest
import torch

import boxloop
from boxloop.persist import ModelFileError
from cli.calls import call, clusters, table
from persist.mutations import Document, Tensors, mutations, seal, split
from persist.saved_models import MODELS, SavedModel

NAMES = (
    "gaussian-full", "bayesian-factor", "linear", "energy", "autoencoder", "features-linear", "generator",
    "regressor", "weights-swag",
)  # fmt: skip
CASES = [case for case in MODELS if case.name in NAMES]
every_kind = pytest.mark.parametrize("case", CASES, ids=repr)
COMMANDS = ("show", "score", "criticise")
pytestmark = pytest.mark.filterwarnings("ignore::boxloop.FitWarning")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A mixture that was saved by ``save``."""
    return next(case for case in MODELS if case.name == "gaussian-full").write(tmp_path / "m.boxloop")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return table(tmp_path_factory.mktemp("rows") / "rows.csv", clusters(30))


def assert_refused(path: Path, rows: Path, words: str) -> None:
    """Every command that takes a model ends with one message that names the file, and no traceback."""
    for command in COMMANDS:
        ended = call(command, path, *([] if command == "show" else [rows]))
        assert ended.exit_code == 1, (command, ended.output)
        assert ended.stdout == ""
        assert isinstance(ended.exception, SystemExit)
        assert ended.stderr.startswith("Error: ")
        assert ended.stderr.count("\n") == 1
        assert str(path) in ended.stderr
        assert words in ended.stderr


def header_end(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")


def header_of(data: bytes) -> Document:
    return json.loads(data[8 : header_end(data)])


def with_header(data: bytes, header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data[header_end(data) :]


def tensor_names(data: bytes) -> list[str]:
    """Of those that hold anything."""
    header = header_of(data)
    return [n for n in header if n != "__metadata__" and len({*header[n]["data_offsets"]}) == 2]


@every_kind
def test_f40_truncated(case: SavedModel, tmp_path: Path) -> None:
    path = case.write(tmp_path / "m.boxloop")
    whole = path.read_bytes()
    for length in (0, 7, header_end(whole) - 1, header_end(whole), len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError, match=r"m\.boxloop: (not a model file|.*truncated|.*header)"):
            case.load(path)


@every_kind
def test_f40_flipped_bit(case: SavedModel, tmp_path: Path) -> None:
    path = case.write(tmp_path / "m.boxloop")
    whole = path.read_bytes()
    for name in tensor_names(whole):
        data, place = bytearray(whole), header_of(whole)[name]["data_offsets"]
        data[header_end(data) + place[1] - 1] ^= 16
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match=rf"m\.boxloop: the tensor '{name}' is damaged"):
            case.load(path)


@every_kind
def test_f40_duplicate_key(case: SavedModel, tmp_path: Path) -> None:
    path = case.write(tmp_path / "m.boxloop")
    data = path.read_bytes()
    name = tensor_names(data)[0]
    header = data[8 : header_end(data)].rstrip()
    entry = json.dumps({name: header_of(data)[name]}).encode()[1:-1]
    path.write_bytes(with_header(data, header[:-1] + b"," + entry + b"}"))
    with pytest.raises(ModelFileError, match=rf"m\.boxloop: the key '{name}' occurs twice"):
        case.load(path)


def test_f40_commands(model: Path, rows: Path) -> None:
    model.write_bytes(model.read_bytes()[:-1])
    assert_refused(model, rows, "truncated")


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


def foreign_writers() -> Iterator[tuple[str, Callable[[Any, Path], Any]]]:
    yield from ((f"pickle {n}", lambda o, p, n=n: p.write_bytes(pickle.dumps(o, n))) for n in range(6))
    yield "torch", torch.save
    yield "old torch", lambda o, p: torch.save(o, p, _use_new_zipfile_serialization=False)
    yield "joblib", joblib.dump
    yield from (
        (f"joblib {how}", lambda o, p, how=how: joblib.dump(o, p, (how, 3)))
        for how in ("zlib", "gzip", "bz2")
    )


@pytest.mark.parametrize("write", [pytest.param(write, id=name) for name, write in foreign_writers()])
def test_f41_pickle_torch_joblib_renamed(tmp_path: Path, rows: Path, write: Callable[..., Any]) -> None:
    path = tmp_path / "m.boxloop"
    write(Bomb(tmp_path / "ran"), path)
    for case in CASES:
        with pytest.raises(ModelFileError, match=r"m\.boxloop: not a model file"):
            case.load(path)
    assert_refused(path, rows, "not a model file")
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Bomb(tmp_path / "ran")))
    assert (tmp_path / "ran").exists(), "the bomb itself must work"


def test_f42_links_folders_and_pipes(tmp_path: Path, model: Path, rows: Path) -> None:
    (tmp_path / "link").symlink_to(model)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        with pytest.raises(ModelFileError, match=f"{name}: not a regular file"):
            boxloop.load(tmp_path / name)
    assert_refused(tmp_path / "link", rows, "not a regular file")


@pytest.mark.parametrize("name", ["../point.x", "/etc/passwd", "a\\b", "a..b", ".x", "x.", "", "C:x", "x\0"])
def test_f42_path_tricks(model: Path, name: str) -> None:
    data = model.read_bytes()
    header = data[8 : header_end(data)].replace(b'"log_weight":', json.dumps(name).encode() + b":", 1)
    model.write_bytes(with_header(data, header))
    with pytest.raises(ModelFileError, match="is not a name of a tensor"):
        boxloop.load(model)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 17 * 2**20])
def test_f42_oversized_header_is_refused_before_allocation(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.boxloop"
    path.write_bytes(length.to_bytes(8, "little") + b"{")
    os.truncate(path, 20 * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match="over the limit"):
            boxloop.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_f42_oversized_tensor_is_refused_before_allocation(model: Path) -> None:
    data = model.read_bytes()
    header = header_of(data)
    last = max(tensor_names(data), key=lambda name: header[name]["data_offsets"])
    begin = header[last]["data_offsets"][0]
    header[last] = {"dtype": "U8", "shape": [2**45], "data_offsets": [begin, begin + 2**45]}
    model.write_bytes(with_header(data, json.dumps(header).encode()))
    with pytest.raises(ModelFileError, match=f"truncated: the tensor '{last}'"):
        boxloop.load(model)


def test_f42_layers_of_impossible_width_are_refused_before_allocation(tmp_path: Path) -> None:
    """A width that only the parameters name, of a network that would be made before its tensors are looked at."""
    case = next(case for case in MODELS if case.name == "regressor")
    path = case.write(tmp_path / "m.boxloop")
    document, tensors = split(path.read_bytes())
    document["extra"]["params"]["hidden"] = [10**12]
    path.write_bytes(seal(document, tensors))
    with pytest.raises(ModelFileError, match=r"layers of .* columns have .* parameters, the file"):
        case.load(path)


@every_kind
@pytest.mark.parametrize(
    ("number", "remedy"),
    [(3, "upgrade boxloop"), (1, "fit again with this version, or read it with that one")],
)
def test_f43_other_format(case: SavedModel, number: int, remedy: str, tmp_path: Path) -> None:
    path = case.write(tmp_path / "m.boxloop")
    data = path.read_bytes()
    header = data[8 : header_end(data)].replace(rb"\"format\":2", rb"\"format\":%d" % number)
    path.write_bytes(with_header(data, header))
    wanted = rf"format {number}, written by boxloop .* which reads format 2: {remedy}"
    with pytest.raises(ModelFileError, match=wanted):
        case.load(path)


def edited(path: Path, edit: Callable[[Document, Tensors], Any]) -> Path:
    """A file that someone changed who knows its checksums."""
    document, tensors = split(path.read_bytes())
    edit(document, tensors)
    path.write_bytes(seal(document, tensors))
    return path


def test_f43_unknown_class_and_estimator(model: Path, rows: Path) -> None:
    edited(model, lambda document, tensors: document["tree"].update({"class": "LaterModel"}))
    with pytest.raises(ModelFileError, match=r"written by boxloop .* needs the class 'LaterModel', but only"):
        boxloop.load(model)
    assert_refused(model, rows, "LaterModel")


def test_f43_unknown_estimator(model: Path, rows: Path) -> None:
    edited(model, lambda document, tensors: document["extra"].update(estimator="LaterEstimator"))
    with pytest.raises(ModelFileError, match="'LaterEstimator', which this version of boxloop does not know"):
        boxloop.load(model)
    assert_refused(model, rows, "LaterEstimator")


def _tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Document, Tensors], Any]:
    return lambda document, tensors: tensors.update({name: change(tensors[name])})


F53: list[tuple[str, Callable[[Document, Tensors], Any], str]] = [
    ("gaussian-diag", _tensor("family.variance", torch.neg), "'family.variance' must be finite and positive"),
    ("gaussian-full", _tensor("family.mean", lambda x: x * torch.nan), "'family.mean' must be finite"),
    (
        "gaussian-full",
        _tensor("family.mean", lambda x: x[:1]),
        r"'family.mean' has|'family.factor' has shape",
    ),
    ("gaussian-full", _tensor("log_weight", lambda x: x + 1.0), "'log_weight' must be logarithms of weights"),
    ("gaussian-full", _tensor("family.factor", lambda x: x.mT), "'family.factor' must be lower triangular"),
    (
        "bayesian-full",
        _tensor("parameter_posterior.components.scale", torch.neg),
        "'parameter_posterior.components.scale' must be symmetric",
    ),
    (
        "multinomial",
        _tensor("family.probability", lambda x: 2.0 * x),
        "'family.probability' must be positive, with",
    ),
    ("autoencoder", _tensor("decoder.parameters.0", lambda x: x.mT), "'decoder': parameters have the shapes"),
    (
        "weights-swag",
        _tensor("estimate.square", lambda x: x - 1.0),
        "'estimate.square' must be at least 0, with a finite square",
    ),
    (
        "gaussian-full",
        lambda document, tensors: document["extra"]["params"].update(covariance_type="diagonal"),
        "parameters that GaussianMixture refuses: The 'covariance_type' parameter",
    ),
    (
        "gaussian-full",
        lambda document, tensors: document["extra"]["params"].update(covariance_type="diag"),
        "its components are FullGaussian, not DiagonalGaussian",
    ),
    (
        "gaussian-full",
        lambda document, tensors: document["extra"]["facts"].update(n_iter_="many"),
        "the fitted attribute 'n_iter_' is 'many', not int",
    ),
    (
        "regressor",
        lambda document, tensors: document["tree"]["fields"].update(temperature=-1.0),
        "'temperature' is -1.0: it must be above 0.0",
    ),
]
"""A kind of file, what is changed in it, and what the message says."""


@pytest.mark.parametrize(("name", "edit", "message"), F53, ids=[message[:40] for *_, message in F53])
def test_f53_invalid_content_under_valid_checksums(
    name: str, edit: Callable[..., Any], message: str, tmp_path: Path
) -> None:
    case = next(case for case in MODELS if case.name == name)
    path = edited(case.write(tmp_path / "m.boxloop"), edit)
    with pytest.raises(ModelFileError, match=message) as caught:
        case.load(path)
    assert str(path) in str(caught.value)


def test_f53_commands(model: Path, rows: Path) -> None:
    edited(model, _tensor("family.mean", lambda x: x * torch.nan))
    assert_refused(model, rows, "the field 'family.mean' must be finite")


@every_kind
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_f53_show_and_score_end_with_one_message_or_well(
    case: SavedModel, tmp_path: Path, rows: Path
) -> None:
    """Files with one thing changed, every eleventh: the commands succeed, or say why not in one line."""
    path = case.write(tmp_path / "m.boxloop")
    for _, make in list(mutations(path.read_bytes()))[::11]:
        path.write_bytes(make())
        for command in ("show", "score"):
            ended = call(command, path, *([] if command == "show" else [rows]))
            assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exc_info
            assert ended.exit_code in (0, 1)
            assert "Traceback" not in ended.output
