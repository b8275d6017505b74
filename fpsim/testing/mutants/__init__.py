"""Broken quantizers and kernels, to test tests with: a clause on what each does wrong, and a factory."""

from fpsim.lazy import face
from fpsim.testing.mutants.kernels import KERNELS, KernelMutant
from fpsim.testing.mutants.quantizers import QUANTIZERS, Mutant
from fpsim.testing.mutants.score import MutationReport, Verdict, mutation_score

__all__ = ["KERNELS", "QUANTIZERS", "KernelMutant", "Mutant", "MutationReport", "Verdict", "mutation_score"]

__getattr__, __dir__ = face(__name__, __all__)
