"""Check of quantizers with scales: codes, scales of both levels, zero points, memory layouts and large matrices."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.element import Element, coded_element
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.scaling.recipes import scaling_of
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import tiling
from fpsim.testing.black_box import FunctionMisbehaved, name_of, require_function
from fpsim.testing.coverage import CoverageRecord
from fpsim.testing.quantizers.black_box import attempted
from fpsim.testing.quantizers.layouts import LAYOUTS
from fpsim.testing.quantizers.properties import SECONDS_OF_A_CALL
from fpsim.testing.quantizers.report import Broken, Findings, QuantizerReport
from fpsim.testing.quantizers.scales.cases import cases_for, partial_cases, special_cases
from fpsim.testing.quantizers.scales.causes import ScaledResults, causes_of
from fpsim.testing.quantizers.scales.comparing import RightParts, ScaledComparison, same_parts
from fpsim.testing.quantizers.scales.identity import fault_fields
from fpsim.testing.quantizers.scales.results import ReturnedParts, called

LARGE = (1 << 20, 1 << 17, 1 << 15)  # elements of a large matrix: the largest size within a function's time
UNREADABLE = ("runs", "returns")  # rules of calls; a function that breaks one has no results to explain


def check_scaled(
    fn: Callable[..., Any], fmt: Any, scaling: Scaling | str, rounding: str | Rounding, overflow: str | None,
    subnormals: str, seed: int | None,
) -> QuantizerReport:  # fmt: skip
    """Return the report on a quantizer with scales, for arguments of `check_quantizer`.

    Args:
      fn: a function of a matrix.
      fmt: the element format, or its name or dtype.
      scaling: the promised scaling or its name.
      rounding, overflow, subnormals, seed: the promised cast of elements; overflow and seed are None if not passed.
    """
    require_function(fn)
    scaling = scaling_of(scaling)
    element = coded_element(fmt)
    cast: dict[str, Any] = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals, "seed": seed}
    promised = {"scaling": scaling, **{name: value for name, value in cast.items() if value is not None}}
    encode_scaled(np.ones((1, 1), np.float32), element, scaling, **cast)  # raises for arguments that it does not accept
    check = ScaledCheck(fn, element, scaling, cast)
    try:
        check.compare_all()
    except FunctionMisbehaved as refusal:
        check.findings.refuse(refusal)
    fields = {"differ": sum(check.counts.values()), "of": check.of} | check.causes()
    check.require_kept()
    broken = check.findings.broken
    if broken and not fields["differ"] and not fields.get("diagnosis"):
        fields["diagnosis"] = f"small matrices in C order have right results; wrong is: {', '.join(broken)}"
    return check.findings.report(check.name, element, promised, check.covered, **fields)


class ScaledCheck:
    """Check of a quantizer with scales on many matrices, and the record of its findings.

    Args:
      fn: the quantizer.
      fmt, scaling: the promised element format and scaling.
      cast: keywords of the promised cast of elements.
    """

    def __init__(self, fn: Callable[..., Any], fmt: Element, scaling: Scaling, cast: dict[str, Any]) -> None:
        self.fn, self.name, self.fmt, self.scaling, self.cast = fn, name_of(fn), fmt, scaling, cast
        self.findings = Findings()
        self.results: dict[str, tuple[Array, ReturnedParts]] = {}
        self.counts: dict[str, int] = {}  # number of wrong results, by matrix
        self.of = 0
        self.covered = CoverageRecord()

    def call(self, x: Array, layout: str = "") -> ReturnedParts:
        """Return the parts of fn's result for the matrix x; layout: name of its memory layout, "" for C order."""
        return called(self.fn, x, self.fmt, self.scaling, self.covered, layout)

    def compare_all(self) -> None:
        """Compare the results for all matrices with the right ones.

        There are small matrices, some with incomplete tiles, special values, other layouts, one row or column, and
        large ones. `self.findings` records what is wrong.

        Raises:
          FunctionMisbehaved: the function raises, or returns no codes, scales or values.
        """
        plain = cases_for(self.scaling, self.fmt)
        for name, x in plain.items():
            self.compare(name, x)
        for name, x in partial_cases(plain, self.scaling).items():
            self.compare(name, x, "partial tiles")
        for name, x in special_cases(plain["ordinary tiles"], self.scaling).items():
            self.compare(name, x)
        self.compare_layouts(plain["elements at ties"])
        self.compare_thin(plain["elements at ties"])
        self.compare_large(plain["elements at ties"])
        self.findings.record("leaves its input alone")
        self.findings.record("calls")

    def compare(self, case: str, x: Array, may_refuse: str = "") -> None:
        """Compare the results for one matrix with the promise, and with those of a second call.

        Args:
          case: the matrix's name in reports.
          x: the matrix.
          may_refuse: property of x for which the function may raise, as text, such as "partial tiles"; an exception is
            then only a note. "" if it must not raise.
        """
        try:
            parts = self.call(x.copy())
        except FunctionMisbehaved as refusal:
            if refusal.rule != "runs" or not may_refuse:
                raise
            self.findings.note(f"it refuses {may_refuse}: {refusal.sentence}")
            return
        again = self.call(x.copy())
        self.results[case] = x, parts
        if not same_parts(parts, again):
            why = f"fn is not deterministic: a second call with {case} gives another result"
            self.findings.broken["calls"] = Broken("calls", why)
        right = RightParts.of(x, self.fmt, self.scaling, self.cast)
        self.counts[case], size = ScaledComparison(case, x, parts, right, self.findings).differences()
        self.of += size

    def compare_layouts(self, x: Array) -> None:
        """Compare the results for the matrix x in other memory layouts with those in C order.

        Record in `self.findings` the property "layout", and a note on layouts that the function refuses.
        """
        want = self.call(x.copy())
        refused: dict[str, str] = {}
        for name, layout in LAYOUTS.items():
            if layout.axes != 2:
                continue
            got, refusal = attempted(self.call, layout.make(x), name)
            if got is None:
                refused[name] = refusal
                continue
            why = f"a matrix with the layout '{name}' gives other results than one in C order"
            self.findings.record("layout", None if same_parts(want, got) else Broken("layout", why))
        if refused:
            self.findings.note(f"it refuses the layouts {', '.join(refused)}: {next(iter(refused.values()))}")

    def compare_thin(self, x: Array) -> None:
        """Compare the results for a row and a column of x, and for a square matrix, with the right ones.

        `self.findings` records the property "size". It counts as broken only if the results for all other small
        matrices are right. A note says which of them the function refuses. For 4-bit formats, whose codes may be
        packed, no column is compared.
        """
        block = self.scaling.block
        side = max(*block, 1)  # the square has whole tiles if its scaling has
        square = np.resize(x, (side, side) if side > 1 else (min(x.shape), min(x.shape)))
        for noun, thin in (("single row", x[:1]), ("single column", x[:, :1]), ("square matrix", square)):
            if noun == "single column" and self.fmt.bits == 4:
                continue  # a byte with one code has the shape of a code
            thin = np.ascontiguousarray(thin)
            parts, refusal = attempted(self.call, thin.copy())
            if parts is None:
                self.findings.note(f"it refuses a {noun}: {refusal}")
                continue
            self._compare_size(thin, parts, RightParts.of(thin, self.fmt, self.scaling, self.cast), "other")

    def compare_large(self, x: Array) -> None:
        """Compare the results for large matrices that consist of copies of x with the right results for x, copied.

        `self.findings` records the property "size"; as broken only if all small matrices are right. One matrix has a
        million elements or, for a slow function, fewer; the sizes of the other are multiples of 128, for functions that
        treat these apart. For stochastic rounding, no large matrix is compared.
        """
        if rounding_mode(self.cast["rounding"]) is Rounding.STOCHASTIC:
            self.findings.note("stochastic rounding was compared on small matrices alone")
            return
        medium = np.tile(x, (-(-LARGE[-1] // x.size), 1))
        self.call(medium)  # the first call may compile something
        start = time.process_time()
        self.call(medium)
        pace = (time.process_time() - start) / medium.size
        size = next((size for size in LARGE if size * pace <= SECONDS_OF_A_CALL), LARGE[-1])
        across = max(1, -(-1030 // x.shape[1]))
        small = RightParts.of(x, self.fmt, self.scaling, self.cast)
        rows, columns = (128 // math.gcd(length, 128) for length in x.shape)
        for times in ((-(-size // (x.size * across)), across), (rows, columns)):
            large = np.tile(x, times)
            right = small.repeated(x.shape, times, tiling(large.shape, self.scaling.block).grid)
            self._compare_size(large, self.call(large), right, "small")

    def _compare_size(self, x: Array, parts: ReturnedParts, right: RightParts, others: str) -> None:
        """Record in `self.findings`, as the property "size", whether the result for the matrix x is right.

        It counts as broken only if the results for all small matrices are right. parts, right: the function's result
        and the right one. others: the adjective that the message uses for the matrices whose results are right.
        """
        findings = Findings()
        name = f"a matrix of shape {x.shape}"
        ScaledComparison(name, x, parts, right, findings).differences()
        if not findings.broken:
            self.findings.record("size")
        elif not any(self.counts.values()):
            first = next(iter(findings.broken.values()))
            why = f"{name} is wrong, where {others} ones are right: {first.property}, {first.why}"
            self.findings.record("size", dataclasses.replace(first, property="size", why=why))

    def require_kept(self) -> None:
        """Record "calls" as broken if later calls have changed a result that the function returned."""
        for case, (x, parts) in self.results.items():
            if not same_parts(ReturnedParts(parts.returned, x, self.fmt, self.scaling), parts):
                why = f"a later call overwrites the memory of what fn returned with {case}"
                self.findings.record("calls", Broken("calls", why))
                return

    def causes(self) -> dict[str, Any]:
        """Return the `QuantizerReport` fields on the causes that explain wrong results; {} without readable results."""
        broken = self.findings.broken
        results = ScaledResults(self.results, self.counts, self.fmt, self.scaling, self.cast)
        if "calls" in broken:
            return fault_fields(results.all, self.fmt, [self.scaling], self.cast, results.kept)
        if not self.results or any(rule in broken for rule in UNREADABLE):
            return {}
        return causes_of(results)
