"""The floors of the package: imports point down only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.processes import ROOT

# The first prefix that fits a module, without "fpsim.", gives its floor.
FLOORS = {
    "__main__": 4,
    "cli": 4,
    "commands": 4,
    "analysis.study": 4,
    "analysis": 3,
    "testing": 3,
    "gpu": 3,
    "train": 3,
    "explain": 3,
    "policy_diff": 3,
    "format_type": 0,
    "formats": 0,
    "finfo": 0,
    "rounding": 0,
    "policies": 0,
    "errors": 0,
    "flags": 0,
    "float_class": 0,
    "matrix_unit": 0,
    "units": 0,
    "accumulators": 0,
    "core": 1,
    "kernels": 2,
    "threads": 2,
    "stages": 2,
    "arrays": 2,
    "cast": 2,
    "cast_stages": 2,
    "elementwise": 2,
    "operands": 2,
    "operation": 2,
    "keywords": 2,
    "evaluate": 2,
    "arithmetic_routes": 2,
    "arithmetic": 2,
    "comparison": 2,
    "conversion": 2,
    "rounding_context": 2,
    "encoded_array": 2,
    "integer_format": 0,
    "log_format": 0,
    "tiling": 0,
    "scale_report": 0,
    "scaling": 0,
    "scalings": 0,
    "element": 2,
    "scaled": 2,
    "scaled_cast": 2,
    "scaled_decode": 2,
    "scaled_file": 2,
    "scaled_stages": 2,
    "affine_stages": 2,
    "tile_scales": 2,
    "facts": 2,
    "scale_counts": 2,
    "scale_steps": 2,
    "scale_state": 2,
    "clipping": 2,
    "torch_library": 3,
    "torch_recipe": 3,
    "torch_linear": 3,
    "torch_ops": 3,
    "matmul": 2,
    "dot_add": 2,
    "unit_plan": 2,
    "unit_operands": 2,
    "unit_product": 2,
    "unit_matmul": 2,
    "unit_request": 2,
    "unit_sums": 2,
    "machine": 2,
    "float_operations": 2,
    "unit_side": 2,
    "accumulate": 2,
    "accumulator_product": 2,
    "reduce": 2,
    "schedules.explain": 3,
    "schedules.batch": 3,
    "schedules": 0,
    "scheduled_product": 2,
    "lane_dots": 2,
    "lane_product": 2,
    "epilogue": 2,
}
PACKAGES = ("core", "kernels", "analysis", "testing", "gpu", "train", "schedules")


class Import(NamedTuple):
    """One imported name: where, and which module."""

    file: str
    line: int
    module: str
    level: int


def files() -> Iterator[tuple[str, Path]]:
    """(module without 'fpsim.', file) of every source file but the one that lists the public names."""
    package = ROOT / "fpsim"
    for folder in (package, *(package / name for name in PACKAGES)):
        for file in sorted(folder.glob("*.py") if folder == package else folder.rglob("*.py")):
            parts = file.relative_to(package).with_suffix("").parts
            if parts != ("__init__",):
                yield ".".join(parts).removesuffix(".__init__"), file


def imports(file: Path) -> Iterator[Import]:
    """Every import of a file, those inside functions too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file.name, node.lineno, alias.name, 0)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(file.name, node.lineno, f"{node.module or ''}.{alias.name}", node.level)


def floor(module: str) -> int | None:
    """The floor of a module without 'fpsim.', or of a name in it; None where it has none."""
    found = [prefix for prefix in FLOORS if module == prefix or module.startswith(prefix + ".")]
    return FLOORS[found[0]] if found else None


def test_every_folder_and_file_of_the_package_has_a_floor() -> None:
    folders = {path.name for path in (ROOT / "fpsim").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(PACKAGES) & folders, "a new folder needs a place in PACKAGES and FLOORS"
    homeless = [module for module, _ in files() if floor(module) is None]
    assert not homeless, f"give these a floor in tests/test_architecture.py: {homeless}"
    assert len(list(files())) > 20


def test_imports_point_down_only() -> None:
    wrong = []
    for module, file in files():
        for found in imports(file):
            target = floor(found.module.removeprefix("fpsim.")) if found.module.startswith("fpsim.") else None
            here = floor(module)
            if file.name == "__init__.py" and found.module.startswith(f"fpsim.{module}."):
                continue  # a package lists its public names
            if target is not None and here is not None and target > here:
                wrong.append(f"{module} (floor {here}) imports {found.module} (floor {target}), line {found.line}")
    assert not wrong, "imports point down only: " + "; ".join(wrong)


def test_imports_are_absolute_and_go_through_fpsim() -> None:
    wrong = [
        f"{module}, line {found.line}: {'.' * found.level}{found.module}"
        for module, file in files()
        for found in imports(file)
        if found.level or found.module.partition(".")[0] in PACKAGES
    ]
    assert not wrong, "imports are absolute and go through fpsim: " + "; ".join(wrong)


def test_data_needs_neither_numba_nor_arrays_of_the_package() -> None:
    wrong = [
        f"{module}, line {found.line}: {found.module}"
        for module, file in files()
        if floor(module) == 0
        for found in imports(file)
        if found.module.partition(".")[0] in {"numba", "llvmlite", "torch"}
    ]
    assert not wrong, "floor 0 is data, without numba: " + "; ".join(wrong)


def test_matplotlib_is_imported_in_one_file_only() -> None:
    users = {module for module, file in files() for found in imports(file) if found.module.startswith("matplotlib")}
    assert users <= {"analysis.plots"}, f"matplotlib is imported in analysis/plots.py only; found {users}"
