"""The answer of a diagnosis, in sentences: which layers can use few bits, which cannot and why, and what to do."""

from __future__ import annotations

from fpsim.analysis.studies.diagnosis.diagnosed import Diagnosed
from fpsim.analysis.studies.diagnosis.recommendation import joint_sentences, recommendation_sentences, rival_sentences
from fpsim.analysis.studies.diagnosis.remedies import layer_sentences
from fpsim.analysis.studies.diagnosis.unplanned import alone_sentences, overflow_sentences, unjudged_sentences


def sentences(diagnosis: Diagnosed) -> tuple[str, ...]:
    """Return the answer of a diagnosis as sentences."""
    coverage = diagnosis.coverage
    first = [*filter(None, [coverage.headline]), *overflow_sentences(diagnosis)]
    if diagnosis.low:
        middle = [*layer_sentences(diagnosis), *joint_sentences(diagnosis), *recommendation_sentences(diagnosis)]
        middle += rival_sentences(diagnosis)
    else:
        none = f"No recipe below 16 bits was measured on {diagnosis.on}, so all layers stay in {diagnosis.high}."
        middle = [none, *recommendation_sentences(diagnosis)]
    last = [*alone_sentences(diagnosis), *coverage.sentences, *unjudged_sentences(diagnosis)]
    if not diagnosis.sensitivity.has_loss:
        last.append("No loss was given: outputs alone were judged.")
    return (*first, *middle, *last)
