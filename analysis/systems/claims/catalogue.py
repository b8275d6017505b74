"""All claims by name, in the order of docs/claims.md."""

from __future__ import annotations

from typing import Any

from fpsim.analysis.systems.claims.claim import Claim
from fpsim.analysis.systems.claims.themes import (
    accumulation,
    cost,
    deployment,
    distributed,
    formats,
    loss_scaling,
    memory,
    monitoring,
    published,
    published_blocks,
    reports,
    scaling,
    scheduling,
)
from fpsim.errors import is_integer, shown, unknown

THEMES: dict[str, tuple[Claim, ...]] = {
    "Number formats": formats.CLAIMS,
    "Scaling and quantisation": scaling.CLAIMS,
    "Accumulation": accumulation.CLAIMS,
    "Loss scaling and underflow": loss_scaling.CLAIMS,
    "Precision scheduling and tuning": scheduling.CLAIMS,
    "Memory": memory.CLAIMS,
    "Distributed training": distributed.CLAIMS,
    "Monitoring": monitoring.CLAIMS,
    "Cost, speed and energy": cost.CLAIMS,
    "Deployment": deployment.CLAIMS,
    "Published figures": tuple(
        sorted((*published_blocks.CLAIMS, *published.CLAIMS), key=lambda claim: int(claim.number[1:]))
    ),
    "Figures from reports": reports.CLAIMS,
}
CLAIMS: dict[str, Claim] = {claim.name: claim for rows in THEMES.values() for claim in rows}
_BY_NUMBER = {claim.number: claim for claim in CLAIMS.values()}


def find_claim(word: Any) -> Claim:
    """Return the claim with the name or number `word`.

    Raises:
      ValueError: no claim has that name or number; the message suggests the nearest name.
      TypeError: word is neither a string nor an integer.

    Example:
      >>> from fpsim.analysis.systems.claims.catalogue import find_claim
      >>> find_claim(1).name, find_claim("fp16-range").number
      ('fp16-range', '1')
    """
    if not isinstance(word, str) and not is_integer(word):
        raise TypeError(f"a claim must be a name or a number; got {shown(word)}. Pass 'ring-bf16' or 69, for example.")
    text = str(word).strip()
    claim = CLAIMS.get(text.lower()) or _BY_NUMBER.get(text.upper())
    if claim is None:
        numbers = {number.lower(): number for number in _BY_NUMBER}
        raise unknown("claim", word, list(CLAIMS), numbers, listing="`fpsim claims --list`")
    return claim
