"""The commands `fpsim formats` (list or describe formats) and `fpsim explain` (the rounding of one value)."""

from __future__ import annotations

import math
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

import fpsim
from fpsim.cli.terminal import new_table
from fpsim.display.wording import power_of_two
from fpsim.formats.table_format import TABLES, table_format

TABLE_BITS = 6  # formats up to this width have few enough values to list


def formats(
    name: Annotated[
        str | None, typer.Argument(help="A format to describe, such as e4m3; leave out to list all.")
    ] = None,
) -> None:
    """List the number formats, or describe one."""
    if name is not None:
        _print_format(table_format(name) or fpsim.format(name))
        return
    console, table = Console(), new_table()
    table.add_column("format", no_wrap=True)
    for head in ("bits", "layout", "bias", "max", "normal from", "smallest", "Inf", "NaN"):
        table.add_column(head, justify="right", no_wrap=True)
    for known in fpsim.formats.names():
        fmt = fpsim.format(known)
        table.add_row(
            fmt.name, str(fmt.bits), f"{int(fmt.signed)}+{fmt.exponent_bits}+{fmt.mantissa_bits}", str(fmt.bias),
            f"{fmt.max:.3g}" if fmt.max >= 1e6 else f"{fmt.max:g}", power_of_two(fmt.smallest_normal),
            power_of_two(fmt.smallest_subnormal), "yes" if fmt.has_infinity else "no", "yes" if fmt.has_nan else "no",
        )  # fmt: skip
    console.print(table)
    console.print(
        Text(
            "Layout: sign, exponent and mantissa bits. Every IEEE P3109 format has a name too, such as p3109_k8p4sf. "
            f"Tables of values: {', '.join(TABLES)}.",
            style="dim",
        )
    )


def _print_format(fmt: fpsim.Format | fpsim.TableFormat) -> None:
    """Print the properties of a format, and its values if its codes have at most TABLE_BITS bits.

    Of a `Format` only values >= 0 are printed, of a `TableFormat` all finite values.
    """
    typer.echo(repr(fmt))
    if fmt.bits <= TABLE_BITS:
        if isinstance(fmt, fpsim.TableFormat):
            values = [value for value, _ in fmt.finite]
        else:
            values = sorted({value for value in fmt.table().tolist() if value >= 0})
        typer.echo("values " + ", ".join(f"{value:g}" for value in values))


def explain(
    value: Annotated[str, typer.Argument(help="A number, such as 0.3, -1e-4, inf, nan or 0x1.8p3.")],
    format: Annotated[str, typer.Argument(help="A format, such as e4m3.")],
    rounding: Annotated[
        str,
        typer.Option("--rounding", "-r", help="The rounding mode, such as nearest_even, toward_zero or stochastic."),
    ] = "nearest_even",
    overflow: Annotated[
        str, typer.Option(help="The result for values beyond the range: nonfinite, saturate or saturate_finite.")
    ] = "nonfinite",
    subnormals: Annotated[str, typer.Option(help="The treatment of subnormals: keep, or flush to zero.")] = "keep",
    seed: Annotated[int | None, typer.Option(help="Seed of stochastic rounding.")] = None,
) -> None:
    """Explain how one value is rounded: its neighbours, the dropped bits, the result and the reason."""
    explanation = fpsim.explain(
        _number(value), format, rounding=rounding, overflow=overflow, subnormals=subnormals, seed=seed
    )
    typer.echo(str(explanation))


def _number(text: str) -> float:
    """Return the number that a decimal or hexadecimal text stands for, such as "0.3", "inf" or "0x1.8p3".

    Raises:
      ValueError: text is not a number, or beyond the range of float64.
    """
    try:
        value = float.fromhex(text) if "0x" in text.lower() else float(text)
    except OverflowError:
        value = math.inf
    except ValueError:
        raise ValueError(f"value must be a number such as 0.3, -1e-4, inf, nan or 0x1.8p3; got {text!r}.") from None
    digits = text.lower().partition("p" if "0x" in text.lower() else "e")[0]
    beyond = math.isinf(value) and any(digit.isdigit() for digit in digits)
    if beyond or (value == 0 and any(digit in "123456789abcdef" for digit in digits.replace("0x", ""))):
        raise ValueError(f"value must be in the range of float64, 4.9e-324 to 1.8e308, or inf; got {text!r}.")
    return value
