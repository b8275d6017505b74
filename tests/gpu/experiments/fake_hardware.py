"""A GPU that is none: the functions of fpsim.gpu.hardware, computed by the emulator, with differences on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.gpu.experiments.checks import arrays_of
from fpsim.gpu.lab.bench_rows import BenchWork
from fpsim.gpu.lab.judge import as_words
from fpsim.gpu.lab.lab import unit_name
from fpsim.gpu.lab.model import LibraryModel, ProductProblem, predict
from fpsim.schedules.libraries.cublas_choice import Fields, schedule_of

Words = npt.NDArray[Any]
Plant = Callable[[str, Words], Words]
FORMATS = {"e4m3": fp.E4M3, "e5m2": fp.E5M2, "fp16": fp.FP16, "bf16": fp.BF16}


class FakeGpu:
    """The emulator in the place of a GPU.

    models: what it "does", by the name of a function or of a recipe; plant: changes what a function gives;
    fails: names of functions that raise; seconds: that an element of a row of the benchmark takes, by the row's name.
    """

    def __init__(
        self, models: dict[str, LibraryModel] | None = None, plant: Plant | None = None, fails: tuple[str, ...] = (),
        seconds: dict[str, float] | None = None,
    ) -> None:  # fmt: skip
        self.models, self.fails = models or {}, fails
        self.plant = plant or (lambda _, found: found)
        self.seconds = seconds or {}
        self.calls: list[str] = []

    def about(self) -> dict[str, str]:
        """Return the properties of no GPU."""
        return {"gpu": "the emulator", "capability": "9.0", "driver": "none", "torch": "none", "cuda": "none"}

    def _returned(self, name: str, words: Words) -> Words:
        return self.plant(name, words)

    def _starts(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise RuntimeError(f"CUDA error: {name} was told to fail")

    def dot(
        self, a: Words, b: Words, c: Any = None, pair: tuple[str, str] = ("e4m3", "e4m3"), *, block_k: int = 128,
        max_num_imprecise_acc: int | None = None, block_m: int = 64, block_n: int = 64,
    ) -> Words:  # fmt: skip
        """Do as fpsim.gpu.hardware.dot."""
        self._starts("dot")
        limit = "" if max_num_imprecise_acc is None else f", max_num_imprecise_acc={max_num_imprecise_acc}"
        model = LibraryModel(f"triton({block_k}{limit})")
        if block_m < 64 and pair == ("e4m3", "e4m3"):
            model = LibraryModel("FLAT", "hopper_f16_f32", k_order="pairs")
        problem = ProductProblem("", unit_name("hopper", pair), a, b, c)
        return self._returned("dot", predict(problem, self.models.get("dot", model)))

    def scaled_dot(
        self, a: Words, b: Words, pair: tuple[str, str], scale_a: Any, scale_b: Any, *, a_first: bool, fused: bool
    ) -> Words:
        """Do as fpsim.gpu.hardware.scaled_dot."""
        self._starts("scaled_dot")
        model = "cutlass_blockwise('a_first'" if a_first else "deepgemm('1d1d'"
        problem = ProductProblem("", unit_name("hopper", pair), a, b, None, scale_a, scale_b)
        return self._returned(
            "scaled_dot", predict(problem, LibraryModel(f"{model}{'' if fused else ', fused=False'})"))
        )

    def chain_matmul(self, a: Words, b: Words, **options: Any) -> Words:
        """Do as fpsim.gpu.hardware.chain_matmul."""
        self._starts("chain_matmul")
        return self._returned("chain_matmul", as_words(fp.matmul(a, b, **options)))

    def scaled_mm(
        self, a: Words, b: Words, pair: tuple[str, str], scale_a: Any, scale_b: Any, *, recipe: str, out: str,
        fast_accum: bool, bias: Words | None,
    ) -> Words:  # fmt: skip
        """Do as fpsim.gpu.hardware.scaled_mm."""
        self._starts(recipe)
        flat = LibraryModel(f"cublas('sm_90'{', fast_accum=True' if fast_accum else ''})")
        model = LibraryModel("cublas('sm_90', family='block_scaled')") if "128" in recipe else flat
        problem = ProductProblem("", unit_name("hopper", pair), a, b, None, scale_a, scale_b, bias, out)
        return self._returned(recipe, predict(problem, self.models.get(recipe, model)))

    def matmul(self, a: Words, b: Words, kind: str, *, out: str, layout: str, reduced: bool = False) -> Words:
        """Do as fpsim.gpu.hardware.matmul."""
        self._starts("matmul")
        aligned = a.shape[1] % 8 == 0 and b.shape[1] % 8 == 0
        model = LibraryModel("cublas('sm_90')" if aligned else "cublas('sm_90', family='cutlass', stages=13)")
        model = LibraryModel("FLAT") if kind == "tf32" else model
        problem = ProductProblem("", unit_name("hopper", (kind, kind)), a, b, out=out)
        return self._returned("matmul", predict(problem, self.models.get("matmul", model)))

    def lt_matmul(
        self, a: Words, b: Words, pair: tuple[str, str], *, out: str, fast_accum: bool, scale_a: Any = None,
        scale_b: Any = None, layout: str,
    ) -> tuple[Words, Fields]:  # fmt: skip
        """Do as fpsim.gpu.hardware.lt_matmul."""
        self._starts("lt_matmul")
        aligned = a.shape[1] % 8 == 0 and b.shape[1] % 8 == 0
        fields = Fields(66, 1, 2, 2, 0, 0, 35, 0, 0) if aligned else Fields(21, 1, 3, 1, 0, 0, 13, 0, 0)
        model = LibraryModel(str(schedule_of(fields, fast_accum=fast_accum)))
        first, second = (None if scale is None else np.array(scale, np.float32) for scale in (scale_a, scale_b))
        problem = ProductProblem("", unit_name("hopper", pair), a, b, None, first, second, out=out)
        return self._returned("lt_matmul", predict(problem, model)), fields

    def lt_fields(
        self, m: int, n: int, k: int, pair: tuple[str, str], *, out: str, layout: str, fast_accum: bool,
        workspace: int = 1 << 25,
    ) -> Fields:  # fmt: skip
        """Do as fpsim.gpu.hardware.lt_fields, for a library without split-K."""
        self._starts("lt_fields")
        return Fields(66, 0, 1, 2, 0, 0, 36 if pair[0] == "e4m3" else 35, 0, 0)

    def twin(self, name: str, *arrays: Any, **options: Any) -> Any:
        """Do as fpsim.gpu.hardware.twin."""
        self._starts(name)
        found = getattr(fp, name)(*arrays, **options)
        if isinstance(found, fp.Scaled):
            first, *others = arrays_of(found)
            return self._returned(name, first), *others
        if isinstance(found, tuple):
            return self._returned(name, as_words(found[0])), as_words(np.asarray(found[1]))
        return self._returned(name, as_words(found))

    def torch_cast(self, x: Any, target: str) -> Words:
        """Do as fpsim.gpu.hardware.torch_cast, of torch before 2.12."""
        self._starts("torch_cast")
        return self._returned("torch_cast", fp.encode(x, FORMATS[target], overflow="torch<2.12"))

    def sweep(self, target: str) -> tuple[int, int, str]:
        """Do as fpsim.gpu.hardware.sweep."""
        self._starts("sweep")
        return 1 << 32, 0, ""

    def ptx_cast(self, x: Any, target: str) -> Words:
        """Do as fpsim.gpu.hardware.ptx_cast."""
        self._starts("ptx_cast")
        overflow = "saturate" if target in ("e4m3", "e5m2") else "nonfinite"
        return self._returned("ptx_cast", fp.encode(x, FORMATS[target], overflow=overflow))

    def measure(self, work: BenchWork, size: int, seconds: float) -> list[float]:
        """Measure as fpsim.gpu.hardware.measure: 4 TB/s, or 0.001 ns per product, unless told otherwise."""
        self._starts(work.name)
        self.calls[-1] = f"{work.name} {size}"
        each = self.seconds.get(work.name, work.moved / 4e12 or 1e-12) * work.count(size)
        return [2 * each, each, 0.5 * each]

    def room(self) -> int:
        """Do as fpsim.gpu.hardware.room."""
        return 1 << 37


_GPU = FakeGpu()
chain_matmul = _GPU.chain_matmul
about, dot, scaled_dot, scaled_mm = _GPU.about, _GPU.dot, _GPU.scaled_dot, _GPU.scaled_mm
matmul, lt_matmul, lt_fields = _GPU.matmul, _GPU.lt_matmul, _GPU.lt_fields
twin, torch_cast, ptx_cast, sweep = _GPU.twin, _GPU.torch_cast, _GPU.ptx_cast, _GPU.sweep
measure, room = _GPU.measure, _GPU.room
