"""Portable test vectors, written to files and compared with the answers of any implementation (docs/conformance.md)."""

from fpsim.lazy import face
from fpsim.testing.conformance.checking import ConformanceReport, ConformanceRow, check, make

__all__ = ["ConformanceReport", "ConformanceRow", "check", "make"]

__getattr__, __dir__ = face(__name__, __all__)
