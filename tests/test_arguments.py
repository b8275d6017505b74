"""Functions take fewer than ten arguments: more travel as records, arrays of a plan, or keywords that several share."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.test_architecture import files

HEADER = re.compile(r"def \w+\((.*?)\)(?: -> [^\n]*)?: *(?:#[^\n]*)?\n", re.DOTALL)
MANY = 10  # parameters, `self` aside
_KEYWORDS = "public: keywords of its own, each described by itself, which no other function shares"
_LINE = "typer makes one option of the command line from each parameter"
_LAUNCHED = (
    "a kernel of the GPU: the launcher types arrays one by one in C, but a tuple of arrays in Python, at every launch"
)
# Module -> functions with MANY or more parameters: how many, and why.
LISTED = {
    "analysis.models.recorder": {"record": (10, _KEYWORDS)},
    "analysis.studies.planning.plan": {"plan": (10, _KEYWORDS)},
    "analysis.studies.study": {"study": (10, _KEYWORDS)},
    "cli.study": {"study": (10, _LINE)},
    "cli.train": {"train": (17, _LINE)},
    "schedules.libraries.cublas": {"cublas": (11, "public: one keyword for each field of a cuBLAS algorithm")},
    "gpu.arithmetic.pair_kernels": {"elementwise_kernel.elementwise": (13, _LAUNCHED)},
    "gpu.hardware.triton_kernels": {
        "dot_kernel": (11, "Triton takes pointers and sizes one by one"),
        "scaled_dot_kernel": (10, "Triton takes pointers and sizes one by one"),
    },
    "gpu.products.fused_kernels": {
        "tile_kernel.product": (15, _LAUNCHED), "specified_kernel.product": (15, _LAUNCHED),
    },
}  # fmt: skip


def functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield every function of a module, the inner ones too, by its full name, with its number of parameters."""
    pending: list[tuple[ast.AST, tuple[str, ...]]] = [(ast.parse(text), ())]
    while pending:
        node, owners = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            owners = (*owners, node.name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield ".".join(owners), parameters(node)
        pending += [(child, owners) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


def may_have_many(text: str) -> bool:
    """Return whether some function's header has as many commas as MANY parameters; reading all others takes seconds."""
    return any(header.count(",") >= MANY - 1 for header in HEADER.findall(text))


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of a function's parameters; `self` and `cls` don't count, `*args` and `**keywords` do."""
    arguments = function.args
    positional = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    bound = positional[:1] in (["self"], ["cls"])
    rest = sum(one is not None for one in (arguments.vararg, arguments.kwarg))
    return len(positional) - bound + len(arguments.kwonlyargs) + rest


def test_functions_take_fewer_than_ten_arguments_or_are_listed_with_the_reason() -> None:
    found: dict[str, dict[str, int]] = {}
    for module, file in files().items():
        text = file.read_text()
        many = {name: count for name, count in functions(text) if count >= MANY} if may_have_many(text) else {}
        if many:
            found[module] = many
    listed = {module: {name: count for name, (count, _) in names.items()} for module, names in LISTED.items()}
    assert found == listed, (
        f"pass more than {MANY - 1} arguments as records of one noun each, or as arrays of a plan, "
        "or list the function in LISTED with the reason"
    )


def test_all_kinds_of_parameters_and_inner_functions_count() -> None:
    text = """
class A:
    def method(self, a, /, b, *args, c=1, **keywords):
        def inner(a, b): ...
    @classmethod
    async def made(cls, a): ...
"""
    assert not may_have_many(text)
    assert may_have_many(f"def many({', '.join('abcdefghij')}) -> None:\n    ...")
    assert dict(functions(text)) == {"A.method": 5, "A.method.inner": 2, "A.made": 1}
