"""Every kind of schedule as a row, with usual parameters, its source and how well it is proven."""

from __future__ import annotations

from fpsim.schedules.cublas import GEMV, GEMV_SLICES, ON, cublas
from fpsim.schedules.libraries import FLAT, cutlass_2xacc, cutlass_blockwise, deepgemm, torch_rowwise, triton
from fpsim.schedules.schedule import Schedule

CHIPS = {"sm_89": "ada", "sm_90": "hopper", "sm_100": "blackwell"}


def _cublas_rows() -> list[Schedule]:
    """The families on every architecture."""
    rows = []
    for arch, chip in CHIPS.items():
        for family in ON[chip]:
            if family == "gemv":
                options = sorted([*GEMV[arch], GEMV_SLICES])
                rows += [cublas(arch, family=family, option=option) for option in options]
            elif family == "gemm_sn":
                rows += [cublas(arch, family=family, option=option) for option in (0, 1)]
            elif family == "cutlass":
                rows += [cublas(arch, family=family, stages=stages) for stages in (0, 7, 13, 19)]
            else:
                rows.append(cublas(arch, family=family))
            if family in ("nvjet", "xmma"):
                rows.append(cublas(arch, family=family, fast_accum=True))
    return rows


ROWS: tuple[Schedule, ...] = (
    FLAT, cutlass_2xacc(), cutlass_blockwise(), deepgemm("1d2d"), deepgemm("1d1d"), deepgemm("1d1d", "sm_100"),
    triton(), triton(128, max_num_imprecise_acc=64), torch_rowwise(), torch_rowwise(fast_accum=True), *_cublas_rows(),
)  # fmt: skip
