"""Instructions of loops counted in assembly, and the limit that binds a row. Nothing is timed."""

from __future__ import annotations

import json
import platform
import re
from typing import Any

import numpy as np
import pytest

from benchmarks import limits
from benchmarks.counting.assembly import inner_loops
from benchmarks.counting.bounds import COUNTS, bound, counted, counts, share
from benchmarks.counting.instructions import PAGE, HotLoop, cost, hot, table, works
from tests.kit.processes import python
from tests.kit.sweeps import in_turn

# A loop around two others: the first makes 16 elements a turn, the second is the scalar end.
ASSEMBLY = """
\t.globl\tkernel
kernel:
\txorl\t%eax, %eax
.LBB0_1:
\tincq\t%rcx
.LBB0_2:
\tvmovdqu64\t(%rsi,%rax,4), %zmm0
\tvpaddd\t%zmm1, %zmm0, %zmm2        # a comment
\tvpmuludq\t%zmm3, %zmm2, %zmm2
\tvmulps\t%ymm4, %ymm5, %ymm6
\tvpcmpltud\t%zmm0, %zmm1, %k1
\tvpmovdb\t%zmm2, (%rdi,%rax)
\taddq\t$16, %rax
\tcmpq\t%rax, %rdx
\tjne\t.LBB0_2
.LBB0_4:
\taddl\t(%rsi), %ebx
\tdecq\t%rdx
\tjne\t.LBB0_4
\tcmpq\t%rcx, %r8
\tjb\t.LBB0_1
\tretq
other:
.LBB1_1:
\tvpaddd\t%xmm1, %xmm0, %xmm0
\tjmp\t.LBB1_1
"""
LIMITS = {"read": 16.0, "copy": 16.0, "integer": 128.0, "float": 64.0, "multiply": 32.0, "scalar": 8.0}
NOTHING = dict.fromkeys(("integer", "float", "multiply", "scalar"), 0.0)


def test_only_innermost_loops_are_found_with_their_functions() -> None:
    assert [(loop.function, loop.instructions) for loop in inner_loops(ASSEMBLY)] == [
        ("kernel", 9), ("kernel", 3), ("other", 2),
    ]  # fmt: skip


def test_vector_instructions_count_once_per_lane_and_moves_not_at_all() -> None:
    first, second, third = inner_loops(ASSEMBLY)
    # vpaddd, vpmuludq, vpcmpltud and vpmovdb by 16 lanes, vmulps by 8
    assert first.operations() == {"integer": 4 * 16 + 8, "float": 8, "multiply": 8, "scalar": 3}
    assert second.operations() == {**NOTHING, "scalar": 3}
    assert third.operations() == {**NOTHING, "integer": 4, "scalar": 1}


def test_stores_count_the_bytes_that_reach_memory() -> None:
    assert [loop.stored() for loop in inner_loops(ASSEMBLY)] == [16, 0, 0]


@in_turn(
    "line, stored",
    [
        ("vmovups\t%zmm0, 64(%rdi)", 64),
        ("vmovntps\t%zmm0, 64(%rdi)", 0), ("vpmovwb\t%zmm0, (%rdi)", 32),
        ("vcvtps2ph\t$0, %zmm0, (%rdi)", 32),
        ("vmovdqu64\t(%rdi), %zmm0", 0), ("vpaddd\t(%rdi), %zmm0, %zmm1", 0), ("vpmovusdb\t%ymm0, (%rdi,%rax)", 8),
        ("vmovdqu8\t%zmm0, (%rdi,%rax) {%k1}", 64), ("movq\t%rax, (%rdi)", 0),
        ("vmovq\t%xmm1, (%r8,%rbx)", 8), ("vpextrb\t$4, %xmm1, (%rdi,%rax)", 1), ("vmovss\t%xmm5, 4(%rcx,%rsi,4)", 4),
    ],
)  # fmt: skip
def test_a_store_is_told_from_a_load(line: str, stored: int) -> None:
    (loop,) = inner_loops(f"f:\n.LBB0_1:\n\t{line}\n\tjne\t.LBB0_1\n")
    assert loop.stored() == stored


def test_the_hot_loop_makes_most_elements() -> None:
    loops = inner_loops(ASSEMBLY)
    assert hot(loops, HotLoop("kernel", 1)) == loops[0]
    assert hot(loops, HotLoop("kernel", ("vpaddd", 2.0))) == loops[0]
    assert hot(loops, HotLoop("kernel", ("vpaddd", 2.0), lacks="vpmuludq")) == loops[2]
    with pytest.raises(LookupError, match="none of the 3 loops of kernel has what is counted"):
        hot(loops, HotLoop("kernel", 1, has="vfmadd231ps"))


def test_the_shortest_loop_is_that_of_usual_operands() -> None:
    def turn(label: str, additions: int, register: str) -> str:
        return (
            f".{label}:\n"
            + f"\tvpaddd\t%{register}1, %{register}2, %{register}2\n" * additions
            + (f"\tvmovdqu\t%{register}2, (%rdi)\n\tjne\t.{label}\n")
        )

    rare, usual, rest = loops = inner_loops(
        "f:\n"
        + turn("LBB0_1", 5, "ymm")
        + turn("LBB0_2", 2, "xmm")
        + turn("LBB0_3", 1, "xmm").replace("movdqu", "movd")
    )
    assert hot(loops, HotLoop("kernel", 4)) == rare
    assert hot(loops, HotLoop("kernel", 4, shortest=True)) == usual  # the end makes one element
    assert rest.stored() == 4


def test_a_loop_that_copies_makes_no_elements() -> None:
    copies = inner_loops("f:\n.LBB0_1:\n\tvmovups\t(%rsi), %ymm0\n\tvmovups\t%ymm0, (%rdi)\n\tjne\t.LBB0_1\n")
    with pytest.raises(LookupError, match="none of the 1 loops of kernel"):
        hot(copies, HotLoop("kernel", 4))


def test_a_cost_is_operations_per_element() -> None:
    assert cost(inner_loops(ASSEMBLY), HotLoop("kernel", 1)) == {
        "integer": 4.5, "float": 0.5, "multiply": 0.5, "scalar": 0.188,
    }  # fmt: skip


def test_the_slowest_of_bytes_and_operations_binds() -> None:
    def work(read: float = 0, written: float = 0, **operations: float) -> dict[str, Any]:
        return {"read": read, "written": written, "operations": NOTHING | operations}

    assert bound(work(integer=32, float=8), LIMITS) == ("integer", 32 / 128)
    assert bound(work(integer=32, float=17), LIMITS) == ("float", 17 / 64)
    assert bound(work(integer=32, multiply=9), LIMITS) == ("multiply", 9 / 32)
    # a copy of 16 bytes/s, of which half is reading at 16: a byte written takes 2/16 - 1/16
    assert bound(work(4, 1), LIMITS) == ("memory", 5 / 16)
    assert bound(work(4, 1), LIMITS | {"copy": 8.0}) == ("memory", 4 / 16 + 3 / 16)
    # nothing is read more slowly than it is copied
    assert bound(work(4, 1), LIMITS | {"read": 4.0}) == ("memory", 4 * 2 / 16)


def test_a_share_is_the_rate_times_the_least_time() -> None:
    works = {"some": {"read": 4, "written": 1, "operations": NOTHING, "rows": ["encode E4M3", "tiles*"]}}
    assert share(2.0, "encode E4M3", works, LIMITS) == {"bound": "memory", "share": 2 * 5 / 16}
    assert share(2.0, "tiles, 128", works, LIMITS) == {"bound": "memory", "share": 2 * 5 / 16}
    assert share(2.0, "encode E4M3, up", works, LIMITS) is None
    assert counted("x", {}) is None


@pytest.mark.parametrize("kind", sorted(limits.MNEMONICS))
def test_loops_of_limits_have_the_instructions_that_are_claimed(kind: str) -> None:
    (loop,) = inner_loops(limits.loop(kind).assembly)
    assert loop.count(limits.MNEMONICS[kind]) == 48
    assert loop.instructions - 48 <= 4


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names a processor of that kind")
def test_limits_are_measured_by_the_vectors_of_the_processor_that_numba_is_told() -> None:
    program = "from benchmarks import limits; print(limits.lanes(), 'ymm' in limits.loop('integer').assembly)"
    assert python(program, NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="") == "8 True"


def test_the_loop_that_reads_goes_by_vectors() -> None:
    from fpsim.runtime.compile import Kernel

    total: Any = limits.total
    fresh = Kernel(total.py_func, targetoptions={"nopython": True})  # one from the disk has no assembly
    fresh(np.zeros(256, np.uint64))
    (loop,) = inner_loops(fresh.inspect_asm(fresh.signatures[0]))
    assert loop.lanes("vpxorq?|vpternlogq|vxorps|vxorpd") >= 128  # one of three operands takes two vectors


def test_a_loop_that_compiled_to_something_else_is_refused() -> None:
    assembly = re.sub("vpaddd", "vpsubd", limits.loop("integer").assembly, count=1)
    with pytest.raises(RuntimeError, match="must have 48 instructions vpaddd"):
        limits.check("integer", assembly)


def test_the_kept_counts_are_those_of_the_table() -> None:
    kept = json.loads(COUNTS.read_text())
    page = PAGE.read_text()
    assert table(kept) in page
    for processor, one in kept.items():
        assert set(one["limits"]) == set(limits.UNITS)
        assert counts(processor) == one["works"]
        assert set(one["works"]) == set(works())


def test_drift_and_best_of_two_measurements() -> None:
    assert limits.best({"read": 2.0, "copy": 3.0}, {"read": 1.0, "copy": 4.0}) == {"read": 2.0, "copy": 4.0}
    assert limits.drift({"read": 2.0, "copy": 3.0}, {"read": 1.0, "copy": 3.0}) == 1.0
