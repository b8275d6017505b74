"""Analyses of low-precision arithmetic: functions that measure errors of arrays, models and systems, with reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpsim.lazy import attach

if TYPE_CHECKING:
    from fpsim.analysis.measures.comparison import Comparison as Comparison
    from fpsim.analysis.measures.comparison import compare as compare
    from fpsim.analysis.measures.drift.drift import drift as drift
    from fpsim.analysis.measures.drift.report import DriftReport as DriftReport
    from fpsim.analysis.measures.error_report import ErrorReport as ErrorReport
    from fpsim.analysis.measures.exponent_range import RangeReport as RangeReport
    from fpsim.analysis.measures.exponent_range import exponents as exponents
    from fpsim.analysis.measures.exponent_range import range as range
    from fpsim.analysis.measures.rounding_error import error as error
    from fpsim.analysis.measures.scales.loss_scaling import LossScalingReport as LossScalingReport
    from fpsim.analysis.measures.scales.loss_scaling import loss_scaling as loss_scaling
    from fpsim.analysis.measures.scales.underflow import UnderflowReport as UnderflowReport
    from fpsim.analysis.measures.scales.underflow import underflow as underflow
    from fpsim.analysis.measures.survival import assert_survives as assert_survives
    from fpsim.analysis.models.monitors import Monitors as Monitors
    from fpsim.analysis.models.recorder import record as record
    from fpsim.analysis.models.recording import Recording as Recording
    from fpsim.analysis.studies.budget.budget import budget as budget
    from fpsim.analysis.studies.budget.report import Budget as Budget
    from fpsim.analysis.studies.budget.row import BudgetRow as BudgetRow
    from fpsim.analysis.studies.diagnosis.diagnose import diagnose as diagnose
    from fpsim.analysis.studies.diagnosis.report import Diagnosis as Diagnosis
    from fpsim.analysis.studies.diagnosis.verdict import Verdict as Verdict
    from fpsim.analysis.studies.differences.report import ModelDivergence as ModelDivergence
    from fpsim.analysis.studies.differences.side_by_side import diff as diff
    from fpsim.analysis.studies.planning.plan import plan as plan
    from fpsim.analysis.studies.planning.report import Plan as Plan
    from fpsim.analysis.studies.report import StudyReport as StudyReport
    from fpsim.analysis.studies.sensitivity.report import Sensitivity as Sensitivity
    from fpsim.analysis.studies.sensitivity.row import SensitivityRow as SensitivityRow
    from fpsim.analysis.studies.sensitivity.sensitivity import sensitivity as sensitivity
    from fpsim.analysis.studies.study import study as study
    from fpsim.analysis.studies.sweep import sweep as sweep
    from fpsim.analysis.systems import collectives as collectives
    from fpsim.analysis.systems.accumulation.accumulation import accumulation as accumulation
    from fpsim.analysis.systems.accumulation.report import AccumulationReport as AccumulationReport
    from fpsim.analysis.systems.attention.attention import attention as attention
    from fpsim.analysis.systems.attention.caches import kv_caches as kv_caches
    from fpsim.analysis.systems.attention.recipe import AttentionRecipe as AttentionRecipe
    from fpsim.analysis.systems.attention.recipe import KVCache as KVCache
    from fpsim.analysis.systems.attention.results import AttentionReport as AttentionReport
    from fpsim.analysis.systems.attention.results import CacheReport as CacheReport
    from fpsim.analysis.systems.attention.results import WeightUnderflow as WeightUnderflow
    from fpsim.analysis.systems.attention.underflow import attention_underflow as attention_underflow
    from fpsim.analysis.systems.claims.claims import claims as claims
    from fpsim.analysis.systems.claims.report import ClaimsReport as ClaimsReport
    from fpsim.analysis.systems.invariance.batches import batch_invariance as batch_invariance
    from fpsim.analysis.systems.invariance.decoding import RandomDecoder as RandomDecoder
    from fpsim.analysis.systems.invariance.decoding import decoding as decoding
    from fpsim.analysis.systems.invariance.results import BatchInvariance as BatchInvariance
    from fpsim.analysis.systems.invariance.results import DecodingReport as DecodingReport
    from fpsim.analysis.systems.invariance.run_report import RunComparison as RunComparison
    from fpsim.analysis.systems.invariance.runs import compare_runs as compare_runs
    from fpsim.analysis.systems.invariance.scheduled import ScheduledProduct as ScheduledProduct
    from fpsim.analysis.systems.invariance.tensor_log import TensorLog as TensorLog
    from fpsim.analysis.systems.memory.bits import BitsTable as BitsTable
    from fpsim.analysis.systems.memory.bits import bits_per_value as bits_per_value
    from fpsim.analysis.systems.memory.ledger import ledger as ledger
    from fpsim.analysis.systems.memory.recompute_plan import RecomputePlan as RecomputePlan
    from fpsim.analysis.systems.memory.recompute_plan import recompute_plan as recompute_plan
    from fpsim.analysis.systems.memory.report import Ledger as Ledger
    from fpsim.analysis.systems.memory.saved import SavedTensors as SavedTensors
    from fpsim.analysis.systems.memory.saved import saved_tensors as saved_tensors
    from fpsim.analysis.systems.monitors.listeners import to_events as to_events
    from fpsim.analysis.systems.monitors.listeners import to_terminal as to_terminal
    from fpsim.analysis.systems.monitors.overflow import first_overflow as first_overflow
    from fpsim.analysis.systems.monitors.page import monitors_page as monitors_page
    from fpsim.analysis.systems.processes.processes import processes as processes
    from fpsim.analysis.systems.processes.report import ProcessesReport as ProcessesReport
    from fpsim.analysis.tensors.checkpoint import CheckpointTensors as CheckpointTensors
    from fpsim.analysis.tensors.checkpoint import open as open
    from fpsim.analysis.tensors.opening import tensor as tensor
    from fpsim.analysis.tensors.tensor import Tensor as Tensor
    from fpsim.analysis.tensors.verifying.report import LayoutReport as LayoutReport
    from fpsim.analysis.tensors.verifying.verify import verify as verify
    from fpsim.divergence.divergence import Divergence as Divergence
    from fpsim.recipes.loss_scaling import LossScalingPolicy as LossScalingPolicy
    from fpsim.recipes.loss_scaling import loss_scaling_policy as loss_scaling_policy

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "measures.comparison": ["Comparison", "compare"],
        "fpsim.divergence.divergence": ["Divergence"],
        "measures.drift.drift": ["drift"],
        "measures.drift.report": ["DriftReport"],
        "measures.error_report": ["ErrorReport"],
        "measures.exponent_range": ["RangeReport", "exponents", "range"],
        "measures.scales.loss_scaling": ["LossScalingReport", "loss_scaling"],
        "fpsim.recipes.loss_scaling": ["LossScalingPolicy", "loss_scaling_policy"],
        "measures.rounding_error": ["error"],
        "measures.scales.underflow": ["UnderflowReport", "underflow"],
        "measures.survival": ["assert_survives"],
        "models.monitors": ["Monitors"],
        "models.recorder": ["record"],
        "models.recording": ["Recording"],
        "studies.planning.plan": ["plan"],
        "studies.planning.report": ["Plan"],
        "studies.budget.budget": ["budget"],
        "studies.budget.report": ["Budget"],
        "studies.budget.row": ["BudgetRow"],
        "studies.diagnosis.diagnose": ["diagnose"],
        "studies.diagnosis.report": ["Diagnosis"],
        "studies.diagnosis.verdict": ["Verdict"],
        "studies.differences.report": ["ModelDivergence"],
        "studies.differences.side_by_side": ["diff"],
        "studies.report": ["StudyReport"],
        "studies.sensitivity.report": ["Sensitivity"],
        "studies.sensitivity.row": ["SensitivityRow"],
        "studies.sensitivity.sensitivity": ["sensitivity"],
        "studies.study": ["study"],
        "studies.sweep": ["sweep"],
        "systems.monitors.listeners": ["to_events", "to_terminal"],
        "systems.monitors.overflow": ["first_overflow"],
        "systems.monitors.page": ["monitors_page"],
        "systems.claims.claims": ["claims"],
        "systems.claims.report": ["ClaimsReport"],
        "systems.processes.processes": ["processes"],
        "systems.processes.report": ["ProcessesReport"],
        "systems.accumulation.accumulation": ["accumulation"],
        "systems.accumulation.report": ["AccumulationReport"],
        "systems.memory.bits": ["BitsTable", "bits_per_value"],
        "systems.memory.ledger": ["ledger"],
        "systems.memory.recompute_plan": ["RecomputePlan", "recompute_plan"],
        "systems.memory.report": ["Ledger"],
        "systems.memory.saved": ["SavedTensors", "saved_tensors"],
        "systems": ["collectives"],
        "systems.attention.attention": ["attention"],
        "systems.attention.caches": ["kv_caches"],
        "systems.attention.recipe": ["AttentionRecipe", "KVCache"],
        "systems.attention.underflow": ["attention_underflow"],
        "systems.attention.results": ["AttentionReport", "CacheReport", "WeightUnderflow"],
        "systems.invariance.batches": ["batch_invariance"],
        "systems.invariance.decoding": ["RandomDecoder", "decoding"],
        "systems.invariance.results": ["BatchInvariance", "DecodingReport"],
        "systems.invariance.run_report": ["RunComparison"],
        "systems.invariance.runs": ["compare_runs"],
        "systems.invariance.scheduled": ["ScheduledProduct"],
        "systems.invariance.tensor_log": ["TensorLog"],
        "tensors.checkpoint": ["CheckpointTensors", "open"],
        "tensors.opening": ["tensor"],
        "tensors.tensor": ["Tensor"],
        "tensors.verifying.report": ["LayoutReport"],
        "tensors.verifying.verify": ["verify"],
    },
)
