"""Tensors of .onnx files: initializers and constants, read in place from the model or its external files.

A model is a protobuf. It is read by the wire format (protobuf.dev, "Encoding") with the field numbers of onnx.proto,
because a parser would first copy the whole file, and expand a malicious one to many times its size. Only names, shapes
and positions are kept, so that memory does not grow with the elements, and the onnx package is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import ml_dtypes
import numpy as np

from fpsim.analysis.tensors.onnx_uses import Node, uses_of
from fpsim.analysis.tensors.operand import pieces_of
from fpsim.analysis.tensors.reading import BYTES_LIMIT, Found, reader
from fpsim.analysis.tensors.roles import role_that_stays
from fpsim.analysis.tensors.tensor import Tensor, TensorFileError
from fpsim.arrays import Array
from fpsim.display.wording import plural
from fpsim.errors import shown

FIELDS_LIMIT = 20_000_000  # fields of a file: more than a model has, and less than a minute of work
DEPTH_LIMIT = 64  # levels of graphs in nodes in graphs
TEXT_LIMIT = 65_535  # bytes of a name or path
DIMENSIONS_LIMIT = 64
SHARED_LIMIT = 64  # limit of the bytes of all tensors / bytes of the files: tensors may share some data
BYTES_AT_ONCE = 1 << 16  # bytes of varints that are read at a time
VARINT, EIGHT, SPAN, FOUR = 0, 1, 2, 5  # wire types

MODEL_GRAPH, MODEL_FUNCTION, FUNCTION_NODE = 7, 25, 7  # field numbers of onnx.proto, as those below
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_SPARSE = 1, 5, 15
NODE_INPUT, NODE_OUTPUT, NODE_KIND, NODE_ATTRIBUTE = 1, 2, 4, 5
ATTRIBUTE_NAME, ATTRIBUTE_INTEGER, ATTRIBUTE_INTEGERS = 1, 3, 8
ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_TENSORS, ATTRIBUTE_GRAPHS = 5, 6, 10, 11
DIMS, DATA_TYPE, SEGMENT, FLOATS, INTEGERS, NAME, RAW, DOUBLES, EXTERNAL, LOCATION = 1, 2, 3, 4, 5, 8, 9, 10, 13, 14
KEY, VALUE = 1, 2  # of an entry about external data

# TensorProto.DataType -> dtype.
DTYPES: dict[int, Any] = {
    1: np.float32, 10: np.float16, 11: np.float64, 16: ml_dtypes.bfloat16, 17: ml_dtypes.float8_e4m3fn,
    18: ml_dtypes.float8_e4m3fnuz, 19: ml_dtypes.float8_e5m2, 20: ml_dtypes.float8_e5m2fnuz,
    24: ml_dtypes.float8_e8m0fnu,
}  # fmt: skip
OTHERS = {
    2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "texts", 9: "bool", 12: "uint32",
    13: "uint64", 14: "complex64", 15: "complex128", 21: "uint4", 22: "int4", 23: "float4_e2m1fn", 25: "uint2",
    26: "int2",
}  # fmt: skip
QUANTISED = ("uint8", "int8", "uint4", "int4", "uint2", "int2")


class _Span(NamedTuple):
    """A range of bytes in the file, from `begin` to before `end`."""

    begin: int
    end: int


@dataclass
class _Proto:
    """A TensorProto message: the name and shape of a tensor, and where its elements are stored.

    kind: ONNX's number of the elements' type. data: field number -> spans of bytes with elements. is_external: whether
    the elements are in another file, which `external`, key -> text, describes. is_segment: whether the message holds
    only a part of a tensor.
    """

    name: str = ""
    shape: list[int] = field(default_factory=list)
    kind: int = 0
    data: dict[int, list[_Span]] = field(default_factory=dict)
    external: dict[str, str] = field(default_factory=dict)
    is_external: bool = False
    is_segment: bool = False


def read_onnx(path: Path) -> Found:
    """Return the float initializers and constants of a model and its subgraphs, and a note for each tensor left out.

    Raises:
      TensorFileError: the file is damaged or not an ONNX model, or external data are missing or outside the model's
        folder.
    """
    with path.open("rb") as opened:
        walk = _Walk(opened, path)
        protos = walk.model()
    uses = uses_of(walk.nodes, {proto.name: tuple(proto.shape) for proto in protos})
    tensors: list[Tensor] = []
    notes = [f"{path}: {plural(walk.sparse, 'sparse initializer')} left out"] if walk.sparse else []
    sizes = {path: path.stat().st_size}
    total = 0
    for proto in protos:
        dtype = DTYPES.get(proto.kind)
        if dtype is None:
            held = OTHERS.get(proto.kind, f"type {proto.kind}")
            why = "; quantised weights are integers with separate scales" if held in QUANTISED else ""
            notes.append(f"{path}: {proto.name} left out, it holds {held} and not floats{why}")
            continue
        read = _read_of(proto, np.dtype(dtype), path, sizes)
        if isinstance(read, str):
            notes.append(f"{path}: {proto.name} left out, {read}")
            continue
        total += max(1, math.prod(proto.shape) * np.dtype(dtype).itemsize)
        shape, use = tuple(proto.shape), uses.get(proto.name)
        role = "scalar" if math.prod(shape) == 1 else use.role if use else ""
        if use and role == "matrix":
            role = role_that_stays(proto.name, shape) or role_that_stays(use.result, shape) or role
        last = use.outputs_last if use else None
        tensors.append(Tensor(proto.name, shape, np.dtype(dtype).name, read, str(path), role=role, outputs_last=last))
    if total > SHARED_LIMIT * sum(sizes.values()):
        raise TensorFileError(f"{path}: its tensors are together more than {SHARED_LIMIT} times as large as its files")
    return tensors, notes


# ---- positions of the tensors


class _Walk:
    """A reader of the protobuf messages in `opened`, the .onnx file at `path`; it collects tensors and operators."""

    def __init__(self, opened: IO[bytes], path: Path) -> None:
        self.opened = opened
        self.path = path
        self.left = FIELDS_LIMIT
        self.sparse = 0
        self.nodes: list[Node] = []

    def model(self) -> list[_Proto]:
        """Return every tensor of the model, and collect its operators in `nodes`."""
        protos: list[_Proto] = []
        graphs = 0
        for number, value in self._fields(_Span(0, self.path.stat().st_size)):
            if number == MODEL_GRAPH and isinstance(value, _Span):
                graphs += 1
                protos += self._graph(value, 0)
            elif number == MODEL_FUNCTION and isinstance(value, _Span):
                for inner, node in self._fields(value):
                    if inner == FUNCTION_NODE and isinstance(node, _Span):
                        protos += self._node(node, 1)
        if graphs != 1:
            raise TensorFileError(f"{self.path}: damaged or not an ONNX model ({graphs} graphs in it)")
        return protos

    def _graph(self, span: _Span, depth: int) -> Iterator[_Proto]:
        """Yield the tensors of the graph message at `span` and its subgraphs; depth: number of graphs around it."""
        if depth > DEPTH_LIMIT:
            raise self._damaged(f"graphs nest deeper than {DEPTH_LIMIT} levels")
        for number, value in self._fields(span):
            if isinstance(value, _Span):
                if number == GRAPH_INITIALIZER:
                    yield self._tensor(value)
                elif number == GRAPH_NODE:
                    yield from self._node(value, depth + 1)
                elif number == GRAPH_SPARSE:
                    self.sparse += 1

    def _node(self, span: _Span, depth: int) -> Iterator[_Proto]:
        """Add an operator to the list `nodes`, and yield its tensors: its constant, and those of its subgraphs.

        A constant is named after the operator's output. span: the operator's message. depth: number of graphs that
        contain it.
        """
        kind = ""
        attributes, inputs, outputs = [], [], []
        for number, value in self._fields(span):
            if isinstance(value, _Span):
                if number == NODE_INPUT:
                    inputs.append(self._text(value))
                elif number == NODE_OUTPUT:
                    outputs.append(self._text(value))
                elif number == NODE_KIND:
                    kind = self._text(value)
                elif number == NODE_ATTRIBUTE:
                    attributes.append(value)
        settings: dict[str, list[int]] = {}
        self.nodes.append(Node(kind, inputs, outputs, settings))
        for attribute in attributes:
            name = ""
            integers: list[int] = []
            for number, value in self._fields(attribute):
                if isinstance(value, int):
                    if number in (ATTRIBUTE_INTEGER, ATTRIBUTE_INTEGERS) and len(integers) < DIMENSIONS_LIMIT:
                        integers.append(value)
                elif number == ATTRIBUTE_NAME:
                    name = self._text(value)
                elif number == ATTRIBUTE_INTEGERS:
                    integers += self._varints(value)
                elif number in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
                    yield from self._graph(value, depth)
                elif number in (ATTRIBUTE_TENSOR, ATTRIBUTE_TENSORS) and kind == "Constant":
                    proto = self._tensor(value)
                    proto.name = outputs[0] if outputs and outputs[0] else proto.name
                    yield proto
            settings[name] = integers

    def _tensor(self, span: _Span) -> _Proto:
        """Return the content of the TensorProto message at `span`, with the positions of its elements."""
        proto = _Proto()
        for number, value in self._fields(span):
            if isinstance(value, int):
                if number == DIMS:
                    proto.shape.append(value)
                elif number == DATA_TYPE:
                    proto.kind = value
                elif number == LOCATION:
                    proto.is_external = value == 1
                elif number == INTEGERS:
                    raise self._damaged("numbers that are not packed")
            elif number == DIMS:
                proto.shape += self._varints(value)
            elif number == NAME:
                proto.name = self._text(value)
            elif number in (RAW, FLOATS, INTEGERS, DOUBLES):
                proto.data.setdefault(number, []).append(value)
            elif number == SEGMENT:
                proto.is_segment = True
            elif number == EXTERNAL:
                texts = {inner: self._text(part) for inner, part in self._fields(value) if isinstance(part, _Span)}
                proto.external[texts.get(KEY, "")] = texts.get(VALUE, "")
        fits = len(proto.shape) <= DIMENSIONS_LIMIT and all(0 <= n < BYTES_LIMIT for n in proto.shape)
        if not fits or math.prod(proto.shape) >= BYTES_LIMIT:
            raise self._damaged(f"shape of {proto.name!r}")
        return proto

    def _fields(self, span: _Span) -> Iterator[tuple[int, int | _Span]]:
        """Yield (number, value) for each field of the message at `span`; a value is an integer or a _Span of bytes."""
        place = span.begin
        while place < span.end:
            self.left -= 1
            if self.left < 0:
                raise self._damaged(f"more than {FIELDS_LIMIT:,} fields")
            tag, place = self._varint(place, span.end)
            wire = tag & 7
            if wire == VARINT:
                value, place = self._varint(place, span.end)
                yield tag >> 3, value - (1 << 64) * (value >> 63)
                continue
            if wire == SPAN:
                length, place = self._varint(place, span.end)
            elif wire in (EIGHT, FOUR):
                length = 8 if wire == EIGHT else 4
            else:
                raise self._damaged(f"a field of wire type {wire}")
            if place + length > span.end:
                raise self._damaged("it ends early")
            yield tag >> 3, _Span(place, place + length)
            place += length

    def _varint(self, place: int, end: int) -> tuple[int, int]:
        """Read a varint of up to 64 bits at byte `place`, before `end`; return its value and the position after it."""
        self.opened.seek(place)
        data = self.opened.read(min(10, end - place))
        value = 0
        for i, byte in enumerate(data):
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, place + i + 1
        raise self._damaged("it ends early" if len(data) < 10 else "a number of more than 64 bits")

    def _varints(self, span: _Span) -> list[int]:
        """Return the signed 64-bit varints of a packed field at `span`, at most the first DIMENSIONS_LIMIT + 1."""
        numbers: list[int] = []
        place = span.begin
        while place < span.end and len(numbers) <= DIMENSIONS_LIMIT:
            value, place = self._varint(place, span.end)
            numbers.append(value - (1 << 64) * (value >> 63))
        return numbers

    def _text(self, span: _Span) -> str:
        """Return the string at `span`; bytes that are not UTF-8 become escapes."""
        if span.end - span.begin > TEXT_LIMIT:
            raise self._damaged(f"a name of {span.end - span.begin} bytes")
        self.opened.seek(span.begin)
        return self.opened.read(span.end - span.begin).decode("utf-8", "backslashreplace")

    def _damaged(self, problem: str) -> TensorFileError:
        """Return the error for a damaged file; `problem`: text that says how it is damaged."""
        return TensorFileError(f"{self.path}: damaged or not an ONNX model ({problem})")


# ---- functions that read tensors


def _read_of(
    proto: _Proto, dtype: np.dtype[Any], path: Path, sizes: dict[Path, int]
) -> Callable[[int], Iterator[Array]] | str:
    """Return a function read(size) that yields a tensor's elements in chunks, or the reason why it is left out.

    proto: the tensor's message. dtype: dtype of the elements. path: the model's file. sizes: path -> size in bytes, to
    which an external file is added.
    """
    if proto.is_segment:
        return "it is a segment of a tensor"
    count = math.prod(proto.shape)
    if proto.is_external:
        return _external(proto, dtype, path, sizes)
    spans = [(number, span) for number, parts in proto.data.items() for span in parts if span.end > span.begin]
    if not spans and count == 0:
        return reader(path, 0, dtype, 0)
    if len(spans) != 1:
        if len(spans) > 1 and len({number for number, _ in spans}) == 1:
            return "its elements are not contiguous; save it with onnx.save"
        raise TensorFileError(f"{path}: damaged, {proto.name!r} has {len(spans)} values instead of one")
    number, span = spans[0]
    if number == INTEGERS and dtype.itemsize <= 2:
        return _integers(proto, dtype, span, path)
    if number != RAW and (number, dtype.name) not in ((FLOATS, "float32"), (DOUBLES, "float64")):
        raise TensorFileError(f"{path}: damaged, the values of {proto.name!r} do not have the dtype {dtype.name}")
    if span.end - span.begin != count * dtype.itemsize:
        raise _misfit(proto, path)
    return reader(path, span.begin, dtype, count)


def _misfit(proto: _Proto, path: Path) -> TensorFileError:
    """Return the error for a tensor, `proto`, of the file `path` whose number of elements contradicts its shape."""
    return TensorFileError(f"{path}: damaged, the size of {proto.name!r} does not fit its shape {tuple(proto.shape)}")


def _external(
    proto: _Proto, dtype: np.dtype[Any], path: Path, sizes: dict[Path, int]
) -> Callable[[int], Iterator[Array]]:
    """Return a function read(size) that yields a tensor's elements from its external file in chunks.

    proto: the tensor's message. dtype: dtype of the elements. path: the model's file. sizes: path -> size in bytes, to
    which the external file is added.
    """
    location = proto.external.get("location", "")
    folder = path.parent.resolve()
    try:
        file = (folder / location).resolve()
        is_inside = bool(location) and not Path(location).is_absolute() and file.is_relative_to(folder)
        is_there = is_inside and file.is_file()
    except (OSError, ValueError, RuntimeError):  # a name that no system has, or links in a circle
        is_inside = is_there = False
    if not is_inside:
        raise TensorFileError(
            f"{path}: the external data of {proto.name!r} must be a file in the model's folder; got {shown(location)}"
        )
    if not is_there:
        raise TensorFileError(f"{path}: the external data of {proto.name!r} are missing: {shown(location)}")
    sizes[file] = file.stat().st_size
    wanted = math.prod(proto.shape) * dtype.itemsize
    texts = [proto.external.get("offset", "0"), proto.external.get("length", str(wanted))]
    if not all(text.isascii() and text.isdigit() and len(text) < 20 for text in texts):
        raise TensorFileError(f"{path}: damaged, the position of {proto.name!r} in its external data")
    offset, length = map(int, texts)
    if length != wanted:
        raise _misfit(proto, path)
    if offset + length > sizes[file]:
        raise TensorFileError(f"{path}: damaged, {proto.name!r} ends at {offset + length}, its file at {sizes[file]}")
    return reader(file, offset, dtype, math.prod(proto.shape))


def _integers(proto: _Proto, dtype: np.dtype[Any], span: _Span, path: Path) -> Callable[[int], Iterator[Array]]:
    """Return a function read(size) that yields a tensor of 8- or 16-bit floats, stored as varints of their bits.

    proto: the tensor's message. dtype: dtype of the elements. span: the bytes of the varints. path: the file.

    Raises:
      TensorFileError: the number of varints is not that of the shape.
    """
    stored = reader(path, span.begin, np.dtype(np.uint8), span.end - span.begin)
    count = sum(int(np.count_nonzero(data < 0x80)) for data in stored(BYTES_AT_ONCE))
    if count != math.prod(proto.shape):
        raise _misfit(proto, path)

    def read(size: int) -> Iterator[Array]:
        return pieces_of((codes.view(dtype) for codes in _codes(path, stored(BYTES_AT_ONCE), dtype)), size)

    return read


def _codes(path: Path, stored: Iterator[Array], dtype: np.dtype[Any]) -> Iterator[Array]:
    """Decode varints to arrays of unsigned integers as wide as `dtype`, a type of 8 or 16 bits, and yield the arrays.

    stored: the bytes of the varints, in pieces. path: the file, for messages.
    """
    rest = np.empty(0, np.uint8)
    for data in stored:
        data = np.concatenate([rest, data])
        ends = np.flatnonzero(data < 0x80)  # the last byte of each
        if not ends.size:
            rest = data
            continue
        starts = np.concatenate([[0], ends[:-1] + 1])
        lengths = ends - starts + 1
        values = np.zeros(ends.size, np.uint32)
        for i in range(3):
            has = lengths > i
            values[has] |= (data[starts[has] + i] & 0x7F).astype(np.uint32) << np.uint32(7 * i)
        if int(lengths.max()) > 3 or int(values.max()) >> (8 * dtype.itemsize):
            raise TensorFileError(f"{path}: damaged, a {dtype.name} of more than {8 * dtype.itemsize} bits")
        yield values.astype(f"u{dtype.itemsize}")
        rest = data[ends[-1] + 1 :]
