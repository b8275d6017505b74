"""Plain Python gives the bits of the compiled code, and a second process compiles nothing."""

from __future__ import annotations

import textwrap
from functools import cache

from tests.arithmetic.sample import lines
from tests.kit.processes import printed, python

DIGESTS = """
    import hashlib
    import numpy as np
    import fpsim as fp
    from fpsim.formats.policies import OVERFLOWS
    from fpsim.formats.rounding import NAMES

    narrow = np.random.default_rng(0).integers(0, 1 << 32, 16, dtype=np.uint32).view(np.float32)
    wide = np.random.default_rng(1).integers(0, 1 << 64, 8, dtype=np.uint64).view(np.float64)
    near = np.array([1, 1.0625, 1.1875, -464, 465, -2.0**-10, 3 * 2.0**-10, 0, -0.0, np.inf, -np.inf, np.nan, 3e-39])
    mine = [fp.Format("deep", 5, 10, bias=1060), fp.Format("powers", 5, 0, infinities=False, nan="top")]
    p3109 = [fp.format(f"p3109_{name}") for name in ("k8p1se", "k8p4sf", "k8p3ue", "k12p5se")]
    for number, fmt in enumerate([*(fp.format(name) for name in fp.formats.names()), *p3109, *mine]):
        for i, x in enumerate((narrow, wide, near, near.astype(np.float32), near[:8].astype(np.float16))):
            for rounding in NAMES[(number + i) % 3 :: 3]:  # every mode of a format, and of a type of float
                codes = fp.encode(x, fmt, rounding=rounding, seed=3)
                print(fmt, x.dtype, rounding, hashlib.sha256(codes.tobytes()).hexdigest())
        for overflow in OVERFLOWS:
            for subnormals in ("keep", "flush"):
                codes = fp.encode(near, fmt, rounding="down", overflow=overflow, subnormals=subnormals)
                print(fmt, overflow, subnormals, hashlib.sha256(codes.tobytes()).hexdigest())
        values = fp.decode(np.arange(min(1 << fmt.bits, 300)).astype(fmt.storage), fmt, np.float64)
        print(fmt, "decode", hashlib.sha256(values.tobytes()).hexdigest())
        if fp.FP32.holds(fmt):
            print(fmt, "quantize", hashlib.sha256(fp.quantize(narrow, fmt).tobytes()).hexdigest())
"""


OPERATIONS = "from tests.arithmetic.sample import lines; print(*lines(), sep='\\n')"


@cache
def in_plain_python() -> dict[str, str]:
    """What the scripts print in one process without compilation."""
    scripts = [DIGESTS, OPERATIONS, COUNT, FUSED, SCALED]
    each = [f"exec({textwrap.dedent(script)!r}, {{}})" for script in scripts]
    parts = python("\nprint('----')\n".join(each), NUMBA_DISABLE_JIT="1").split("----\n")
    return {script: text.strip() for script, text in zip(scripts, parts, strict=True)}


def test_plain_python_gives_the_bits_of_the_compiled_code() -> None:
    plain = in_plain_python()[DIGESTS].splitlines()
    assert plain == printed(DIGESTS).splitlines()
    assert len(plain) > 600


def test_plain_python_computes_the_bits_and_flags_of_the_compiled_operations() -> None:
    plain, compiled = in_plain_python()[OPERATIONS].splitlines(), list(lines())
    assert plain == compiled
    assert len(compiled) > 500


COUNT = """
    import numba
    from numba.core import event
    import numpy as np
    import fpsim as fp
    from fpsim.runtime.compile import KERNELS
    from fpsim.runtime.stream import STREAM_BYTES

    with event.install_recorder("numba:compile") as recorder:
        x = np.array([1.1, -464, np.nan], np.float32)
        print(fp.encode(x, fp.E4M3, rounding="up").tolist(), fp.encode(x.astype(np.float64), fp.E8M0).tolist())
        print(fp.quantize(x, fp.E4M3).tolist(), fp.decode(np.zeros(3, np.uint8), fp.E4M3).tolist())
        large = np.ones(8 if numba.config.DISABLE_JIT else STREAM_BYTES // 2, np.float32)  # takes another kernel
        codes = fp.encode(large, fp.FP16)
        print(codes.min(), codes.max())
    print(len(recorder.buffer), sum(count for each in KERNELS for count in each.stats.cache_hits.values()))
"""


def test_a_second_process_compiles_nothing_and_gives_the_same_results() -> None:
    first, second = printed(COUNT).splitlines(), python(COUNT).splitlines()  # with the kernels of all tests
    compiled, loaded = map(int, second[-1].split())
    assert (compiled, loaded > 3) == (0, True)
    plain = in_plain_python()[COUNT].splitlines()
    assert first[:-1] == second[:-1] == plain[:-1]


FUSED = """
    import numpy as np, fpsim as fp
    from fpsim.probe.order import Order
    from fpsim.probe.programs.program import Program
    from fpsim.probe.programs.rules import AdditionRule
    from tests.probe.planted import random_tree

    rng = np.random.default_rng(0)
    some = [0.0, -0.0, 1.5, -2e-23, 3e38, -3e38, 1e30, -1e30, np.inf, np.nan]
    a, b = (rng.choice(some, shape, p=[0.11] * 8 + [0.06] * 2).astype(np.float32) for shape in ((12, 6), (6, 12)))
    products = [fp.matmul(a, b, accumulate="cdna1_f32_f32")]
    for rule in (AdditionRule(fp.FP32), AdditionRule(fp.FP32, "toward_zero")):
        program = Program(Order.of(random_tree(rng, range(6), 2)), rule, fp.FP32, 6)
        products.append(program.run_product(*(x.astype(np.float64) for x in (a, b))).view(np.float32))
    for each in products:
        print(np.isinf(each).sum(), np.where(np.isnan(each), np.float32(np.nan), each).view(np.uint32).tolist())
"""


def test_plain_python_multiplies_beyond_the_range_as_the_compiled_code_does() -> None:
    plain = in_plain_python()[FUSED].splitlines()
    assert plain == printed(FUSED).splitlines()
    assert all(int(line.split()[0]) > 10 for line in plain[:2])


SCALED = """
    import hashlib
    import numpy as np
    import fpsim as fp

    x = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    x[1, 3], x[2, 5], x[3] = np.nan, np.inf, 0
    x[4] *= np.float32(1e-42)
    show = lambda *arrays: hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    for name in ("TENSOR", "TILE_128X1", "MX", "NVFP4", "TE_1X128", "TORCHAO_MX_RCEIL"):
        scaling = getattr(fp.scalings, name)
        for fmt in ("e4m3", "int8"):
            for values in (x, x.astype(np.float64)):
                q = fp.encode_scaled(values, fmt, scaling)
                again = fp.quantize_scaled(values, fmt, scaling)
                print(name, fmt, show(q.codes, q.scales, q.decode(), again), q.report)
    groups = fp.Scaling(block=(1, 16), symmetric=False)
    print(show(fp.encode_scaled(x, "uint4", groups).codes), show(fp.encode_scaled(x, "logfmt-8").codes))
"""


def test_plain_python_scales_tiles_as_the_compiled_code_does() -> None:
    assert in_plain_python()[SCALED] == printed(SCALED)
