"""The registration of the commands of `fpsim`, in the order of its help."""

from __future__ import annotations

from fpsim.cli.app import app as app
from fpsim.cli.app import command
from fpsim.cli.checking import check, conformance
from fpsim.cli.claims import claims
from fpsim.cli.diagnose import diagnose
from fpsim.cli.formats import explain, formats
from fpsim.cli.layouts import export, verify
from fpsim.cli.probe import probe
from fpsim.cli.recipes import recipes
from fpsim.cli.replay import replay
from fpsim.cli.study import study
from fpsim.cli.train import train
from fpsim.cli.units import units, validate

command()(study)
command(
    resumes=True, options={"share": "--recompute", "by": "--recompute-by", "layers of recompute": "--recompute-layers"}
)(train)
command(options={"path": "RUN"})(replay)
command()(recipes)
command()(formats)
command()(units)
command(resumes=True, options={"on": "--on"})(diagnose)
command()(export)
command()(verify)
command(options={"terms": "--terms", "a must": "--a must", "b must": "--b must", "b is": "--b is"})(probe)
command(options={"instruction": "--part"})(validate)
command(context_settings={"ignore_unknown_options": True})(explain)  # -1e-4 is a value
command()(check)
command(resumes=True)(claims)
app.add_typer(conformance, name="conformance")
