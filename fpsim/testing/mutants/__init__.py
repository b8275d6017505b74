"""Broken code as data, for tests of tests: what each does wrong, and a factory that makes it."""

from fpsim.lazy import face
from fpsim.testing.mutants.kernels import KERNELS, KernelMutant

__all__ = ["KERNELS", "KernelMutant"]

__getattr__, __dir__ = face(__name__, __all__)
