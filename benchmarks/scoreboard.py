"""Checks of other libraries' casts: `make scoreboard` writes docs/scoreboard.md.

`fp.testing.check_quantizer` compares each cast with its library's policy; libraries that are not installed are listed.
"""

from __future__ import annotations

import argparse
import importlib
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import fpsim as fp
from benchmarks.machine import describe, version
from benchmarks.row import load
from fpsim.files import write_whole

PEERS = ("torch", "jax", "ml_dtypes", "numpy", "gfloat", "torchao", "onnxruntime")
PAGE = Path("docs/scoreboard.md")
DTYPES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "bfloat16", "float16")
FORMATS = dict(zip(DTYPES, ("E4M3", "E5M2", "E4M3FNUZ", "E5M2FNUZ", "BF16", "FP16"), strict=True))


class PeerCast(NamedTuple):
    """A library's cast of float32: the call as text, its format, its policy and keywords, and the function."""

    peer: str
    call: str
    fmt: str
    policy: str  # in words
    keywords: dict[str, Any]
    fn: Callable[[Any], Any]


class Line(NamedTuple):
    """The result of the check of one cast.

    differ: number of inputs whose codes differ from the policy's. of: number of checked inputs. said: the cause as
    text.
    """

    cast: PeerCast
    ok: bool
    differ: int
    of: int
    said: str


def casts(peer: str) -> Iterator[PeerCast]:
    """Return the casts of an installed library."""
    return MAKERS[peer]()


def checked(cast: PeerCast) -> Line:
    """Check a library's cast by its policy with `fp.testing.check_quantizer`, and return the result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keywords: dict[str, Any] = {**cast.keywords}
        report = fp.testing.check_quantizer(cast.fn, cast.fmt, source="float32", **keywords, raises=False)
    return Line(cast, report.ok, report.differ, report.of, "" if report.ok else _first_words(report))


def _first_words(report: Any) -> str:
    """Return the cause of the differences, and the first point that differs."""
    broken = report.broken[0]
    why = report.diagnosis.strip().partition(". ")[0].rstrip(".") or str(broken).splitlines()[0]
    where = f"; {broken.input}: {broken.got}, not {broken.want}" if broken.input else ""
    return f"{why}{where}"


def _torch() -> Iterator[PeerCast]:
    torch = importlib.import_module("torch")
    newest = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)
    policy = "torch" if newest else "torch<2.12"
    for name, fmt in (*FORMATS.items(), ("float8_e8m0fnu", "E8M0")):
        yield PeerCast("torch", f"x.to(torch.{name})", fmt, policy, fp.policy(policy), _to(getattr(torch, name)))


def _to(dtype: Any) -> Callable[[Any], Any]:
    return lambda x: _tensor(x).to(dtype)


def _tensor(x: Any) -> Any:
    return importlib.import_module("torch").from_numpy(np.array(x, order="C"))  # ascontiguousarray adds an axis to ()


def _ml_dtypes() -> Iterator[PeerCast]:
    names = (*DTYPES[:-1], "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e8m0fnu", "float6_e2m3fn",
             "float6_e3m2fn", "float4_e2m1fn")  # fmt: skip
    for name in names:
        dtype = np.dtype(getattr(ml_dtypes, name))
        yield PeerCast(
            "ml_dtypes", f"x.astype({name})", fp.format(dtype).name, "ml_dtypes", fp.policy("ml_dtypes"), _as(dtype)
        )


def _numpy() -> Iterator[PeerCast]:
    yield PeerCast("numpy", "x.astype(float16)", "FP16", "ieee", fp.policy("ieee"), _as(np.dtype(np.float16)))


def _as(dtype: Any) -> Callable[[Any], Any]:
    return lambda x: x.astype(dtype)


def _jax() -> Iterator[PeerCast]:
    jnp = importlib.import_module("jax.numpy")
    for name, fmt in FORMATS.items():
        dtype = getattr(jnp, name)
        call = f"jnp.asarray(x).astype(jnp.{name})"
        yield PeerCast("jax", call, fmt, "ml_dtypes", fp.policy("ml_dtypes"), _through(jnp, dtype))


def _through(jnp: Any, dtype: Any) -> Callable[[Any], Any]:
    """Return a cast by JAX that pads arrays to few lengths, because JAX compiles for every shape."""

    def cast(x: Any) -> Any:
        padded = np.zeros(max(4096, 1 << (x.size - 1).bit_length()), np.float32)
        padded[: x.size] = x.ravel()
        return np.asarray(jnp.asarray(padded).astype(dtype))[: x.size].reshape(x.shape)

    return cast


MODES = {"TiesToEven": "nearest_even", "TiesToAway": "nearest_away", "TowardZero": "toward_zero"}


def _gfloat() -> Iterator[PeerCast]:
    gfloat, formats = importlib.import_module("gfloat"), importlib.import_module("gfloat.formats")
    for name, fmt in (("ocp_e4m3", "E4M3"), ("ocp_e5m2", "E5M2"), ("binary16", "FP16")):
        info = getattr(formats, f"format_info_{name}")
        for mode, rounding in MODES.items():
            for saturate, overflow in ((False, "nonfinite"), (True, "saturate")):
                call = f"round_ndarray({name}, x, {mode}, sat={saturate})"
                fn = _rounded(gfloat, info, getattr(gfloat.RoundMode, mode), saturate)
                words = {"rounding": rounding, "overflow": overflow}
                yield PeerCast("gfloat", call, fmt, f"{rounding}, {overflow}", words, fn)


def _rounded(gfloat: Any, info: Any, mode: Any, saturate: bool) -> Callable[[Any], Any]:
    return lambda x: np.asarray(gfloat.round_ndarray(info, np.asarray(x, np.float64), mode, saturate))


def _torchao() -> Iterator[PeerCast]:
    torch = importlib.import_module("torch")
    floats = importlib.import_module("torchao.float8.float8_utils")
    words = {"overflow": "saturate"}
    for name in DTYPES[:4]:
        fn = _saturated(floats, getattr(torch, name))
        yield PeerCast("torchao", f"to_fp8_saturated(x, torch.{name})", FORMATS[name], "saturate", words, fn)
    kernels = importlib.import_module("torchao.prototype.mx_formats.kernels")
    fn = _saturated_fp4(kernels)
    yield PeerCast("torchao", "f32_to_f4_unpacked(x)", "E2M1", "saturate", words, fn)


def _saturated(floats: Any, dtype: Any) -> Callable[[Any], Any]:
    return lambda x: floats.to_fp8_saturated(_tensor(x), dtype)


def _saturated_fp4(kernels: Any) -> Callable[[Any], Any]:
    return lambda x: kernels.f32_to_f4_unpacked(_tensor(x))


def _onnxruntime() -> Iterator[PeerCast]:
    onnx, runtime = load("onnx"), importlib.import_module("onnxruntime")
    if onnx is None:
        return
    types = {"E4M3": "FLOAT8E4M3FN", "E5M2": "FLOAT8E5M2", "E4M3FNUZ": "FLOAT8E4M3FNUZ", "E5M2FNUZ": "FLOAT8E5M2FNUZ"}
    for fmt, name in {**types, "BF16": "BFLOAT16", "FP16": "FLOAT16"}.items():
        for saturate in (0, 1) if fmt in types else (0,):
            overflow = "saturate" if saturate else "nonfinite"
            call = f"Cast(to={name}, saturate={saturate})" if fmt in types else f"Cast(to={name})"
            fn = _session(onnx, runtime, getattr(onnx.TensorProto, name), saturate if fmt in types else None)
            yield PeerCast("onnxruntime", call, fmt, overflow, {"overflow": overflow}, fn)


def _session(onnx: Any, runtime: Any, to: int, saturate: int | None) -> Callable[[Any], Any]:
    """Return a session that casts float32 to a type and back, without the optimiser, which would remove both casts."""
    helper, single = onnx.helper, onnx.TensorProto.FLOAT
    attributes = {} if saturate is None else {"saturate": saturate}
    there = helper.make_node("Cast", ["x"], ["y"], to=to, **attributes)
    back = helper.make_node("Cast", ["y"], ["z"], to=single)
    x, z = (helper.make_tensor_value_info(name, single, None) for name in "xz")
    model = helper.make_model(
        helper.make_graph([there, back], "casts", [x], [z]), opset_imports=[helper.make_opsetid("", 19)], ir_version=9
    )
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda array: session.run(None, {"x": np.array(array, np.float32, order="C")})[0]


MAKERS: dict[str, Callable[[], Iterator[PeerCast]]] = {
    "torch": _torch, "jax": _jax, "ml_dtypes": _ml_dtypes, "numpy": _numpy, "gfloat": _gfloat, "torchao": _torchao,
    "onnxruntime": _onnxruntime,
}  # fmt: skip


def page(lines: list[Line], versions: dict[str, str | None], failed: dict[str, str], date: str, python: str) -> str:
    """Format the page: how it was made, a table of the casts, and what was not run."""
    shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    wrong = [line for line in lines if not line.ok]
    text = [
        "# Scoreboard: other libraries' casts",
        "",
        f"`make scoreboard` wrote this page on {date}: Python {python}, {shown}.",
        "",
        "This page shows which casts of other libraries have the results that the libraries intend. Each cast from",
        "float32 was called with the boundary points of its format (`fp.testing.points` and others).",
        "`fp.testing.check_quantizer` compared every result, bit for bit, with the policy of the library (a name of",
        "`fp.policy`, or a rounding and an overflow policy). It also compared results of the values in another",
        "order, position and memory layout, and of a second call. NaNs equal each other.",
        "",
        f"{len(lines) - len(wrong)} of {len(lines)} casts do what they are meant to.",
        "",
        "| library | call | format | policy | points that differ | result |",
        "|---|---|---|---|---|---|",
    ]
    text += [_row(line) for line in lines]
    absent = [name for name in PEERS if not versions.get(name)]
    text += ["", f"Not installed, and so not run: {', '.join(absent) or 'none'}."]
    text += [f"Not run: {name}, {reason}." for name, reason in failed.items()]
    return "\n".join(text) + "\n"


def _row(line: Line) -> str:
    cast = line.cast
    said = "equal" if line.ok else _plain(line.said)
    return f"| {cast.peer} | `{cast.call}` | {cast.fmt} | {cast.policy} | {line.differ:,} of {line.of:,} | {said} |"


def _plain(text: str) -> str:
    """Return the text as one line for a cell of a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def main(arguments: list[str] | None = None) -> int:
    """Check every cast of the installed libraries, print the rows, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", "-o", type=Path, default=PAGE, help="the page")
    parser.add_argument("--only", default="", help="the libraries whose name contains this")
    options = parser.parse_args(arguments)
    names = [name for name in PEERS if options.only in name]
    versions = {name: version(name) for name in names}
    lines: list[Line] = []
    failed: dict[str, str] = {}
    for name in names:
        if versions[name] is None:
            continue
        try:
            for cast in casts(name):
                lines.append(checked(cast))
                print(_row(lines[-1]), flush=True)
        except (ImportError, AttributeError) as problem:  # another version, whose functions lie elsewhere
            failed[name] = f"{type(problem).__name__}: {problem}"
    machine = describe()
    write_whole(options.out, page(lines, versions, failed, str(machine["date"]), str(machine["python"])))
    print(f"{options.out}: {len(lines)} casts")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
