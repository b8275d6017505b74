"""Exports read by the libraries that own their layouts, where these are installed: the values of `fp.analysis.open`.

The environments in which these tests ran are in docs/layouts.md; a library that is missing skips its tests by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal

torch = pytest.importorskip("torch")


Array = np.ndarray[Any, Any]


HIDDEN, INNER, WORDS = 256, 512, 64


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": WORDS,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 128, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


LAYERS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN, HIDDEN), "self_attn.v_proj": (HIDDEN, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}  # fmt: skip


def exported(layout: str, dtype: str, out: Path, **options: Any) -> dict[str, Array]:
    """Export a Llama of one layer with a tokenizer, and return the values of its quantised weights."""
    rng = np.random.default_rng(0)

    def random(shape: tuple[int, int]) -> Array:
        return (rng.standard_normal(shape) * 0.05).astype(getattr(ml_dtypes, dtype, dtype))

    tensors = {f"model.layers.0.{name}.weight": random(shape) for name, shape in LAYERS.items()}
    ones = {f"model.layers.0.{name}.weight": HIDDEN for name in ("input_layernorm", "post_attention_layernorm")}
    for name in (*ones, "model.norm.weight"):
        tensors[name] = np.ones(HIDDEN, getattr(ml_dtypes, dtype, dtype))
    tensors |= {name: random((WORDS, HIDDEN)) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    fp.torch.export(tensors, layout=layout, out=out, config={**CONFIG, "dtype": dtype, "torch_dtype": dtype}, **options)
    assert fp.analysis.verify(out).ok
    checkpoint = fp.analysis.open(out, dtype)
    return {name: checkpoint[f"model.layers.0.{name}.weight"] for name in LAYERS}


def stored(out: Path) -> dict[str, Any]:
    """Return the tensors of an export, read by safetensors."""
    load_file = pytest.importorskip("safetensors.torch").load_file
    return dict(load_file(out / "model.safetensors"))


def save_tokenizer(out: Path) -> None:
    """Write a tokenizer of a few words, without which gptqmodel does not load a model."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = {f"w{i}": i for i in range(WORDS - 1)} | {"<unk>": WORDS - 1}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>", pad_token="<unk>").save_pretrained(
        out
    )


GPTQ = [
    ("gptq", {}), ("gptq_v2", {}), ("gptq", {"symmetric": False}), ("gptq_v2", {"symmetric": False}),
    ("gptq", {"bits": 8}), ("gptq", {"group_size": 32, "symmetric": False}), ("awq", {}), ("awq", {"group_size": 64}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(("layout", "options"), GPTQ)
def test_gptqmodel_reads_gptq_and_awq(layout: str, options: dict[str, Any], tmp_path: Path) -> None:
    gptqmodel = pytest.importorskip("gptqmodel")
    wanted = exported(layout, "float16", tmp_path, **options)
    save_tokenizer(tmp_path)
    backend = gptqmodel.BACKEND.AWQ_TORCH if layout == "awq" else gptqmodel.BACKEND.GPTQ_TORCH
    model = gptqmodel.GPTQModel.load(str(tmp_path), device="cpu", dtype=torch.float16, backend=backend).model
    for name, values in wanted.items():
        layer = model.get_submodule(f"model.layers.0.{name}")
        if layout == "awq":
            x = torch.zeros(1, layer.in_features, dtype=torch.float16)
            weight = layer._dequantize_weight_for_inference(x, dtype=torch.float16)
        else:
            weight = layer.dequantize_weight()
        assert_bits_equal(weight.T.float().contiguous().numpy(), values)


@pytest.mark.parametrize("options", [{}, {"symmetric": False}, {"bits": 8}, {"group_size": 32, "symmetric": False}])
def test_auto_gptq_reads_gptq(options: dict[str, Any], tmp_path: Path) -> None:
    """Its layers multiply the identity, each product with 1 and 0 exact."""
    auto_gptq = pytest.importorskip("auto_gptq", exc_type=ImportError)
    wanted = exported("gptq", "float16", tmp_path, **options)
    model = auto_gptq.AutoGPTQForCausalLM.from_quantized(
        str(tmp_path), device="cpu", disable_exllama=True, disable_exllamav2=True, torch_dtype=torch.float16
    ).model
    for name, values in wanted.items():
        layer = model.get_submodule(f"model.layers.0.{name}")
        weight = layer(torch.eye(values.shape[1], dtype=torch.float16)).T
        assert_bits_equal(weight.float().contiguous().numpy() + np.float32(0), values + np.float32(0))


@pytest.mark.parametrize("group_size", [128, 64])
def test_autoawq_reads_awq(group_size: int, tmp_path: Path) -> None:
    packing = pytest.importorskip("awq.utils.packing_utils", exc_type=ImportError)
    wanted = exported("awq", "float16", tmp_path, group_size=group_size)
    tensors = stored(tmp_path)
    for name, values in wanted.items():
        parts = [tensors[f"model.layers.0.{name}.{end}"] for end in ("qweight", "qzeros", "scales")]
        weight = packing.dequantize_gemm(*parts, 4, group_size).T
        assert_bits_equal(weight.float().contiguous().numpy(), values)


@pytest.mark.parametrize("layout", ["modelopt:fp8", "modelopt:fp8_channel", "modelopt:nvfp4", "modelopt:mxfp8"])
def test_modelopt_reads_its_layouts(layout: str, tmp_path: Path) -> None:
    qtensor = pytest.importorskip("modelopt.torch.quantization.qtensor", exc_type=ImportError)
    wanted = exported(layout, "bfloat16", tmp_path)
    tensors = stored(tmp_path)
    for name, values in wanted.items():
        prefix = f"model.layers.0.{name}.weight"
        codes, scale = tensors[prefix], tensors[f"{prefix}_scale"]
        shape = torch.Size(values.shape)
        if layout == "modelopt:nvfp4":
            weight = qtensor.NVFP4QTensor(shape, torch.bfloat16, codes).dequantize(
                scale=scale, double_scale=tensors[f"{prefix}_scale_2"], block_sizes={-1: 16}
            )
        elif layout == "modelopt:mxfp8":
            weight = qtensor.MXFP8QTensor(shape, torch.bfloat16, codes).dequantize(scale=scale)
        else:
            scale = scale[:, None] if scale.ndim else scale
            weight = qtensor.FP8QTensor(shape, torch.bfloat16, codes).dequantize(torch.float32, scale=scale).bfloat16()
        assert_bits_equal(weight.float().numpy(), values)


@pytest.mark.parametrize(("bits", "dtype"), [(8, "float16"), (4, "bfloat16"), (2, "float32"), (1, "bfloat16")])
def test_hqq_reads_its_layout(bits: int, dtype: str, tmp_path: Path) -> None:
    quantize = pytest.importorskip("hqq.core.quantize", exc_type=ImportError)
    wanted = exported(f"hqq:int{bits}", dtype, tmp_path)
    tensors = stored(tmp_path)
    for name, values in wanted.items():
        prefix = f"model.layers.0.{name}."
        parts = {key.removeprefix(prefix): x for key, x in tensors.items() if key.startswith(prefix)}
        layer = quantize.HQQLinear(None, None, device="cpu", compute_dtype=getattr(torch, dtype), initialize=False)
        layer.load_state_dict(parts)
        assert_bits_equal(layer.dequantize().float().numpy(), values)


LOADED = [
    ("bitsandbytes:int8", "bitsandbytes"), ("bitsandbytes:nf4", "bitsandbytes"),
    ("bitsandbytes:nf4_double", "bitsandbytes"), ("torchao:mxfp8_swizzled", "torchao"),
    ("torchao:mxfp4_swizzled", "torchao"), ("torchao:nvfp4_swizzled", "torchao"),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "library"), LOADED)
def test_transformers_loads_and_runs(layout: str, library: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip(library)
    wanted = exported(layout, "bfloat16", tmp_path)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto", output_loading_info=True)
    assert not any(info.values())
    for name, values in wanted.items():
        layer = model.get_submodule(f"model.layers.0.{name}")
        if layout == "bitsandbytes:int8":
            functional = pytest.importorskip("bitsandbytes.functional")
            weight = functional.int8_vectorwise_dequant(layer.weight.data, layer.weight.SCB).bfloat16()
        elif library == "bitsandbytes":
            functional = pytest.importorskip("bitsandbytes.functional")
            weight = functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        else:
            weight = layer.weight.dequantize()
        assert_bits_equal(weight.detach().float().numpy(), values)
    assert bool(torch.isfinite(model(torch.arange(8)[None]).logits).all())
