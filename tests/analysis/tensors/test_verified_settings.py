"""`fp.analysis.verify`: contradictions in configurations, scales of inputs, and scales that contradict their codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from tests.analysis.tensors.test_layouts import ROWS
from tests.analysis.tensors.test_verify import Corruption, put, without
from tests.analysis.tensors.verify_cases import Arrays, copied, mapped


def scheme(layout: str, part: str = "weights", **fields: Any) -> dict[str, Any]:
    """Return the layout's configuration with other fields in the only scheme of its weights or inputs."""
    [(name, group)] = ROWS[layout]["config"]["config_groups"].items()
    return {"config_groups": {name: {**group, part: {**(group[part] or {}), **fields}}}}


def with_state(**fields: Any) -> Any:
    """Return a change of fields of bitsandbytes' state, JSON that is stored as bytes."""

    def change(state: Any) -> Any:
        content = {**json.loads(state.tobytes()), **fields}
        return np.frombuffer(json.dumps(content).encode(), np.uint8)

    return mapped("weight.quant_state.bitsandbytes__nf4", change)


def lone_codes(arrays: Arrays) -> None:
    """Make one scale of a 16-code block 0 and one of its codes not 0."""
    arrays["weight_scale"].view(np.uint8).reshape(-1)[5] = 0
    arrays["weight_packed"].reshape(-1)[5 * 8 + 3] = 0x07


CORRUPTIONS: dict[str, Corruption] = {
    "deepseek: block of another type": Corruption(
        "fp8_block_deepseek_v3", None, "weight_block_size must be a list of two integers >= 1, rows and columns; got",
        {"weight_block_size": [-128, 0]},
    ),
    "deepseek: block of a bool": Corruption(
        "fp8_block_deepseek_v3", None, "weight_block_size must be a list", {"weight_block_size": [True, 128]}
    ),
    "deepseek: block as text": Corruption(
        "fp8_block_deepseek_v3", None, "got '128x128'", {"weight_block_size": "128x128"}
    ),
    "deepseek: method of another type": Corruption(
        "fp8_block_deepseek_v3", None, "quant_method must be a text; got ['fp8']", {"quant_method": ["fp8"]}
    ),
    "deepseek: another format": Corruption("fp8_block_deepseek_v3", None, "says fmt 'e5m2'", {"fmt": "e5m2"}),
    "deepseek: codes as bytes": Corruption(
        "fp8_block_deepseek_v3", mapped("weight", lambda w: w.view(np.uint8)), "codes are stored as uint8; the layout's"
    ),
    "deepseek: codes of E5M2": Corruption(
        "fp8_block_deepseek_v3", mapped("weight", lambda w: w.view(ml_dtypes.float8_e5m2)), "stored as float8_e5m2"
    ),
    "deepseek: scale of 0": Corruption(
        "fp8_block_deepseek_v3", put("weight_scale_inv", (0, 1), 0), "1 of its 4 scales in weight_scale_inv is 0, the"
    ),
    "deepseek: one scale too large": Corruption(
        "fp8_block_deepseek_v3", mapped("weight_scale_inv", lambda s: s * np.array([[1, 1], [1e7, 1]], np.float32)),
        "the scale at index 2 of weight_scale_inv makes weights as large as",
    ),
    "ue8m0: called float": Corruption("fp8_block_ue8m0", None, "says scale_fmt float", {"scale_fmt": "float"}),
    "gptq: bits of a bool": Corruption("gptq_v1_asym", None, "bits must be an integer >= 1; got True", {"bits": True}),
    "gptq: bits of a NaN": Corruption("gptq_v1_asym", None, "bits must be an integer >= 1; got nan", {"bits": np.nan}),
    "gptq: no groups": Corruption("gptq_v1_asym", None, "or -1 for whole columns; got 0", {"group_size": 0}),
    "gptq: one group takes all": Corruption(
        "gptq_v2_act_order", mapped("g_idx", np.zeros_like), "its g_idx assigns 256 inputs to group 0; groups have 64"
    ),
    "awq: another version": Corruption("awq_gemm", None, "says version 'gemv', and", {"version": "gemv"}),
    "awq: no zero points": Corruption("awq_gemm", None, "says zero_point false, and", {"zero_point": False}),
    "ct fp8: one scale of 0": Corruption(
        "ct_fp8_channel", put("weight_scale", (5, 0), 0), "1 of its 64 scales in weight_scale is 0, the first"
    ),
    "ct nvfp4: one scale of 0": Corruption("ct_nvfp4", lone_codes, "is 0, the first at index 5, although codes"),
    "ct nvfp4: bits": Corruption("ct_nvfp4", None, "8 bits, and the weight is NVFP4", scheme("ct_nvfp4", num_bits=8)),
    "ct nvfp4: format": Corruption(
        "ct_nvfp4", None, "says format pack-quantized, and its tensors are", {"format": "pack-quantized"}
    ),
    "ct nvfp4: no input scale": Corruption(
        "ct_nvfp4", without("input_global_scale"), "up_proj.input_global_scale is missing"
    ),
    "ct nvfp4: input scale": Corruption(
        "ct_nvfp4", put("input_global_scale", 0, np.nan), "scales of inputs must be finite and positive; got nan"
    ),
    "ct nvfp4: no schemes": Corruption("ct_nvfp4", None, "config_groups name no scheme", {"config_groups": {}}),
    "ct nvfp4: a list of schemes": Corruption(
        "ct_nvfp4", None, "config_groups must be an object of objects", {"config_groups": [1]}
    ),
    "ct int8: strategy of another type": Corruption(
        "ct_int8_w8a8", None, "strategy of the weights of group_0 must be a text", scheme("ct_int8_w8a8", strategy=[1])
    ),
    "ct int8: unsigned": Corruption(
        "ct_int8_w8a8", mapped("weight", lambda w: w.view(np.uint8)), "stored as uint8 without zero points"
    ),
    "ct int8: another type": Corruption(
        "ct_int8_w8a8", None, "says type float, and the weight is INT8", scheme("ct_int8_w8a8", type="float")
    ),
    "ct int8: scales of one axis": Corruption(
        "ct_int8_w8a8", mapped("weight_scale", lambda s: s[:, 0]), "multiplies by scales of (64, 1)"
    ),
    "ct int8: symmetric of another type": Corruption(
        "ct_int8_w8a8", None, "symmetric of the weights of group_0 must be true or false; got 1",
        scheme("ct_int8_w8a8", symmetric=1),
    ),
    "modelopt nvfp4: input scale": Corruption("modelopt_nvfp4", put("input_scale", (), -1), "and positive; got -1"),
    "modelopt fp8: no input scale": Corruption("modelopt_fp8", without("input_scale"), "input_scale is missing"),
    "gpt-oss: blocks without an axis": Corruption(
        "mxfp4_gpt_oss", mapped("_blocks", lambda b: b.reshape(2, 64, 128)), "need blocks of one more axis"
    ),
    "bnb double: negative scales": Corruption(
        "bnb_nf4_double", with_state(nested_offset=0.0), "negative once nested_absmax and nested_offset are applied"
    ),
    "bnb double: nested scale of 0": Corruption(
        "bnb_nf4_double", put("weight.nested_absmax", 0, 0), "nested_absmax at index 0 is 0, although codes"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_contradictions_are_named(name: str, tmp_path: Path) -> None:
    layout, change, said, settings = CORRUPTIONS[name]
    report = fp.analysis.verify(copied(layout, tmp_path, change, **settings))
    assert not report.ok
    assert any(said in problem for problem in report.problems), report.problems


def test_fields_that_are_null_or_of_other_libraries_pass(tmp_path: Path) -> None:
    path = copied("gptq_v1_asym", tmp_path, None, group_size=64, damp_percent=0.1, meta={"bits": True}, extra=[None])
    assert fp.analysis.verify(path).ok


def test_scales_of_zero_over_codes_of_zero_pass(tmp_path: Path) -> None:
    def change(arrays: Arrays) -> None:
        arrays["weight"].view(np.uint8)[5] = 0
        arrays["weight_scale"][5] = 0

    assert fp.analysis.verify(copied("ct_fp8_channel", tmp_path, change)).ok


def test_an_unknown_method_of_quantisation_is_told_of(tmp_path: Path) -> None:
    report = fp.analysis.verify(copied("fp8_block_deepseek_v3", tmp_path, quant_method="fancy"))
    assert report.ok
    assert report.notes[0] == (
        "config.json says quant_method 'fancy', which fpsim does not know: its settings were not checked."
    )
    (tmp_path / "plain").mkdir()
    np.savez(tmp_path / "plain" / "w.npz", w=np.ones((4, 4), np.float32))
    (tmp_path / "plain" / "config.json").write_text('{"quantization_config": {"quant_method": "fancy"}}')
    (note,) = fp.analysis.verify(tmp_path / "plain" / "w.npz").notes
    assert note.startswith("config.json says quant_method 'fancy'")
