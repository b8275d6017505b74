"""The page of the table of claims in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fpsim.analysis.systems.claims.catalogue import THEMES

INTRO = """# Claims about low precision, with figures

Much of what is said about low-precision training is repeated without being measured again. This page lists claims,
says where they come from, and settles by experiment those that a CPU can settle. `make claims` computes and writes it
again; the same call resumes where an interrupted one stopped. A row is run by its name or number:

```
fpsim claims --only ring-bf16
```

```
>>> import fpsim as fp
>>> report = fp.analysis.claims("zero-stages")
>>> row = report["zero-stages"]
>>> row.verdict
'only under these conditions'
>>> row.figures["GB a rank, stage 2"]
16.6

```

S0 to S4 are five popular articles on mixed-precision training that circulate; other sources are named. Claims are in
our words. "Kind" says how a row was checked: **measured** by an experiment of fpsim; **arithmetic**: claims on cost,
speed, energy and sizes, of which only the consistency of the numbers is checked, nothing is timed; **document**:
compared with a publication; **not run**: neither. Verdicts: right, wrong, only under these conditions (the last
column states them), cannot be settled here (it needs a GPU, a cluster, a large model, or the source says too little),
not settled yet (no experiment is written). A verdict rests on figures that lie within ranges, which the experiment's
row in `analysis/systems/claims/themes` states; where one does not on your machine, the command says "differs here"
and ends with exit code 1.
"""


def markdown_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of rows as `ClaimResult.to_dict` gives them."""
    verdicts = [row["verdict"] for row in rows]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    parts = [INTRO, f"{len(rows)} claims: {counts}.\n"]
    by_name = {row["name"]: row for row in rows}
    for title, claims in THEMES.items():
        listed = [by_name[claim.name] for claim in claims if claim.name in by_name]
        if listed:
            parts.append(f"## {title}\n")
            parts.append("| number | name | claim | source | kind | set-up | figures | verdict | why |")
            parts.append("|---|---|---|---|---|---|---|---|---|")
            parts += [_line(row) for row in listed]
            parts.append("")
    return "\n".join(parts)


def _line(row: Mapping[str, Any]) -> str:
    """Return a row of the table."""
    names = ("number", "name", "claim", "source", "kind", "setup", "figures", "verdict", "reason")
    cells = [str(row[name]).replace("|", "\\|").replace("\n", " ") for name in names]
    return f"| {' | '.join(cells)} |"
