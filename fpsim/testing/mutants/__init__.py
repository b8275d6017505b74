"""Broken quantizers and kernels as data, for tests of tests: what each does wrong, and a factory that makes it."""

from fpsim.lazy import face
from fpsim.testing.mutants.kernels import KERNELS, KernelMutant
from fpsim.testing.mutants.quantizers import QUANTIZERS, Mutant
from fpsim.testing.mutants.score import MutationReport, Verdict, mutation_score

__all__ = ["KERNELS", "QUANTIZERS", "KernelMutant", "Mutant", "MutationReport", "Verdict", "mutation_score"]

__getattr__, __dir__ = face(__name__, __all__)
