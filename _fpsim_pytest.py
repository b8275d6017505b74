"""The plugin for pytest: fixtures, exact floats below failed comparisons, and `--fpsim-mutants`.

This module is outside the package, so that tests that don't use fpsim don't import it.
PYTEST_DONT_REWRITE is a mark for pytest, which would rewrite the assertions of the whole package otherwise.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

PROPERTY = "fpsim mutants that the test sees"


@pytest.fixture(scope="session")
def check_quantizer() -> Any:
    """Return `fpsim.testing.check_quantizer`, which checks that a function rounds to a format, bit for bit."""
    return _of_testing("check_quantizer")


@pytest.fixture(scope="session")
def check_kernel() -> Any:
    """Return `fpsim.testing.check_kernel`, which checks that a function computes the bits of a unit or library."""
    return _of_testing("check_kernel")


def _of_testing(name: str) -> Any:
    return getattr(importlib.import_module("fpsim.testing"), name)


# ---- exact floats


@pytest.hookimpl(wrapper=True)
def pytest_assertrepr_compare(op: str, left: object, right: object) -> Generator[None, Any, Any]:
    """Add the compared floats in hexadecimal to the message of a failed comparison, if fpsim was imported."""
    explained = yield
    if "fpsim" not in sys.modules:
        return explained
    from fpsim.testing.compared import in_hexadecimal

    line = in_hexadecimal(op, left, right)
    if not line:
        return explained
    explanations = [lines for lines in explained if lines]
    return [[*explanations[0], line]] if explanations else [[f"{left!r} {op} {right!r}", line]]


# ---- mutants


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options of `--fpsim-mutants`."""
    _import_fpsim_as_it_is(pluginmanager)
    group = parser.getgroup("fpsim", "fpsim: mutation tests of quantizers and kernels")
    group.addoption(
        "--fpsim-mutants", action="store_true",
        help="Run each test that passes again with every broken quantizer of fpsim.testing.mutants as its fixture "
        "'quantizer' (with --fpsim-promise every broken kernel as 'kernel'), and fail if no test detects one of them.",
    )  # fmt: skip
    group.addoption(
        "--fpsim-quantizer", metavar="MODULE:FUNCTION",
        help="Replace this function, also in the module of the test, instead of the fixture.",
    )  # fmt: skip
    group.addoption("--fpsim-format", default="e4m3", metavar="FORMAT", help="The quantizer's format [%(default)s].")
    group.addoption(
        "--fpsim-kernel", metavar="MODULE:FUNCTION", help="Replace this function by broken kernels."
    )  # fmt: skip
    group.addoption(
        "--fpsim-promise", metavar="NAME=VALUE,...",
        help="The arithmetic that the kernel promises, as keywords of check_kernel: "
        "a=e4m3,accumulate=hopper_e4m3_f32,promote=128.",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin that runs mutants, if `--fpsim-mutants` is given."""
    if config.getoption("fpsim_mutants"):
        config.pluginmanager.register(Mutants(config), "fpsim-mutants")


def _import_fpsim_as_it_is(pluginmanager: pytest.PytestPluginManager) -> None:
    """Stop pytest from rewriting fpsim's assertions, which makes its import half as long again."""
    marked = getattr(pluginmanager.rewrite_hook, "_must_rewrite", None)
    if isinstance(marked, set):
        marked.discard("fpsim")


class Place:
    """The fixture or named function that broken functions replace, and the mutants that tests have detected."""

    def __init__(self, fixture: str, path: str | None, kind: str, broken: dict[str, tuple[str, Any]]) -> None:
        from fpsim.cli.functions import function_at

        self.fixture, self.path, self.kind = fixture, path, kind
        self.broken = broken  # name -> what is wrong, what makes it
        self.original = None if path is None else function_at(path, f"--fpsim-{fixture}")
        self.seen: dict[str, list[str]] = {}  # test -> mutants
        self.unrepeatable: list[str] = []  # tests that pass only the first time

    @property
    def key(self) -> str:
        """Name of the report property that lists the mutants which a test detected."""
        return f"{PROPERTY}: {self.fixture}"

    @property
    def missed(self) -> list[str]:
        """Names of the mutants that no test detected."""
        return [name for name in self.broken if not any(name in names for names in self.seen.values())]

    def concerns(self, item: pytest.Function) -> bool:
        """Return whether a test takes the replaced fixture itself as an argument, or may call the replaced function."""
        return self.path is not None or self.fixture in item._fixtureinfo.argnames

    def detected(self, item: pytest.Function) -> list[str] | None:
        """List the mutants with which a test that passes fails; None if it also fails again with the function itself.

        A test that leaves a file or other state behind may fail the second time, which says nothing about mutants.
        """
        unbroken = item.funcargs[self.fixture] if self.path is None else self.original
        if self._fails(item, unbroken):
            return None
        return [name for name, (_, make) in self.broken.items() if self._fails(item, make())]

    def _fails(self, item: pytest.Function, function: Any) -> bool:
        """Return whether a test fails when it runs again with `function` as the fixture or as the named function."""
        arguments = {argument: item.funcargs[argument] for argument in item._fixtureinfo.argnames}
        if self.path is None:
            arguments[self.fixture] = function
        with self._in_place(item, function):
            try:
                item.obj(**arguments)
            except (Exception, pytest.fail.Exception):
                return True
            except pytest.skip.Exception:
                return False
        return False

    @contextmanager
    def _in_place(self, item: pytest.Function, mutant: Callable[..., Any]) -> Iterator[None]:
        """Replace the named function by a mutant, in its own module and in the module of the test."""
        with pytest.MonkeyPatch.context() as patch:
            if self.path is not None:
                module, _, name = self.path.partition(":")
                patch.setattr(f"{module}.{name}", mutant)
                for alias, value in list(vars(item.module).items()):
                    if value is self.original:
                        patch.setattr(item.module, alias, mutant)
            yield

    def lines(self) -> Iterator[str]:
        """Yield the lines of the summary: how many mutants were detected, and those that were not."""
        if self.unrepeatable:
            count, tests = len(self.unrepeatable), ", ".join(self.unrepeatable[:3])
            yield (
                f"Not counted: {count} test{'s' if count > 1 else ''} that passed, but failed when run again with the "
                f"same {self.fixture}: {tests}{', ...' * (count > 3)}"
            )
        if not self.seen:
            if self.unrepeatable:
                return
            where = f"took the fixture {self.fixture!r}" if self.path is None else "passed"
            yield f"No test {where}, so none met a broken {self.fixture}."
            return
        missed, count = self.missed, len(self.broken)
        tests = f"{len(self.seen)} test{'s' if len(self.seen) > 1 else ''}"
        yield f"{count - len(missed)} of {count} mutants {self.kind} seen by {tests}."
        for name in missed:
            yield f"  missed: {name}, which {self.broken[name][0]}"


def _of_quantizers(config: pytest.Config) -> Place:
    from fpsim.formats.named import format as find_format
    from fpsim.testing.mutants import QUANTIZERS

    fmt = find_format(config.getoption("fpsim_format"))
    mutants = {name: mutant for name, mutant in QUANTIZERS.items() if mutant.breaks(fmt)}
    broken = {name: (mutant.wrong, partial(mutant.make, fmt)) for name, mutant in mutants.items()}
    return Place("quantizer", config.getoption("fpsim_quantizer"), f"to {fmt}", broken)


def _of_kernels(config: pytest.Config) -> Place:
    from fpsim.testing.mutants.score import breaking

    said = config.getoption("fpsim_promise")
    if said is None:
        raise ValueError("--fpsim-kernel needs what the kernel promises; add --fpsim-promise a=FORMAT,accumulate=UNIT.")
    promise = _promise(said)
    broken = {mutant.name: (mutant.wrong, partial(mutant.make, promise)) for mutant in breaking(promise)}
    return Place("kernel", config.getoption("fpsim_kernel"), f"of {said}", broken)


def _promise(said: str) -> dict[str, Any]:
    """Parse NAME=VALUE,... of `--fpsim-promise` into keywords; a value is an integer, true or a string."""
    keywords: dict[str, Any] = {}
    for part in said.split(","):
        name, equals, value = (text.strip() for text in part.partition("="))
        if not (name and equals and value):
            raise ValueError(f"--fpsim-promise must be NAME=VALUE,NAME=VALUE, such as a=bf16,bias=true; got {said!r}.")
        keywords[name] = int(value) if value.isdecimal() else True if value.lower() == "true" else value
    return keywords


class Mutants:
    """The plugin that runs tests with mutants; reports carry the detected ones, also through pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        of_kernels = any(config.getoption(name) is not None for name in ("fpsim_kernel", "fpsim_promise"))
        try:
            self.places = [_of_kernels(config)] if of_kernels else []
            self.places.append(_of_quantizers(config))
        except (ValueError, TypeError) as refusal:
            raise pytest.UsageError(str(refusal)) from None

    @property
    def asked(self) -> list[Place]:
        """The places to report; next to kernels, that of quantizers only if it is named or a test used its fixture."""
        *kernels, quantizers = self.places
        if kernels and quantizers.path is None and not quantizers.seen:
            return kernels
        return self.places

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """Run a test, and if it passes, run it again with each mutant."""
        result = yield
        for place in self.places:
            if place.concerns(pyfuncitem):
                pyfuncitem.user_properties.append((place.key, place.detected(pyfuncitem)))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the mutants that a test detected."""
        if report.when != "call":
            return
        for place in self.places:
            for key, names in report.user_properties:
                if key == place.key and isinstance(names, list):
                    place.seen[report.nodeid] = names
                elif key == place.key:
                    place.unrepeatable.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the session if a mutant was missed; workers of pytest-xdist leave that to the main process."""
        worker = hasattr(session.config, "workerinput")
        missed = any(place.missed for place in self.asked)
        if not worker and session.exitstatus == pytest.ExitCode.OK and missed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the summary of mutants."""
        terminalreporter.section("mutants of fpsim")
        for place in self.asked:
            for line in place.lines():
                terminalreporter.write_line(line)
