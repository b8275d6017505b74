"""warm_up, the Hypothesis profile, and floats that are printed to be pasted."""

from __future__ import annotations

import multiprocessing
import tomllib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.vendor.pretty import pretty

import fpsim as fp
from _fpsim_hypothesis import PROFILE
from fpsim.testing.pasted import pasted
from tests.kit.processes import ROOT, python

FAILING = """
import numpy as np, fpsim as fp
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays

settings.load_profile("fpsim")

@settings(database=None)
@given(arrays(np.float32, 2, elements={"min_value": 0, "max_value": 1}))
def test(x):
    fp.encode(x, fp.E4M3)
    assert not (x > 0.5).any()

test()
"""


def installed(folder: Path) -> Path:
    """Return a folder that tells Hypothesis what pyproject.toml does where the package is installed."""
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["hypothesis"]
    info = folder / "fpsim_installed-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fpsim-installed\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hypothesis]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()))
    return folder


def run(script: str, folder: Path) -> str:
    """Return the output of a script where the package is installed."""
    return python(f"import sys; sys.path.insert(0, {str(installed(folder))!r})\n" + script)


def test_hypothesis_has_the_profile_where_fpsim_is_installed_and_does_not_import_it(tmp_path: Path) -> None:
    script = "from hypothesis import settings\nprint(settings.get_profile('fpsim').deadline, 'fpsim' in sys.modules)"
    assert run(script, tmp_path) == "None False"


def test_the_first_example_of_a_property_has_no_deadline_and_its_floats_can_be_pasted(tmp_path: Path) -> None:
    script = FAILING.replace("\ntest()\n", "\ntry:\n    test()\nexcept AssertionError as failure:\n") + (
        "    print(*failure.__notes__)\n"
    )
    printed = run(script, tmp_path)
    assert "DeadlineExceeded" not in printed
    line = next(line for line in printed.splitlines() if "x=" in line)
    expression = line.partition("x=")[2].rstrip().removesuffix(",").partition("  #")[0]
    assert ".view(np.float32)" in expression
    assert (eval(expression, {"np": np}) > 0.5).any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_pasted_floats_have_the_same_bits(dtype: Any) -> None:
    word = f"u{np.dtype(dtype).itemsize}"
    patterns = np.random.default_rng(0).integers(0, 1 << 8 * np.dtype(dtype).itemsize, 24, dtype=np.dtype(word))
    for shape in ((24,), (2, 3, 4), (1, 24)):
        x = patterns.view(dtype).reshape(shape)
        back = eval(pasted(x), {"np": np, "ml_dtypes": ml_dtypes})
        assert back.dtype == x.dtype
        np.testing.assert_array_equal(back.view(word), x.view(word))
    one = eval(pasted(patterns.view(dtype)[0]), {"np": np, "ml_dtypes": ml_dtypes})
    assert one.view(word) == patterns[0]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_pasted_codes_are_hexadecimal_and_the_same(dtype: Any) -> None:
    for shape in ((5,), (2, 3), (), (0, 2)):
        codes = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape) + dtype(0x38)
        back = eval(pasted(codes), {"np": np})
        assert (back.dtype, back.shape, back.tolist()) == (codes.dtype, codes.shape, codes.tolist())
    assert pasted(np.array([[0x38, 0x80]], dtype)).startswith(f"np.array([[0x{0x38:0{2 * np.dtype(dtype).itemsize}X}, ")


@pytest.mark.parametrize("dtype", [np.int8, np.int64, ">i4", np.bool_, ml_dtypes.int4, ml_dtypes.uint4])
def test_pasted_integers_and_bools_are_the_same(dtype: Any) -> None:
    for shape in ((5,), (2, 3), (), (0, 2), (2001,)):
        x = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5).astype(dtype)
        back = eval(pasted(x), {"np": np, "ml_dtypes": ml_dtypes})
        assert (back.dtype, back.shape, back.tolist()) == (x.dtype, x.shape, x.tolist())
    one = np.array([3, 1]).astype(dtype)[0]
    assert (back := eval(pasted(one), {"np": np, "ml_dtypes": ml_dtypes})) == one
    assert back.dtype == one.dtype


@pytest.mark.parametrize(
    "x", [np.zeros((0, 3), np.float32), np.full((2, 2), np.float32(-0.0)), np.array(1.5), np.arange(3, dtype=">f4")]
)
def test_pasted_shapes_and_byte_orders_are_kept(x: np.ndarray[Any, Any]) -> None:
    back = eval(pasted(x), {"np": np})
    assert (back.shape, back.dtype, back.tobytes()) == (x.shape, x.dtype, x.tobytes())


def test_other_profiles_print_as_before() -> None:
    x = np.ones(2, np.float32)
    assert pretty(x) == "np.full((2,), 0x3F800000, np.uint32).view(np.float32)"
    settings.register_profile("another")
    settings.load_profile("another")
    try:
        assert pretty(x) == repr(x)
    finally:
        settings.load_profile(PROFILE)


WARM = """
import multiprocessing
import numpy as np, fpsim as fp
from fpsim.runtime.compile import KERNELS

def loaded():
    return sum(len(kernel.signatures) for kernel in KERNELS)

def compiled_after(warm, words, answer):
    if warm is not None:
        fp.testing.warm_up(*warm, **words)
    before = loaded()
    for dtype in (np.float32, np.float64):
        x = np.ones((3, 4), dtype)
        codes = fp.encode(x, "e5m2", **words)
        fp.quantize(x.T, "e5m2", **words)
        fp.decode(codes, "e5m2", dtype)
    answer.value = loaded() - before

forks = multiprocessing.get_context("fork")
for warm, words in {cases}:
    answer = forks.Value("i", -1)
    process = forks.Process(target=compiled_after, args=(warm, words, answer))
    process.start()
    process.join()
    print(answer.value)
"""
ROUNDINGS: dict[str, dict[str, Any]] = {
    "": {}, "rounding='up'": {"rounding": "up"},
    "rounding='stochastic', seed=1": {"rounding": "stochastic", "seed": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def compiled() -> dict[str, int]:
    """Return how many loops are compiled or loaded after each warm-up, in forks of a fresh process."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("processes that begin with nothing loaded are forked")
    cases: dict[str, tuple[Any, dict[str, Any]]] = {name: (("e5m2",), words) for name, words in ROUNDINGS.items()}
    cases |= {"without": (None, {}), "no arguments": ((), {})}
    parts = python(WARM.format(cases=list(cases.values()))).split()
    return dict(zip(cases, map(int, parts), strict=True))


@pytest.mark.parametrize("keywords", ROUNDINGS)
def test_what_was_warmed_up_compiles_nothing_more(keywords: str, compiled: dict[str, int]) -> None:
    assert compiled[keywords] == 0


def test_without_a_warm_up_something_is_compiled(compiled: dict[str, int]) -> None:
    assert compiled["without"] > 0


def test_warm_up_without_arguments_takes_the_usual_formats(compiled: dict[str, int]) -> None:
    assert compiled["no arguments"] == 0


def test_warm_up_calls_each_function_once() -> None:
    called: list[int] = []
    fp.testing.warm_up("e4m3", "fp64", calls=[lambda: called.append(1), lambda: called.append(2)])
    assert called == [1, 2]


@pytest.mark.parametrize("calls", [print, [print, 3], 3])
def test_warm_up_takes_functions_only(calls: Any) -> None:
    with pytest.raises(TypeError, match=r"calls must be functions without arguments, such as .*; got "):
        fp.testing.warm_up("e4m3", calls=calls)
