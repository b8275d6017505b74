"""What pytest loads where fpsim is installed: fixtures, exact floats under failed comparisons, `--fpsim-mutants`.

It lies beside the package, not in it, so that a run of tests that do not use fpsim does not import it.
PYTEST_DONT_REWRITE, which is read by pytest: it would compile the assertions of all that comes with a plugin.
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
    group = parser.getgroup("fpsim", "fpsim: which faults of a quantizer or a kernel the tests see")
    group.addoption(
        "--fpsim-mutants", action="store_true",
        help="Run each test that passes again with every broken quantizer of fpsim.testing.mutants in the place of the "
        "fixture 'quantizer', with --fpsim-promise every broken kernel in that of 'kernel', and fail where no test "
        "sees one of them.",
    )  # fmt: skip
    group.addoption(
        "--fpsim-quantizer", metavar="MODULE:FUNCTION",
        help="Put them in the place of this function, and not of the fixture; in the test's module too.",
    )  # fmt: skip
    group.addoption("--fpsim-format", default="e4m3", metavar="FORMAT", help="What it rounds to [%(default)s].")
    group.addoption(
        "--fpsim-kernel", metavar="MODULE:FUNCTION", help="Put broken kernels in the place of this function."
    )  # fmt: skip
    group.addoption(
        "--fpsim-promise", metavar="NAME=VALUE,...",
        help="What the kernel promises, in keywords of check_kernel: a=e4m3,accumulate=hopper_e4m3_f32,promote=128.",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Where mutants are asked for, bring what runs them."""
    if config.getoption("fpsim_mutants"):
        config.pluginmanager.register(Mutants(config), "fpsim-mutants")


def _import_fpsim_as_it_is(pluginmanager: pytest.PytestPluginManager) -> None:
    """Take back that pytest compiles fpsim's assertions, which makes importing it half as long again."""
    marked = getattr(pluginmanager.rewrite_hook, "_must_rewrite", None)
    if isinstance(marked, set):
        marked.discard("fpsim")


class Place:
    """Where broken functions are put: in the place of a fixture, or of the function that an option names."""

    def __init__(self, fixture: str, path: str | None, kind: str, broken: dict[str, tuple[str, Any]]) -> None:
        from fpsim.cli.functions import function_at

        self.fixture, self.path, self.kind = fixture, path, kind
        self.broken = broken  # name -> what is wrong, what makes it
        self.original = None if path is None else function_at(path, f"--fpsim-{fixture}")
        self.seen: dict[str, list[str]] = {}  # test -> mutants

    @property
    def key(self) -> str:
        """Under which name what a test sees travels."""
        return f"{PROPERTY}: {self.fixture}"

    @property
    def missed(self) -> list[str]:
        """Mutants that no test saw."""
        return [name for name in self.broken if not any(name in names for names in self.seen.values())]

    def concerns(self, item: pytest.Function) -> bool:
        """Whether a test may meet what is put here."""
        return self.path is not None or self.fixture in item.funcargs

    def sees(self, item: pytest.Function, name: str) -> bool:
        """Whether a test that passes fails with a mutant."""
        made = self.broken[name][1]()
        arguments = {each: item.funcargs[each] for each in item._fixtureinfo.argnames}
        if self.path is None:
            arguments[self.fixture] = made
        with self._in_place(item, made):
            try:
                item.obj(**arguments)
            except (Exception, pytest.fail.Exception):
                return True
            except pytest.skip.Exception:
                return False
        return False

    @contextmanager
    def _in_place(self, item: pytest.Function, made: Callable[..., Any]) -> Iterator[None]:
        """Put a broken function where the option's is, and where the test's module has it."""
        with pytest.MonkeyPatch.context() as patch:
            if self.path is not None:
                module, _, name = self.path.partition(":")
                patch.setattr(f"{module}.{name}", made)
                for alias, value in list(vars(item.module).items()):
                    if value is self.original:
                        patch.setattr(item.module, alias, made)
            yield

    def lines(self) -> Iterator[str]:
        """What is said at the end."""
        if not self.seen:
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
    broken = {name: (each.wrong, partial(each.make, fmt)) for name, each in QUANTIZERS.items()}
    return Place("quantizer", config.getoption("fpsim_quantizer"), f"to {fmt}", broken)


def _of_kernels(config: pytest.Config) -> Place:
    from fpsim.testing.mutants.score import breaking

    said = config.getoption("fpsim_promise")
    if said is None:
        raise ValueError("--fpsim-kernel needs what the kernel promises; add --fpsim-promise a=FORMAT,accumulate=UNIT.")
    promise = _promise(said)
    broken = {each.name: (each.wrong, partial(each.make, promise)) for each in breaking(promise)}
    return Place("kernel", config.getoption("fpsim_kernel"), f"of {said}", broken)


def _promise(said: str) -> dict[str, Any]:
    """Keywords as they are written on the command line: integers, true, and words."""
    found: dict[str, Any] = {}
    for part in said.split(","):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not (name and equals and value):
            raise ValueError(f"--fpsim-promise must be NAME=VALUE,NAME=VALUE, such as a=bf16,bias=true; got {said!r}.")
        found[name] = int(value) if value.isdecimal() else True if value.lower() == "true" else value
    return found


class Mutants:
    """Runs tests with broken functions; what they see travels with the reports, through pytest-xdist too."""

    def __init__(self, config: pytest.Config) -> None:
        of_kernels = any(config.getoption(name) is not None for name in ("fpsim_kernel", "fpsim_promise"))
        try:
            self.places = [_of_kernels(config)] if of_kernels else []
            self.places.append(_of_quantizers(config))
        except (ValueError, TypeError) as refusal:
            raise pytest.UsageError(str(refusal)) from None

    @property
    def asked(self) -> list[Place]:
        """The places that are reported: quantizers beside kernels only where they are named or a test takes one."""
        *kernels, quantizers = self.places
        if kernels and quantizers.path is None and not quantizers.seen:
            return kernels
        return self.places

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """Run a test, and where it passes with each mutant."""
        result = yield
        for place in self.places:
            if place.concerns(pyfuncitem):
                seen = [name for name in place.broken if place.sees(pyfuncitem, name)]
                pyfuncitem.user_properties.append((place.key, seen))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test has seen."""
        if report.when != "call":
            return
        for place in self.places:
            place.seen.update((report.nodeid, names) for key, names in report.user_properties if key == place.key)  # type: ignore[misc]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail where a mutant was missed; a worker of pytest-xdist leaves that to the process that collects."""
        worker = hasattr(session.config, "workerinput")
        missed = any(place.missed for place in self.asked)
        if not worker and session.exitstatus == pytest.ExitCode.OK and missed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say which mutants no test saw."""
        terminalreporter.section("mutants of fpsim")
        for place in self.asked:
            for line in place.lines():
                terminalreporter.write_line(line)
