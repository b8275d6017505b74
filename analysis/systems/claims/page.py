"""The page docs/claims.md on claims about low precision, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fpsim.analysis.systems.claims.catalogue import THEMES

INTRO = """# Claims about low precision, with figures

Many statements about low-precision training are repeated without a new measurement. This page lists claims with their
sources, and settles by experiment those that a CPU can settle. `make claims` runs the experiments and writes the page;
after an interruption the same call runs the missing ones. This runs the experiment of one claim, by its name or number:

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

S0 to S4 are five popular articles on mixed-precision training; other sources are named. The claims are paraphrased.
In the tables "set-up" describes the experiment, "figures" its results, and "why" the reason of the verdict.

- **Kind** says how a claim was checked. *Measured*: by an experiment of fpsim. *Arithmetic*: nothing was timed; the
  numbers of a claim on cost, speed, energy or size were only checked for consistency. *Document*: by comparison with
  a publication. *Not run*: it was not checked.
- **Verdict** is right; wrong; only under these conditions (stated in the last column); cannot be settled here (it
  needs a GPU, a cluster or a large model, or the source says too little); or not settled yet (no experiment exists).
- **On your machine** a verdict holds if each number of the experiment is in the range that
  `analysis/systems/claims/themes` expects. Otherwise the command prints "differs here" and ends with exit code 1.
"""


COLUMNS = ("number", "name", "claim", "source", "kind", "setup", "figures", "verdict", "reason")


def markdown_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of claims in Markdown; `rows` are dicts as `ClaimResult.to_dict` returns them."""
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
            for row in listed:
                cells = [str(row[column]).replace("|", "\\|").replace("\n", " ") for column in COLUMNS]
                parts.append(f"| {' | '.join(cells)} |")
            parts.append("")
    return "\n".join(parts)
