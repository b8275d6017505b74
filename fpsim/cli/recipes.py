"""The command `fpsim recipes`, which lists the recipes of `fpsim train`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from fpsim.cli.terminal import new_table


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(help="A recipe or TOML file to print as TOML; leave out to list the built-in recipes."),
    ] = None,
) -> None:
    """List the recipes of training, or print one as TOML, which you can change and pass to `fpsim train`."""
    from fpsim.recipes.look_up import find as find_recipe
    from fpsim.recipes.training import TRAINING

    if name is not None:
        typer.echo(find_recipe(name).to_toml(), nl=False)
        return
    console, table = Console(), new_table()
    table.add_column("recipe", no_wrap=True)
    table.add_column("operands", no_wrap=True)
    table.add_column("source", overflow="fold")
    for recipe in TRAINING.values():
        linear: Any = recipe.linear
        fmts = ["FP32" if fmt is None else str(fmt) for fmt in (linear.input_fmt, linear.weight_fmt, linear.grad_fmt)]
        table.add_row(recipe.name, "/".join(dict.fromkeys(fmts)), Text(recipe.source, style="dim"))
    console.print(table)
    console.print(
        Text(
            "Operands: formats of the inputs, weights and gradients of linear layers; equal ones are listed once.\n"
            "`fpsim train BF16 DEEPSEEK_V3` compares two recipes. `fpsim recipes NVFP4 > mine.toml` writes one to a "
            "file: change its name and fields, then `fpsim train BF16 mine.toml`.",
            style="dim",
        )
    )
