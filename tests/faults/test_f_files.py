"""Faults 40 to 43: files that are damaged, foreign, hostile or newer than this library."""

import json
import os
import pickle
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import joblib
import pytest
import torch
from torch import Tensor

from boxloop.average import Running
from boxloop.persist import ModelFileError, load_tree, save_tree
from boxloop.tree import Tree


@dataclass(frozen=True)
class Point(Tree):
    x: Tensor


@dataclass(frozen=True)
class Walk(Tree):
    point: Point
    mean: Running[Point]
    stream: Tensor


CLASSES = {"Point": Point, "Walk": Walk, "Running": Running}


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.boxloop"
    point = Point(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))
    save_tree(path, Walk(point, Running(point * 2.0, 3), torch.Generator().manual_seed(1).get_state()))
    return path


def header_end(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")


def with_header(data: bytes, header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data[header_end(data) :]


def test_f40_truncated(model):
    model.write_bytes(model.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match=r"m\.boxloop: truncated: the tensor 'stream'"):
        load_tree(model, CLASSES)


@pytest.mark.parametrize("name", ["point.x", "mean.value.x", "stream"])
def test_f40_flipped_bit(model, name):
    data = bytearray(model.read_bytes())
    place = json.loads(data[8 : header_end(data)])[name]["data_offsets"]
    data[header_end(data) + place[1] - 1] ^= 16
    model.write_bytes(data)
    with pytest.raises(ModelFileError, match=rf"m\.boxloop: the tensor '{name}' is damaged"):
        load_tree(model, CLASSES)


def test_f40_duplicate_key(model):
    data = model.read_bytes()
    header = data[8 : header_end(data)].rstrip()
    entry = json.dumps(json.loads(header)["point.x"]).encode()
    model.write_bytes(with_header(data, header[:-1] + b',"point.x":' + entry + b"}"))
    with pytest.raises(ModelFileError, match=r"m\.boxloop: the key 'point\.x' occurs twice"):
        load_tree(model, CLASSES)


class Bomb:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def foreign_writers():
    yield from ((f"pickle {n}", lambda o, p, n=n: p.write_bytes(pickle.dumps(o, n))) for n in range(6))
    yield "torch", torch.save
    yield "old torch", lambda o, p: torch.save(o, p, _use_new_zipfile_serialization=False)
    yield "joblib", joblib.dump
    yield from (
        (f"joblib {how}", lambda o, p, how=how: joblib.dump(o, p, (how, 3)))
        for how in ("zlib", "gzip", "bz2")
    )


@pytest.mark.parametrize("write", [pytest.param(write, id=name) for name, write in foreign_writers()])
def test_f41_pickle_torch_joblib_renamed(tmp_path, write):
    path = tmp_path / "m.boxloop"
    write(Bomb(tmp_path / "ran"), path)
    with pytest.raises(ModelFileError, match=r"m\.boxloop: not a model file"):
        load_tree(path, CLASSES)
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Bomb(tmp_path / "ran")))
    assert (tmp_path / "ran").exists(), "the bomb itself must work"


def test_f42_links_folders_and_pipes(tmp_path, model):
    (tmp_path / "link").symlink_to(model)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        with pytest.raises(ModelFileError, match=f"{name}: not a regular file"):
            load_tree(tmp_path / name, CLASSES)


@pytest.mark.parametrize("name", ["../point.x", "/etc/passwd", "a\\b", "a..b", ".x", "x.", "", "C:x", "x\0"])
def test_f42_path_tricks(model, name):
    data = model.read_bytes()
    header = data[8 : header_end(data)].replace(b'"point.x":', json.dumps(name).encode() + b":")
    model.write_bytes(with_header(data, header))
    with pytest.raises(ModelFileError, match="is not a name of a tensor"):
        load_tree(model, CLASSES)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 17 * 2**20])
def test_f42_oversized_header_is_refused_before_allocation(tmp_path, length):
    path = tmp_path / "m.boxloop"
    path.write_bytes(length.to_bytes(8, "little") + b"{")
    os.truncate(path, 20 * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match="over the limit"):
            load_tree(path, CLASSES)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_f42_oversized_tensor_is_refused_before_allocation(model):
    data = model.read_bytes()
    header = json.loads(data[8 : header_end(data)])
    header["stream"] = {"dtype": "U8", "shape": [2**45], "data_offsets": [48, 48 + 2**45]}
    model.write_bytes(with_header(data, json.dumps(header).encode()))
    with pytest.raises(ModelFileError, match="truncated: the tensor 'stream'"):
        load_tree(model, CLASSES)


def test_f43_newer_format(model):
    data = model.read_bytes()
    header = data[8 : header_end(data)].replace(rb"\"format\":1", rb"\"format\":2")
    model.write_bytes(with_header(data, header))
    with pytest.raises(
        ModelFileError, match=r"format 2, written by boxloop .* up to format 1: upgrade boxloop"
    ):
        load_tree(model, CLASSES)


def test_f43_unknown_class(model):
    with pytest.raises(
        ModelFileError, match=r"written by boxloop .* needs the class 'Point', but only Running, Walk"
    ):
        load_tree(model, {"Walk": Walk, "Running": Running})
