"""ONNX files: initializers and constants come back bit for bit, wherever they lie, and damage gives one line."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.tensors import onnx_file, onnx_uses
from fpsim.analysis.tensors.files import read_file
from fpsim.analysis.tensors.tensor import Tensor, TensorFileError
from tests.analysis.tensors.test_tensors import values

onnx = pytest.importorskip("onnx", reason="files are written with onnx")
VALUES = np.random.default_rng(0).standard_normal((30, 40)).astype(np.float32)
FLOATS = {
    "FLOAT": np.float32, "FLOAT16": np.float16, "DOUBLE": np.float64, "BFLOAT16": ml_dtypes.bfloat16,
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn, "FLOAT8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "FLOAT8E5M2": ml_dtypes.float8_e5m2, "FLOAT8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "FLOAT8E8M0": ml_dtypes.float8_e8m0fnu,
}  # fmt: skip


def raw(name: str, x: Any, kind: str = "FLOAT") -> Any:
    """An initializer of raw bytes."""
    return onnx.helper.make_tensor(name, getattr(onnx.TensorProto, kind), x.shape, x.tobytes(), raw=True)


def graph(initializers: list[Any], nodes: list[Any] | None = None) -> Any:
    nodes = nodes or [onnx.helper.make_node("Identity", ["x"], ["y"])]
    return onnx.helper.make_graph(nodes, "g", [], [], initializers)


def write(path: Path, initializers: list[Any], nodes: list[Any] | None = None, **settings: Any) -> Path:
    """A file of the onnx package."""
    onnx.save(onnx.helper.make_model(graph(initializers, nodes)), path, **settings)
    return path


def tensors_of(path: Path) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in read_file(path)[0]}


@pytest.mark.parametrize(("kind", "dtype"), FLOATS.items(), ids=FLOATS)
def test_every_float_type_comes_back_from_raw_data(tmp_path: Path, kind: str, dtype: Any) -> None:
    x = np.arange(240, dtype=np.uint8).view(dtype).reshape(2, -1)
    tensor = tensors_of(write(tmp_path / "m.onnx", [raw("w", x, kind)]))["w"]
    assert (tensor.shape, tensor.dtype) == (x.shape, np.dtype(dtype).name)
    assert values(tensor).tobytes() == x.tobytes()


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_numbers_that_are_not_raw_come_back(tmp_path: Path, kind: str) -> None:
    x = VALUES.astype(FLOATS[kind])
    with np.errstate(all="ignore"):
        proto = onnx.helper.make_tensor("w", getattr(onnx.TensorProto, kind), x.shape, x.reshape(-1).tolist())
    assert not proto.HasField("raw_data")
    for size in (1, 7, 5000):
        tensor = tensors_of(write(tmp_path / "m.onnx", [proto]))["w"]
        assert values(tensor, size).tobytes() == onnx.numpy_helper.to_array(proto).tobytes()


def test_every_16_bit_pattern_comes_back_from_integers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "BYTES_AT_ONCE", 1001)  # varints that lie across two reads
    proto = onnx.TensorProto(name="w", data_type=onnx.TensorProto.BFLOAT16, dims=[1 << 16], int32_data=range(1 << 16))
    tensor = tensors_of(write(tmp_path / "m.onnx", [proto]))["w"]
    assert values(tensor, 777).view(np.uint16).tolist() == list(range(1 << 16))


def test_external_data_come_back(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"a": VALUES, "b": VALUES.astype(np.float16), "c": VALUES.astype(np.float64)}
    protos = [onnx.numpy_helper.from_array(x, name) for name, x in arrays.items()]
    settings: dict[str, Any] = {"save_as_external_data": True, "location": "weights.data", "size_threshold": 0}
    path = write(tmp_path / "m.onnx", protos, **settings)
    assert path.stat().st_size < 1000
    for name, x in arrays.items():
        assert values(tensors_of(path)[name], 100).tobytes() == x.tobytes()
    (tmp_path / "weights.data").write_bytes((tmp_path / "weights.data").read_bytes()[:-1])
    with pytest.raises(TensorFileError, match=r"damaged, 'c' ends at \d+, its file at \d+"):
        read_file(path)
    (tmp_path / "weights.data").unlink()
    with pytest.raises(TensorFileError, match=r"the external data of 'a' are missing: 'weights\.data'"):
        read_file(path)


def elsewhere(location: str, **entries: str) -> Any:
    """An initializer with external data."""
    proto = onnx.TensorProto(name="w", data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        proto.external_data.add(key=key, value=value)
    return proto


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "", "link", "a/../../secret", "x\0y", "m" * 5000])
def test_external_data_stay_in_the_models_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(16))
    (tmp_path / "model").mkdir()
    if os.name == "posix":
        (tmp_path / "model" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(TensorFileError, match=r"must be a file in the model's folder; got ") as caught:
        read_file(write(tmp_path / "model" / "m.onnx", [elsewhere(location)]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"offset": "-1"}, "the position of 'w'"),
        ({"offset": "9" * 30}, "the position of 'w'"),
        ({"offset": "1"}, "'w' ends at 17, its file at 16"),
        ({"length": "8"}, "does not fit its shape"),
    ],
)
def test_contradicting_places_of_external_data_are_refused(tmp_path: Path, entries: dict[str, str], said: str) -> None:
    (tmp_path / "d").write_bytes(bytes(16))
    with pytest.raises(TensorFileError, match=said):
        read_file(write(tmp_path / "m.onnx", [elsewhere("d", **entries)]))


def test_constants_and_subgraphs_are_found_and_integers_are_left_out(tmp_path: Path) -> None:
    constant = onnx.helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(VALUES[0], "inner"))
    branch = graph([raw("branch", VALUES[1])], [constant])
    nodes = [
        onnx.helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=graph([raw("other", VALUES[2])]))
    ]
    integers = [
        onnx.numpy_helper.from_array(np.arange(5), "ids"),
        onnx.numpy_helper.from_array(np.arange(2, dtype=np.int8), "q"),
        onnx.helper.make_tensor("texts", onnx.TensorProto.STRING, [1], [b"one"]),
    ]  # fmt: skip
    path = write(tmp_path / "m.onnx", [raw("w", VALUES), *integers], nodes)
    tensors, notes = read_file(path)
    assert {t.name: t.shape for t in tensors} == {"c": (40,), "branch": (40,), "other": (40,), "w": (30, 40)}
    assert sorted(notes) == [
        f"{path}: ids left out, it holds int64 and not floats",
        f"{path}: q left out, it holds int8 and not floats; quantised weights are integers with separate scales",
        f"{path}: texts left out, it holds texts and not floats",
    ]


def test_scalars_and_empty_tensors_come_back(tmp_path: Path) -> None:
    protos = [raw("one", np.float32(3).reshape(())), onnx.TensorProto(name="none", data_type=1, dims=[0, 5])]
    tensors = tensors_of(write(tmp_path / "m.onnx", protos))
    assert (tensors["one"].shape, values(tensors["one"]).tolist()) == ((), [3.0])
    assert (tensors["none"].shape, list(tensors["none"].chunks())) == ((0, 5), [])


def test_sparse_initializers_are_counted_in_a_note(tmp_path: Path) -> None:
    model = onnx.helper.make_model(graph([raw("w", VALUES)]))
    model.graph.sparse_initializer.add().values.CopyFrom(raw("s", VALUES))
    onnx.save(model, tmp_path / "m.onnx")
    assert read_file(tmp_path / "m.onnx")[1] == [f"{tmp_path / 'm.onnx'}: 1 sparse initializer left out"]


@pytest.mark.parametrize(
    ("proto", "said"),
    [
        ({"dims": [4], "raw_data": bytes(8)}, "the size of 'w' does not fit its shape"),
        ({"dims": [4]}, "'w' has 0 values instead of one"),
        ({"dims": [-4], "raw_data": bytes(8)}, "shape of 'w'"),
        ({"dims": [1 << 40, 1 << 40], "raw_data": bytes(8)}, "shape of 'w'"),
        ({"dims": [1] * 65, "raw_data": bytes(4)}, "shape of 'w'"),
        ({"dims": [2], "double_data": [1, 2]}, "do not have the dtype float32"),
        ({"dims": [2], "data_type": 10, "int32_data": [1]}, "the size of 'w' does not fit its shape"),
        ({"dims": [2], "float_data": [1, 2], "raw_data": bytes(8)}, "'w' has 2 values instead of one"),
    ],
)
def test_contradicting_tensors_are_refused(tmp_path: Path, proto: dict[str, Any], said: str) -> None:
    path = write(tmp_path / "m.onnx", [onnx.TensorProto(**{"name": "w", "data_type": 1, **proto})])
    with pytest.raises(TensorFileError, match=said):
        read_file(path)


@pytest.mark.parametrize("value", [1 << 16, -1, 1 << 30])
def test_patterns_that_are_too_wide_are_refused(tmp_path: Path, value: int) -> None:
    proto = onnx.TensorProto(name="w", data_type=10, dims=[2], int32_data=[1, value])
    with pytest.raises(TensorFileError, match="a float16 of more than 16 bits"):
        values(tensors_of(write(tmp_path / "m.onnx", [proto]))["w"])


def small(path: Path) -> bytes:
    protos = [raw("w", VALUES[:2, :3]), onnx.helper.make_tensor("h", onnx.TensorProto.FLOAT16, [3], [1.0, 2.0, 3.0])]
    constant = onnx.helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(VALUES[0, :3]))
    return write(path, protos, [constant]).read_bytes()


def test_every_cut_and_every_flipped_byte_reads_or_gives_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    good = small(path)
    bad = [good[:end] for end in range(len(good))]
    bad += [good[:i] + bytes([good[i] ^ flip]) + good[i + 1 :] for i in range(len(good)) for flip in (0x01, 0x80, 0xFF)]
    said = []
    for data in bad:
        path.write_bytes(data)
        try:
            for tensor in read_file(path)[0]:
                list(tensor.chunks(5))
        except TensorFileError as problem:
            said.append(str(problem))
    assert len(said) > len(good)
    assert all(line.startswith(f"{path}: ") and "\n" not in line for line in said)


@pytest.mark.parametrize("data", [b"", bytes(50), b"not an ONNX model at all", b"\xff" * 500, b"\x3a\x00" * 2])
def test_garbage_gives_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(TensorFileError, match=r"empty file|damaged or not an ONNX model") as caught:
        read_file(tmp_path / "m.onnx")
    assert "\n" not in str(caught.value)


def wrapped(number: int, data: bytes) -> bytes:
    """A field of bytes."""
    length, text = len(data), bytearray([number << 3 | 2])
    while length > 127:
        text.append(length & 127 | 128)
        length >>= 7
    return bytes([*text, length]) + data


def test_graphs_that_nest_for_ever_are_refused(tmp_path: Path) -> None:
    data = b""
    for _ in range(200):
        data = wrapped(1, wrapped(5, wrapped(6, data)))  # graph.node.attribute.g
    (tmp_path / "m.onnx").write_bytes(wrapped(7, data))
    with pytest.raises(TensorFileError, match="graphs nest deeper than 64 levels"):
        read_file(tmp_path / "m.onnx")


def test_models_of_very_many_fields_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "FIELDS_LIMIT", 1000)
    (tmp_path / "m.onnx").write_bytes(wrapped(7, bytes([18, 0]) * 2000))
    with pytest.raises(TensorFileError, match="more than 1,000 fields"):
        read_file(tmp_path / "m.onnx")


def test_tensors_that_share_a_file_too_often_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(bytes(160_000))
    protos = []
    for i in range(100):
        proto = elsewhere("d")
        proto.name, proto.dims[0] = f"w{i}", 40_000
        protos.append(proto)
    with pytest.raises(TensorFileError, match="more than 64 times as large as its files"):
        read_file(write(tmp_path / "m.onnx", protos))
    assert len(tensors_of(write(tmp_path / "m.onnx", protos[:50]))) == 50


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = write(tmp_path / f"{count}.onnx", [raw("w", np.ones(count, np.float32))])
        tracemalloc.start()
        total = sum(float(chunk.sum()) for chunk in tensors_of(path)["w"].chunks(10_000))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total == count
        return size

    peak(20_000)
    assert peak(2_000_000) < peak(100_000) + 200_000


def test_the_study_takes_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", [raw("w", VALUES), raw("v", VALUES[:3])])
    report = fp.analysis.study(path, formats="e4m3", roundings="nearest_even", scalings=None)
    assert [row.tensor for row in report.recommendations] == ["w", "v"]


def test_roles_are_what_the_graph_uses_tensors_for(tmp_path: Path) -> None:
    """A dense layer behind a view, a convolution with a batch norm, an embedding, a constant, nothing at all."""
    shapes = {
        "kernel": (8, 3, 3, 3), "b": (8,), "gain": (8,), "shift": (8,), "m": (8,), "v": (8,), "dense": (16, 8),
        "table": (32, 8), "grid": (4, 4), "alone.weight": (4, 4), "one": (1,),
    }  # fmt: skip
    rng = np.random.default_rng(0)
    protos = [onnx.numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    make = onnx.helper.make_node
    nodes = [
        make("Conv", ["x", "kernel", "b"], ["c"]),
        make("BatchNormalization", ["c", "gain", "shift", "m", "v"], ["d"]),
        make("Identity", ["dense"], ["dense_view"]),
        make("Transpose", ["dense_view"], ["dense_t"]),
        make("MatMul", ["d", "dense_t"], ["e"]),
        make("Gather", ["table", "ids"], ["f"]),
        make("Pow", ["e", "grid"], ["g"]),
        make("Mul", ["g", "one"], ["h"]),
    ]
    path = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], [], protos)), path)
    tensors, _ = read_file(path)
    assert {t.name: t.role for t in tensors} == {
        "kernel": "matrix", "b": "bias", "gain": "norm", "shift": "bias", "m": "statistics", "v": "statistics",
        "dense": "matrix", "table": "embedding", "grid": "statistics", "alone.weight": "", "one": "scalar",
    }  # fmt: skip
    report = fp.analysis.study(path, formats="e4m3", scalings="amax", roundings="nearest_even")
    assert {row.tensor for row in report.recommendations if row.met} == {"kernel", "dense", "alone.weight"}


def used(nodes: list[Any], **shapes: tuple[int, ...]) -> dict[str, tuple[str, bool | None]]:
    """Roles of tensors in a model of some operators, and whether their outputs are last."""
    graph = [onnx_uses.Node(kind, inputs, outputs, settings) for kind, inputs, outputs, settings in nodes]
    return {name: (use.role, use.outputs_last) for name, use in onnx_uses.uses_of(graph, shapes).items()}


def test_weights_are_followed_to_their_products() -> None:
    nodes: list[Any] = [
        ("Slice", ["w", "begin", "end"], ["s"], {}),
        ("Concat", ["a", "b"], ["ab"], {"axis": [0]}),
        ("Split", ["c", "sizes"], ["c1", "c2"], {}),
        ("DequantizeLinear", ["q", "scale", "zero"], ["dq"], {}),
        ("MatMul", ["x", "s"], ["y1"], {}),
        ("Gemm", ["x", "ab", "g"], ["y2"], {"transB": [1]}),
        ("Transpose", ["c2"], ["ct"], {"perm": [1, 0]}),
        ("MatMul", ["x", "ct"], ["y3"], {}),
        ("MatMul", ["x", "dq"], ["y4"], {}),
        ("Einsum", ["x", "e"], ["y5"], {}),
        ("Concat", ["x", "token"], ["y6"], {}),
        ("MatMul", ["y6", "a"], ["y7"], {}),
        ("Gather", ["table", "ids"], ["y8"], {}),
        ("Transpose", ["table"], ["tt"], {}),
        ("MatMul", ["x", "tt"], ["y9"], {}),
        ("Attention", ["x", "qkv", "qkv_bias"], ["y10"], {}),
        ("Gemm", ["m", "x"], ["y11"], {"transA": [1]}),
    ]
    matrices, vectors = ("w", "a", "b", "c", "q", "e", "token", "table", "qkv", "m"), ("scale", "qkv_bias", "g")
    shapes: dict[str, tuple[int, ...]] = {**dict.fromkeys(matrices, (64, 32)), **dict.fromkeys(vectors, (64,))}
    assert used(nodes, **shapes) == {
        "w": ("matrix", True), "a": ("matrix", False), "b": ("matrix", False), "g": ("bias", None),
        "c": ("matrix", False), "q": ("matrix", True), "scale": ("statistics", None), "e": ("matrix", None),
        "token": ("statistics", None), "table": ("matrix", False), "qkv": ("matrix", True), "qkv_bias": ("bias", None),
        "m": ("matrix", True),
    }  # fmt: skip


def test_products_of_many_tensors_in_one_are_no_weight() -> None:
    names = [f"t{i}" for i in range(300)]
    nodes: list[Any] = [("Concat", names, ["all"], {}), ("MatMul", ["x", "all"], ["y"], {})]
    assert set(used(nodes, **dict.fromkeys(names, (4, 4))).values()) == {("statistics", None)}


def test_a_study_of_a_model_has_the_rows_of_its_products(tmp_path: Path) -> None:
    weight = np.ascontiguousarray(VALUES * np.exp2(np.arange(30, dtype=np.float32))[:, None])
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["y"]),
        onnx.helper.make_node("Gemm", ["y", "v"], ["z"], transB=1),
    ]
    path = write(tmp_path / "m.onnx", [raw("w", weight), raw("v", weight)], nodes)
    first, second = read_file(path)[0]
    assert (first.outputs_last, second.outputs_last) == (True, False)
    report = fp.analysis.study(path, formats=["int8"], scalings=["ROW"])
    got = {row.tensor: row.report.sqnr_db for row in report.errors}
    usual = fp.analysis.study({"w": weight.T.copy(), "v": weight}, formats=["int8"], scalings=["ROW"])
    assert got == {row.tensor: row.report.sqnr_db for row in usual.errors}
    assert got["w"] != got["v"]
