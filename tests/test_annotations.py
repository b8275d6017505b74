"""Public functions name the types of their arguments and results; `Any` alone stays where a reason is given."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import fpsim as fp

pytest.importorskip("torch")

BARE = re.compile(r"(typing\.)?Any")
RESULTS = (
    "a NumPy scalar for scalars, else an array, or a tuple with flags: NumPy's own stubs have Any for such functions"
)
PASSED_ON = "keywords of another function, which checks them"
ON_GPU = "arrays of any library on the GPU, which share no protocol that type checkers know"
# Module, name of the function, annotations that are `Any` -> the reason. All are regular expressions.
LISTED = (
    (r"fpsim\.(arithmetic|norms|products|probe)\b.*", r".*", {"return"}, RESULTS),
    (r"fpsim\.formats\.float_format", r"Format\.ulp", {"return"}, RESULTS),
    (r".*", r"(\w+\.replace|attention)", {"changes"}, PASSED_ON),
    (r"fpsim\.arithmetic\.conversion", r"from_int", {"keywords", "return"}, PASSED_ON),
    (r"fpsim\.probe\.shapes\.lengths", r"sweep", {"options"}, PASSED_ON),
    (r"fpsim\.analysis\.models\.recording", r"Recording\.study", {"options", "return"},
     PASSED_ON + "; its report is defined on a higher floor"),
    (r"fpsim\.analysis\.studies\..*", r"\w+\.__init__", {"_search", "_measurer"}, "private fields of a report"),
    (r"fpsim\.gpu\..*", r".*", {"return", "a", "arrays", "b", "bias", "c", "codes", "counts", "hardware",
                                "keywords", "like", "options", "out", "scale_a", "scale_b", "scales",
                                "tensor_scale", "weight", "x"}, ON_GPU),
)  # fmt: skip


def public(module: ModuleType, seen: set[object]) -> Iterator[tuple[str, str, Any]]:
    """Yield (module, name, function) for the public functions of a module, and for methods of its public classes."""
    for name in [name for name in module.__all__ if not name.startswith("_")]:
        thing = getattr(module, name)
        home = getattr(thing, "__module__", "")
        if isinstance(thing, ModuleType):
            if thing.__name__.startswith("fpsim.") and hasattr(thing, "__all__") and thing not in seen:
                seen.add(thing)
                yield from public(thing, seen)
        elif inspect.isclass(thing) and home.startswith("fpsim."):
            for method, value in vars(thing).items():
                function = getattr(value, "__func__", getattr(value, "fget", getattr(value, "func", value)))
                if inspect.isfunction(function) and (method == "__init__" or not method.startswith("_")):
                    yield home, f"{thing.__name__}.{method}", function
        elif callable(thing) and home.startswith("fpsim."):
            yield home, name, inspect.unwrap(thing)


def bare(function: Any) -> set[str]:
    """Return the arguments of a function, or "return", whose annotation is `Any` and nothing else."""
    annotations = getattr(function, "__annotations__", {})
    return {name for name, text in annotations.items() if BARE.fullmatch(str(text))}


def test_public_functions_name_their_types_or_are_listed_with_the_reason() -> None:
    functions = [entry for entry in public(fp, {fp}) if not entry[0].startswith("fpsim.train")]
    assert len(functions) > 600
    wrong, used = [], set()
    for module, name, function in functions:
        left = bare(function)
        for entry in LISTED:
            if left and re.fullmatch(entry[0], module) and re.fullmatch(entry[1], name) and left & entry[2]:
                left = left - entry[2]
                used.add(entry[:2])
        wrong += [f"{module}.{name}({argument})" for argument in sorted(left)]
    assert not wrong, f"name the type of these, by a protocol or union if it is several: {wrong}"
    assert used == {entry[:2] for entry in LISTED}, "LISTED has rows that nothing needs"


def test_any_alone_is_noticed() -> None:
    def function(a: Any, b: dict[str, Any], c: int) -> Any: ...

    assert bare(function) == {"a", "return"}
