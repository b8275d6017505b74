"""A row of a recording: one tensor of a layer at one step, with its measurements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fpsim.analysis.measures.error_report import METRICS, ErrorReport
from fpsim.analysis.measures.exponent_range import RangeReport
from fpsim.formats.named import Format

# Tensor of a product -> its role, a name of `fpsim.analysis.tensors.roles`.
TENSORS = {
    "input": "activation", "query": "activation", "key": "activation", "value": "activation", "weight": "matrix",
    "output": "activation", "output_gradient": "gradient", "weight_gradient": "gradient",
}  # fmt: skip
OPERANDS = ("input", "query", "key", "value", "weight", "output_gradient")  # operands of a layer's products
FIELDS = ("step", "layer", "tensor", "role", "shape", "dtype", "calls")
MASK = "mask"  # attention's mask, kept with its operands but without a row: float32 that is added to scores
ERRORS = (
    "sqnr_db", "gain", "lost_energy", "underflow_rate", "subnormal_rate", "overflow_rate", "saturation_rate",
)  # fmt: skip


@dataclass(frozen=True)
class RecordedRow:
    """A row of a recording, which measures one tensor of a layer at one step.

    Attributes:
      step: the number of the step.
      layer: the layer's qualified name.
      tensor: "input", "weight", "output", "output_gradient" or "weight_gradient"; for attention "query", "key" and
        "value" in place of the first two.
      role: "activation", "matrix", "embedding" or "gradient".
      shape: the tensor's shape in the first call.
      dtype: torch's name of the dtype in which the product read or wrote the tensor, such as "float32".
      calls: number of tensors that were merged into the row: micro-batches, uses of a shared layer, ranks.
      range: the RangeReport of all elements.
      errors: an ErrorReport for each format, of the sampled elements.
    """

    step: int
    layer: str
    tensor: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    calls: int
    range: RangeReport
    errors: tuple[ErrorReport, ...]

    @property
    def key(self) -> tuple[int, str, str]:
        """Step, layer and tensor of the row."""
        return self.step, self.layer, self.tensor

    def merge(self, other: RecordedRow) -> RecordedRow:
        """Return one row for the calls of this row and of `other`, with their ranges and errors merged."""
        return replace(
            self,
            calls=self.calls + other.calls,
            range=self.range.merge(other.range),
            errors=tuple(a.merge(b) for a, b in zip(self.errors, other.errors, strict=True)),
        )

    @property
    def fields(self) -> dict[str, Any]:
        """First columns of a table, name -> value: step, layer, tensor, role, shape, dtype and calls."""
        return {name: getattr(self, name) for name in FIELDS}

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one table row (column name -> value) for each format, with every metric of its error."""
        return [
            {**self.fields, "format": report.format, "scale": report.scale}
            | {name: getattr(report, name) for name in METRICS}
            | {f"noise_{cause}": share for cause, share in report.noise_by_cause.items()}
            for report in self.errors
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return one table row (column name -> value): the range, then metrics of each format, such as E4M3_sqnr_db."""
        spread = self.range
        columns: dict[str, Any] = {
            **self.fields, "count": spread.count, "zeros": spread.zeros,
            "infinities": spread.infinities, "nans": spread.nans, "amax": spread.amax, "smallest": spread.smallest,
            "median": spread.magnitude(0.5),
        }  # fmt: skip
        for report in self.errors:
            assert isinstance(report.fmt, Format)  # others are not measured
            columns |= {f"{report.format}_{name}": getattr(report, name) for name in ERRORS}
            columns |= {f"{report.format}_{place}": share for place, share in spread.shares(report.fmt).items()}
        return columns
