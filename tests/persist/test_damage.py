"""Damaged and hand-made files: each is refused with a reason, whatever was done to it."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor

from boxloop.persist import ModelFileError, load_tree, save_tree
from boxloop.tree import Tree


@dataclass(frozen=True)
class Box(Tree):
    a: Tensor
    b: Tensor | None
    note: Any = "plain"


@dataclass(frozen=True)
class Picky(Tree):
    a: Tensor
    b: Tensor
    note: Any = None

    def __post_init__(self):
        if self.a.numel() != 2:
            raise ValueError("a must have two entries")


def box() -> Box:
    return Box(torch.tensor([1.0, -2.0], dtype=torch.float64), torch.tensor([True, False, True]))


def split(data):
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(header, payload):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + payload


def canonical(document):
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


@pytest.fixture
def path(tmp_path):
    save_tree(tmp_path / "m.boxloop", box(), columns=["x"], extra={"k": 1})
    return tmp_path / "m.boxloop"


def rewrite(path, edit_header=None, edit_document=None, payload=None):
    """Change a file as someone who knows the format would, digest of the document included."""
    header, data = split(path.read_bytes())
    document = json.loads(header["__metadata__"]["boxloop"])
    del document["sha256"]
    if edit_document:
        edit_document(document)
    document["sha256"] = hashlib.sha256(canonical(document).encode()).hexdigest()
    header["__metadata__"]["boxloop"] = canonical(document)
    if edit_header:
        edit_header(header)
    path.write_bytes(join(header, data if payload is None else payload))


def load(path, classes=None):
    return load_tree(path, {"Box": Box} if classes is None else classes)


def same(path):
    try:
        saved = load(path)
    except ModelFileError:
        return None
    tree = saved.tree
    return (
        torch.equal(tree.a, box().a)
        and torch.equal(tree.b, box().b)
        and tree.note == "plain"
        and saved.columns == ("x",)
    )


def test_the_rewriter_itself_is_harmless(path):
    rewrite(path)
    assert same(path)


def test_one_flipped_bit_anywhere_is_found(path):
    whole = path.read_bytes()
    for i in range(len(whole)):
        damaged = bytearray(whole)
        damaged[i] ^= 1 << (i % 8)
        path.write_bytes(damaged)
        assert same(path) in (None, True), f"byte {i} of {len(whole)}"


def test_every_truncation_is_found(path):
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert same(path) is None, f"{length} of {len(whole)} bytes"


def test_trailing_bytes_are_found(path):
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ModelFileError, match="1 bytes follow"):
        load(path)


edits = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=edits, keep=st.floats(0.5, 1.0), repeat=st.integers(0, 2))
def test_random_damage_gives_a_refusal_or_the_same_tree(tmp_path, edits, keep, repeat):
    path = tmp_path / "m.boxloop"
    save_tree(path, box(), columns=["x"])
    data = bytearray(path.read_bytes())
    for place, value in edits:
        data[int(place * len(data))] = value
    del data[max(1, int(keep * len(data))) :]
    path.write_bytes(data + data[:9] * repeat)
    assert same(path) in (None, True)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), framed=st.booleans())
def test_arbitrary_bytes_are_refused(tmp_path, data, framed):
    path = tmp_path / "m.boxloop"
    path.write_bytes(len(data).to_bytes(8, "little") + data if framed else data)
    with pytest.raises(ModelFileError, match=r"m\.boxloop: "):
        load(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-4, 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["tensor", "class", "fields", "a"]), inner)
    ),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(part=st.sampled_from(["format", "version", "tree", "columns", "extra", "tensors"]), value=json_values)
def test_a_document_with_any_part_replaced_is_refused_or_sound(tmp_path, part, value):
    path = tmp_path / "m.boxloop"
    save_tree(path, box(), columns=["x"])
    rewrite(path, edit_document=lambda document: document.update({part: value}))
    try:
        saved = load(path)
    except ModelFileError:
        return
    assert isinstance(saved.tree, Box)
    assert all(isinstance(name, str) for name in saved.columns)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(part=st.sampled_from(["dtype", "shape", "data_offsets"]), value=json_values)
def test_a_header_with_any_claim_replaced_is_refused_or_unchanged(tmp_path, part, value):
    path = tmp_path / "m.boxloop"
    save_tree(path, box(), columns=["x"])
    rewrite(path, edit_header=lambda header: header["a"].update({part: value}))
    assert same(path) in (None, True)


def place(name, begin, end, shape=None):
    def edit(header):
        header[name]["data_offsets"] = [begin, end]
        if shape is not None:
            header[name]["shape"] = shape

    return edit


def shape(value):
    return lambda header: header["a"].update(shape=value)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (place("b", 13, 16), "'b' overlaps"),
        (place("b", 17, 20), "'b' leaves a gap"),
        (place("a", 8, 24), "'a' leaves a gap|'a' overlaps"),
        (place("b", 16, 2**50, [2**50 - 16]), "truncated: the tensor 'b' ends at"),
        (place("b", 19, 16), "'b' .* does not fill"),
        (place("b", -3, 0), "'b' has a malformed"),
        (shape([3]), "'a' of type F64 and shape .* does not fill"),
        (shape([True, 2]), "'a' has a malformed"),
        (shape([2.0]), "'a' has a malformed"),
        (shape([1] * 17 + [2]), "'a' has a malformed"),
        (shape([2, 2**62, 0]), "'a' has an impossible shape"),
        (shape([2, 1]), "'a' is damaged"),
        (lambda header: header["a"].update(dtype="I64"), "'a' is damaged"),
        (lambda header: header["a"].update(dtype="F8_E4M3"), "'a' has the type 'F8_E4M3'"),
        (lambda header: header["a"].update(more=1), "'a' is not described"),
        (
            lambda header: header.update({"c": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}),
            "'c' is in the header",
        ),
        (lambda header: header["__metadata__"].clear(), "not a model file"),
        (lambda header: header.pop("__metadata__"), "not a model file"),
    ],
)
def test_a_header_that_lies_is_refused_by_tensor(path, edit, named):
    rewrite(path, edit_header=edit)
    with pytest.raises(ModelFileError, match=named):
        load(path)


def tree(value):
    return lambda document: document.update(tree=value)


def fields(**values):
    return lambda document: document["tree"]["fields"].update(values)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (tree({"tensor": "a"}), "belongs to no field"),
        (tree(1), "belongs to no field"),
        (fields(note={"tensor": "a"}), "'a' is asked for"),
        (fields(note={"tensor": "zz"}), "'zz' is asked for"),
        (fields(note={"tensor": ["a"]}), "is asked for"),
        (fields(note={"call": "os.system"}), "neither a tensor nor a class"),
        (fields(note={"class": "Popen", "fields": {}}), "needs the class 'Popen'"),
        (fields(note={"class": ["Box"], "fields": {}}), "needs the class"),
        (fields(b=None), "'b' belongs to no field"),
        (fields(a=None), "'a' is None, not Tensor"),
        (fields(__class__="x"), "no fields .'__class__'"),
        (lambda document: document["tree"]["fields"].pop("a"), "lacks .'a'"),
        (lambda document: document.pop("columns"), "parts"),
        (lambda document: document.update(more=1), "parts"),
        (lambda document: document.update(columns=[1]), "column names"),
        (lambda document: document.update(extra=[]), "extras"),
        (lambda document: document.update(tensors=[]), "list its tensors"),
        (lambda document: document["tensors"].pop("b"), "'b' is in the header only"),
        (lambda document: document["tensors"].update(c={}), "'c' is in the document only"),
        (lambda document: document["tensors"]["a"].update(sha256="0" * 64), "'a' is damaged"),
    ],
)
def test_a_document_that_lies_is_refused_with_a_reason(path, edit, named):
    rewrite(path, edit_document=edit)
    with pytest.raises(ModelFileError, match=named):
        load(path)


@pytest.mark.parametrize("depth", [300, 600, 800, 900, 950, 2000, 100_000])
def test_deep_nesting_is_refused_or_read(path, depth):
    header, payload = split(path.read_bytes())
    document = json.loads(header["__metadata__"]["boxloop"])
    del document["sha256"]
    text = canonical(document).replace('"plain"', "[" * depth + "]" * depth)
    digest = hashlib.sha256(text.encode()).hexdigest()
    header["__metadata__"]["boxloop"] = f'{{"sha256":"{digest}",{text[1:]}'
    path.write_bytes(join(header, payload))
    if depth == 300:
        assert load(path).tree.note != ()
    else:
        with pytest.raises(ModelFileError, match=r"nested too deeply|not valid JSON"):
            load(path)


def test_a_class_that_refuses_its_fields_is_a_model_file_error(path):
    rewrite(path, edit_document=lambda d: d["tree"]["fields"].update(a={"tensor": "b"}, b={"tensor": "a"}))
    with pytest.raises(ModelFileError, match="Box refuses its fields: a must have two entries"):
        load(path, {"Box": Picky})


def test_a_changed_document_without_its_digest_is_damaged(path):
    path.write_bytes(path.read_bytes().replace(b"plain", b"plaim"))
    with pytest.raises(ModelFileError, match="document is damaged"):
        load(path)
