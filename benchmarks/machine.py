"""Description of the machine that a rate was measured on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform

from fpsim.cpu.processor import described

LIBRARIES = ("numpy", "numba", "ml_dtypes", "torch", "jax", "gfloat", "mmasim", "mmaemu")


def processor() -> str:
    """Return the name of the processor with its family and model."""
    about = described()
    family = f" (family {about['family']}, model {about['model']})" if "family" in about else ""
    return (about.get("brand") or platform.processor() or platform.machine()) + family


def version(library: str) -> str | None:
    """Return the installed version of a library, or None."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe() -> dict[str, object]:
    """Return processor, cores, system, versions, date and load as a record keeps them."""
    return {
        "machine": platform.node(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in LIBRARIES},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }
