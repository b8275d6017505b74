"""What pytest loads where fpsim is installed: fixtures, exact floats under failed comparisons, `--fpsim-mutants`.

It lies beside the package, not in it, so that a run of tests that do not use fpsim does not import it.
PYTEST_DONT_REWRITE, which is read by pytest: it would compile the assertions of all that comes with a plugin.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

FIXTURE = "quantizer"
PROPERTY = "fpsim mutants that the test sees"


@pytest.fixture(scope="session")
def check_quantizer() -> Any:
    """`fpsim.testing.check_quantizer`: check that a function rounds to a format, bit for bit."""
    return _of_testing("check_quantizer")


@pytest.fixture(scope="session")
def check_kernel() -> Any:
    """`fpsim.testing.check_kernel`: check that a function adds a product as a unit or library does, bit for bit."""
    return _of_testing("check_kernel")


def _of_testing(name: str) -> Any:
    return getattr(importlib.import_module("fpsim.testing"), name)


# ---- exact floats


@pytest.hookimpl(wrapper=True)
def pytest_assertrepr_compare(op: str, left: object, right: object) -> Generator[None, Any, Any]:
    """Add the floats that a failed comparison is about in hexadecimal, where the tests have imported fpsim."""
    explained = yield
    if "fpsim" not in sys.modules:
        return explained
    from fpsim.testing.compared import in_hexadecimal

    line = in_hexadecimal(op, left, right)
    if not line:
        return explained
    told = [each for each in explained if each]
    return [[*told[0], line]] if told else [[f"{left!r} {op} {right!r}", line]]


# ---- mutants


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options of `--fpsim-mutants`."""
    _import_fpsim_as_it_is(pluginmanager)
    group = parser.getgroup("fpsim", "fpsim: which faults of a quantizer the tests see")
    group.addoption(
        "--fpsim-mutants", action="store_true",
        help="Run each test that passes again with every broken quantizer of fpsim.testing.mutants in the place of the "
        f"fixture '{FIXTURE}', and fail where no test sees one of them.",
    )  # fmt: skip
    group.addoption(
        "--fpsim-quantizer", metavar="MODULE:FUNCTION",
        help="Put them in the place of this function, and not of the fixture; in the test's module too.",
    )  # fmt: skip
    group.addoption("--fpsim-format", default="e4m3", metavar="FORMAT", help="What it rounds to [%(default)s].")


def pytest_configure(config: pytest.Config) -> None:
    """Where mutants are asked for, bring what runs them."""
    if config.getoption("fpsim_mutants"):
        config.pluginmanager.register(Mutants(config), "fpsim-mutants")


def _import_fpsim_as_it_is(pluginmanager: pytest.PytestPluginManager) -> None:
    """Take back that pytest compiles fpsim's assertions, which makes importing it half as long again."""
    marked = getattr(pluginmanager.rewrite_hook, "_must_rewrite", None)
    if isinstance(marked, set):
        marked.discard("fpsim")


class Mutants:
    """Runs tests with broken quantizers; what they see travels with the reports, through pytest-xdist too."""

    def __init__(self, config: pytest.Config) -> None:
        from fpsim.cli.functions import function_at
        from fpsim.formats.named import format as find_format
        from fpsim.testing.mutants import QUANTIZERS

        self.mutants = QUANTIZERS
        self.path: str | None = config.getoption("fpsim_quantizer")
        try:
            self.fmt = find_format(config.getoption("fpsim_format"))
            self.original = None if self.path is None else function_at(self.path, "--fpsim-quantizer")
        except ValueError as refusal:
            raise pytest.UsageError(str(refusal)) from None
        self.seen: dict[str, list[str]] = {}  # test -> mutants

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """Run a test, and where it passes with each mutant."""
        result = yield
        if self.path is not None or FIXTURE in pyfuncitem.funcargs:
            seen = [name for name in self.mutants if self._sees(pyfuncitem, name)]
            pyfuncitem.user_properties.append((PROPERTY, seen))
        return result

    def _sees(self, item: pytest.Function, name: str) -> bool:
        broken = self.mutants[name].make(self.fmt)
        arguments = {each: item.funcargs[each] for each in item._fixtureinfo.argnames}
        if self.path is None:
            arguments[FIXTURE] = broken
        with self._in_place(item, broken):
            try:
                item.obj(**arguments)
            except (Exception, pytest.fail.Exception):
                return True
            except pytest.skip.Exception:
                return False
        return False

    @contextmanager
    def _in_place(self, item: pytest.Function, broken: Callable[..., Any]) -> Iterator[None]:
        """Put a broken function where the one of --fpsim-quantizer is, and where the test's module has it."""
        with pytest.MonkeyPatch.context() as patch:
            if self.path is not None:
                module, _, name = self.path.partition(":")
                patch.setattr(f"{module}.{name}", broken)
                for alias, value in list(vars(item.module).items()):
                    if value is self.original:
                        patch.setattr(item.module, alias, broken)
            yield

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test has seen."""
        if report.when == "call":
            self.seen.update((report.nodeid, names) for key, names in report.user_properties if key == PROPERTY)  # type: ignore[misc]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail where a mutant was missed; a worker of pytest-xdist leaves that to the process that collects."""
        worker = hasattr(session.config, "workerinput")
        if not worker and session.exitstatus == pytest.ExitCode.OK and self._missed():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _missed(self) -> list[str]:
        return [name for name in self.mutants if not any(name in names for names in self.seen.values())]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say which mutants no test saw."""
        terminalreporter.section("mutants of fpsim")
        if not self.seen:
            where = f"took the fixture {FIXTURE!r}" if self.path is None else "passed"
            terminalreporter.write_line(f"No test {where}, so none met a broken quantizer.")
            return
        missed, count = self._missed(), len(self.mutants)
        tests = f"{len(self.seen)} test{'s' if len(self.seen) > 1 else ''}"
        terminalreporter.write_line(f"{count - len(missed)} of {count} mutants to {self.fmt} seen by {tests}.")
        for name in missed:
            terminalreporter.write_line(f"  missed: {name}, which {self.mutants[name].wrong}")
