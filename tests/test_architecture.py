"""The floors of the package: imports point down only, in no circle, and no folder is a heap."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.kit.processes import ROOT

# Package, room or file of fpsim -> its floor: a file imports its own and lower floors. The rooms of analysis stand on
# several: the trainer measures, and studies read recipes of the trainer.
FLOORS = {
    "deprecation": 0, "errors": 0, "exact_json": 0, "files": 0, "interrupts": 0, "lazy": 0, "reload": 0, "runtime": 0,
    "formats": 1,
    "arrays": 2, "matrix_units": 2, "display": 2,
    "core": 3,
    "casts": 4,
    "arithmetic": 5, "scaling": 5,
    "sums": 6, "instructions": 6,
    "schedules": 7,
    "products": 8, "recipes": 8, "analysis.tensors": 8,
    "analysis.measures": 9, "analysis.models": 9, "torch": 9, "probe": 9, "testing": 9, "gpu": 9,
    "cpu": 9, "divergence": 9, "norms": 9, "splits": 9,
    "train": 10,
    "analysis": 11,  # its face, and studies
    "fpsim": 12,  # its public face
    "cli": 13,
    "__main__": 14,
}  # fmt: skip
# Data: what describes formats, units, accumulators, scalings and schedules, and what is written in words.
DATA = (
    "deprecation", "errors", "exact_json", "files", "interrupts", "lazy", "reload", "formats", "matrix_units",
    "sums.accumulators", "recipes", "scaling.scaling", "scaling.recipes", "scaling.tiling", "scaling.report",
    "schedules",
)  # fmt: skip
# What loops know: of formats the numbers of modes and flags, of matrix units those of rules; the loops of casts.
BELOW_LOOPS = ("reload", "core.", "runtime.", "formats.", "matrix_units.matrix_unit", "casts.loops", "casts.half")
LARGEST = 20  # Python files of a folder
LONGEST = 400  # lines of a file
VAGUE = {"asked", "given", "on", "own", "what"}  # names that do not say what they hold
# Module -> those that users write, or read in a report.
PUBLIC_WORDS = {
    "analysis.models.monitors": {"asked"}, "analysis.studies.budget.budget": {"on"},
    "analysis.studies.budget.report": {"on"}, "analysis.studies.diagnosis.diagnosed": {"on"},
    "analysis.studies.diagnosis.diagnose": {"on"},
    "gpu.lab.report": {"what"}, "testing.products.report": {"asked"}, "testing.quantizers.report": {"asked"},
}  # fmt: skip
# Classes that share a name: users write them so, or read them in what public functions return. Name -> (files, reason).
SHARED = {
    "Comparison": (
        {"analysis.measures.comparison", "schedules.trees.difference", "train.comparisons.comparison"},
        "public: fp.analysis.Comparison, fp.schedules.Comparison and fp.train.Comparison, of the three compare()",
    ),
    "Explanation": (
        {"casts.explanation", "schedules.trees.explain"},
        "public: fp.Explanation and fp.schedules.Explanation, of explain()",
    ),
    "Product": (
        {"divergence.product", "recipes.linear_recipe"},
        "public: fp.torch.Product; docs/lockstep.md has users make the other, of the products that they compare",
    ),
    "Scaled": ({"scaling.scaled", "gpu.scaling.scaled"}, "public: fp.gpu.Scaled is the GPU's twin of fp.Scaled"),
    "Verdict": (
        {"analysis.studies.diagnosis.verdict", "testing.mutants.score"},
        "public: fp.analysis.Verdict and fp.testing.mutants.Verdict",
    ),
}  # fmt: skip
FOLDERS = ("fpsim", "analysis", "gpu", "tests", "benchmarks")


class Import(NamedTuple):
    """An imported module or name: where it stands, and what it is called in full."""

    line: int
    name: str
    level: int


@cache
def files() -> dict[str, Path]:
    """Return the file of each module, by its name without 'fpsim.'; an __init__ has its package's name."""
    found = {}
    for folder in ("fpsim", "analysis", "gpu"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            parts = parts[1:] if folder == "fpsim" and len(parts) > 1 else parts
            name = ".".join(parts).removesuffix("__init__").rstrip(".")
            found[name or "fpsim"] = file
    return found


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Every statement, the inner ones too. Most of what ast.walk goes through are expressions, which import nothing."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):  # a lambda's body is an expression
        inner = getattr(node, name, ())
        for each in inner if isinstance(inner, list) else ():
            if isinstance(each, ast.stmt):
                yield each
            yield from statements(each)


@cache
def read(file: Path) -> tuple[list[Import], list[str]]:
    """Return every import of a file, those in functions, for type checkers and by `deferred` too; and its classes."""
    found = []
    tree = ast.parse(file.read_text())
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found += [Import(node.lineno, alias.name, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [Import(node.lineno, f"{node.module or ''}.{alias.name}", node.level) for alias in node.names]
        elif isinstance(node, ast.Assign):  # loops = deferred("fpsim.sums.loops")
            calls = [part for part in ast.walk(node.value) if isinstance(part, ast.Call)]
            named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "deferred"]
            found += [Import(node.lineno, ast.literal_eval(call.args[0]), 0) for call in named]
    return found, [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def imports(file: Path) -> list[Import]:
    """Every import of a file."""
    return read(file)[0]


@cache
def arrows() -> dict[str, dict[str, int]]:
    """Return the modules of the package that each module imports, with the line."""
    modules = files()
    found: dict[str, dict[str, int]] = {module: {} for module in modules}
    for module, file in modules.items():
        for one in imports(file):
            target = "fpsim" if one.name == "fpsim" else one.name.removeprefix("fpsim.")
            if target not in modules:
                target = target.rpartition(".")[0]
            if one.name.partition(".")[0] == "fpsim" and target in modules and target != module:
                found[module].setdefault(target, one.line)
    return found


def room(module: str) -> str:
    """Return the row of FLOORS for a module: the longest one with which its name without 'fpsim.' begins."""
    parts = module.split(".")
    return next((name for n in (2, 1) if (name := ".".join(parts[:n])) in FLOORS), parts[0])


def floor(module: str) -> int:
    """Return the floor of a module, named without 'fpsim.'."""
    return FLOORS[room(module)]


def classes() -> dict[str, set[str]]:
    """Class -> the modules of the package and of benchmarks/ that define one of that name, outside of functions."""
    modules = files() | {str(file.relative_to(ROOT)): file for file in (ROOT / "benchmarks").rglob("*.py")}
    found: dict[str, set[str]] = {}
    for module, file in modules.items():
        for name in read(file)[1]:
            found.setdefault(name, set()).add(module)
    return found


def circles(graph: dict[str, dict[str, int]]) -> list[list[str]]:
    """Return the groups of modules that import each other in a circle, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for target in graph[module]:
            if target not in order:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], order[target])
        if lowest[module] == order[module]:
            group = [stack.pop()]
            while group[-1] != module:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for module in graph:
        if module not in order:
            visit(module)
    return found


def test_every_package_and_file_of_fpsim_has_a_floor() -> None:
    homeless = sorted({room(module) for module in files()} - set(FLOORS))
    assert not homeless, f"give these a floor in tests/test_architecture.py: {homeless}"
    assert len(files()) > 150


def test_the_table_of_contributing_has_these_floors() -> None:
    rows = re.findall(r"^\| (\d+) \| `([^`]+)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    named = {}
    for number, paths in rows:
        for path in paths.split():
            module = path.removeprefix("fpsim/").rstrip("/").removesuffix(".py")
            named["fpsim" if module == "__init__" else module] = int(number)
    assert named == {name: number for name, number in FLOORS.items() if "." not in name}


def test_imports_point_down_only() -> None:
    wrong = [
        f"{module} (floor {floor(module)}) imports {target} (floor {floor(target)}), line {line}"
        for module, targets in arrows().items()
        for target, line in targets.items()
        if floor(target) > floor(module)
    ]
    assert not wrong, "imports point down only: " + "; ".join(wrong)


def test_no_circle_of_imports_is_found_even_for_type_checkers() -> None:
    found = circles(arrows())
    assert not found, "files that import each other, in a circle: " + "; ".join(" - ".join(one) for one in found)


def test_deferred_imports_are_arrows() -> None:
    assert {"scaling.run_tiles"} <= arrows()["scaling.encode"].keys()
    assert {"casts.pipelines"} <= arrows()["casts.cast"].keys()


def test_a_circle_would_be_found() -> None:
    graph: dict[str, dict[str, int]] = {"a": {"b": 1}, "b": {"c": 1}, "c": {"a": 1, "d": 1}, "d": {}}
    assert circles(graph) == [["a", "b", "c"]]


def test_packages_import_each_other_in_no_circle() -> None:
    graph: dict[str, dict[str, int]] = {name: {} for name in FLOORS}
    for module, targets in arrows().items():
        package = room(module)
        graph[package].update({room(target): 1 for target in targets if room(target) != package})
    assert not circles(graph)


def test_the_trainer_imports_nothing_of_analysis() -> None:
    wrong = [
        f"{module}, line {line}: {target}"
        for module, targets in arrows().items()
        if room(module) in ("train", "recipes", "divergence")
        for target, line in targets.items()
        if target.startswith("analysis")
    ]
    assert not wrong, "analysis imports the trainer, and the trainer nothing of analysis: " + "; ".join(wrong)


def test_imports_are_absolute_and_go_through_fpsim() -> None:
    wrong = [
        f"{module}, line {found.line}: {'.' * found.level}{found.name}"
        for module, file in files().items()
        for found in imports(file)
        if found.level or found.name.partition(".")[0] in ("analysis", "gpu", "tests", "benchmarks")
    ]
    assert not wrong, "imports are absolute and go through fpsim: " + "; ".join(wrong)


def test_data_is_read_without_numba_and_torch() -> None:
    wrong = [
        f"{module}, line {found.line}: {found.name}"
        for module, file in files().items()
        if any(module == name or module.startswith(name + ".") for name in DATA)
        for found in imports(file)
        if found.name.partition(".")[0] in {"numba", "llvmlite", "torch"}
    ]
    assert not wrong, "data is read without numba and torch: " + "; ".join(wrong)


def test_loops_know_the_scalar_core_and_no_description() -> None:
    wrong = [
        f"{module}, line {line}: {target}"
        for module, targets in arrows().items()
        if ".kernels." in module
        for target, line in targets.items()
        if not target.startswith(BELOW_LOOPS) and ".kernels." not in target
    ]
    assert not wrong, "files of kernels/ import the core, the runtime and other loops: " + "; ".join(wrong)


def test_matplotlib_is_imported_in_one_file_only() -> None:
    users = {m for m, file in files().items() for found in imports(file) if found.name.startswith("matplotlib")}
    users.discard("display.optional")  # for annotations alone
    named = {m for m, file in files().items() if 'load("matplotlib"' in file.read_text()}
    assert users | named <= {"display.figure"}, f"display/figure.py alone imports matplotlib; found {users | named}"


def test_no_folder_holds_more_files_than_a_newcomer_reads() -> None:
    full = {}
    for top in FOLDERS:
        for folder in (ROOT / top, *(path for path in (ROOT / top).rglob("*") if path.is_dir())):
            count = len([file for file in folder.glob("*.py") if file.name != "__init__.py"])
            if count > LARGEST:
                full[str(folder.relative_to(ROOT))] = count
    assert not full, f"folders of more than {LARGEST} files need rooms: {full}"


def test_no_file_is_longer_than_a_newcomer_reads() -> None:
    lines = {str(file.relative_to(ROOT)): file.read_text().count("\n")
             for top in FOLDERS for file in (ROOT / top).rglob("*.py")}  # fmt: skip
    long = {name: count for name, count in lines.items() if count > LONGEST}
    assert len(lines) > 1000
    assert not long, f"split files of more than {LONGEST} lines by their nouns: {long}"


def test_a_class_has_a_name_of_its_own() -> None:
    shared = {name: modules for name, modules in classes().items() if len(modules) > 1}
    listed = {name: modules for name, (modules, _) in SHARED.items()}
    wrong = [
        f"{name} ({', '.join(sorted(modules))})" for name, modules in shared.items() if modules != listed.get(name)
    ]
    assert not wrong, f"one class, one name; say what each is, as TableRow and HardwareRow do: {'; '.join(wrong)}"
    assert not listed.keys() - shared.keys(), "SHARED lists names that one class has"


def named(file: Path) -> Iterator[str]:
    """Yield the names of functions, classes, parameters and variables of a file that has vague ones."""
    text = file.read_text()
    if not re.search(rf"\b({'|'.join(VAGUE)})\b *([=:,()\]]|in\b|$)", text, re.MULTILINE):
        return  # words of comments alone; reading a thousand files takes seconds
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def test_names_say_what_they_hold() -> None:
    found = {module: VAGUE & set(named(file)) for module, file in files().items()}
    found |= {str(file.relative_to(ROOT)): VAGUE & set(named(file)) for top in ("tests", "benchmarks")
              for file in (ROOT / top).rglob("*.py")}  # fmt: skip
    assert {module: words for module, words in found.items() if words} == PUBLIC_WORDS


def test_no_module_of_a_public_package_hides_one_of_its_names() -> None:
    import fpsim as fp

    hidden = [
        f"fpsim.{module}"
        for module in files()
        for package, _, name in [module.rpartition(".")]
        if package in ("analysis", "cpu", "gpu", "gpu.hardware", "torch", "testing", "probe", "formats", "train")
        and callable(getattr(getattr(fp, package) if "." not in package else fp.gpu.hardware, name, None))
    ]
    assert not hidden, f"a module bears the name of a public function of its own package: {hidden}"
