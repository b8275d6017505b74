"""Roles of tensors, read from names, shapes and neighbours as checkpoints in the wild have them."""

from __future__ import annotations

from fpsim.analysis.tensors.roles import ROLES, role_of
from tests.kit.sweeps import in_turn

CASES = [
    ("model.layers.0.self_attn.q_proj.weight", (4096, 4096), "matrix"),
    ("transformer.h.0.attn.c_attn.weight", (768, 2304), "matrix"),
    ("blk.3.ffn_gate.weight", (512, 2048), "matrix"),
    ("lm_head.weight", (32000, 4096), "matrix"),
    ("conv1.weight", (64, 3, 7, 7), "matrix"),
    ("encoder.conv.0.weight_v", (256, 128, 3), "matrix"),
    ("output_proj.weight_v", (360, 512), "matrix"),
    ("output_proj.weight_g", (360, 1), "norm"),
    ("input.parametrizations.weight.original0", (360, 1), "norm"),
    ("input.parametrizations.weight.original1", (360, 512), "matrix"),
    ("score.weight_v", (1, 512), "matrix"),
    ("disc.conv.weight_v", (512,), "statistics"),
    ("disc.conv.parametrizations.weight.0._u", (64,), "statistics"),
    ("lstm.weight_hh_l0", (512, 128), "matrix"),
    ("input.lstm.weight_hh_l0", (512, 128), "matrix"),
    ("visual.patch_embed.proj.weight", (768, 3, 16, 16), "matrix"),
    ("vision_model.embeddings.patch_embedding.weight", (768, 3, 32, 32), "matrix"),
    ("unet.time_embedding.linear_1.weight", (1280, 320), "matrix"),
    ("encoder.pos_conv_embed.conv.weight_v", (768, 48, 128), "matrix"),
    ("unet.time_embedding.linear_1.bias", (1280,), "bias"),
    ("lin2.model.1.weight", (1, 384, 1, 1), "matrix"),
    ("score.weight", (1, 768), "matrix"),
    ("patch.norm.weight", (1, 384, 1, 1), "norm"),
    ("blocks.0.gamma", (1, 384, 1, 1), "norm"),
    ("vit.cls_token", (1, 1, 768), "embedding"),
    ("cls_token", (1, 1, 768), "embedding"),
    ("dist_token", (1, 1, 384), "embedding"),
    ("vision_model.embeddings.class_embedding", (768,), "embedding"),
    ("embeddings.LayerNorm.gamma", (768,), "norm"),
    ("time_embed.0.weight", (320,), "norm"),
    ("shared.weight", (32128, 512), "embedding"),
    ("model.shared.weight", (50265, 1024), "embedding"),
    ("model.layers.0.mlp.shared.0.weight", (512, 512), "matrix"),
    ("blocks.0.att.time_faaaa", (12, 64), "statistics"),
    ("blocks.0.att.time_first", (12, 64), "statistics"),
    ("conv2d_180.w_0", (480, 240, 1, 1), "matrix"),
    ("params/Dense_0/kernel", (128, 64), "matrix"),
    ("model.layers.0.mlp.experts.gate_up_proj", (8, 256, 512), "matrix"),
    ("model.embed_tokens.weight", (32000, 4096), "embedding"),
    ("transformer.wte.weight", (50257, 768), "embedding"),
    ("token_embd.weight", (2048, 4096), "embedding"),
    ("vit.pos_embed", (1, 197, 768), "embedding"),
    ("swin.absolute_pos_embed", (4, 49, 96), "embedding"),
    ("layers.0.blocks.1.attn.relative_position_bias_table", (169, 4), "embedding"),
    ("block.0.layer.0.SelfAttention.relative_attention_bias.weight", (32, 8), "embedding"),
    ("image_encoder.blocks.0.attn.rel_pos_h", (27, 64), "embedding"),
    ("dino.register_tokens", (1, 4, 1024), "embedding"),
    ("backbone.layers.0.mixer.A_log", (1536, 16), "statistics"),
    ("model.project_embeddings.weight", (32000, 4096), "embedding"),
    ("bert.embeddings.position_embeddings.weight", (512, 768), "embedding"),
    ("embed_out.weight", (50432, 512), "matrix"),
    ("decoder.embed_to_logits.weight", (1024, 512), "matrix"),
    ("fc.bias", (64,), "bias"),
    ("layers.3.attn.rel_bias", (8, 32, 32), "bias"),
    ("conv2d_3.b_0", (16,), "bias"),
    ("lstm.bias_ih_l0", (512,), "bias"),
    ("model.layers.0.input_layernorm.weight", (4096,), "norm"),
    ("output_norm.weight", (4096,), "norm"),
    ("transformer.h.0.ln_1.weight", (768,), "norm"),
    ("layer1.0.bn2.weight", (64,), "norm"),
    ("params/LayerNorm_0/scale", (128,), "norm"),
    ("layer1.0.bn2.running_var", (64,), "statistics"),
    ("BatchNorm_0.moving_mean", (64,), "statistics"),
    ("rope.inv_freq", (64,), "statistics"),
    ("model.layers.3.mlp.down_proj.weight_scale_inv", (56, 144), "statistics"),
    ("model.layers.0.self_attn.q_proj.scales", (32, 4096), "statistics"),
    ("params/Dense_0/scale", (1, 128), "norm"),
    ("model.layers.0.mlp.up_proj.weight_scale_inv", (1, 2), "statistics"),
    ("model.layers.0.mlp.up_proj.weight_scale", (256, 1), "statistics"),
    ("model.layers.0.mlp.up_proj.weight_scale", (256,), "statistics"),
    ("model.layers.0.mlp.up_proj.weight.absmax", (256,), "statistics"),
    ("model.layers.0.mlp.up_proj.SCB", (64,), "statistics"),
    ("model.layers.0.mlp.router.weight", (8, 64), "router"),
    ("model.layers.0.block_sparse_moe.gate.weight", (8, 4096), "router"),
    ("model.layers.3.mlp.gate.weight", (256, 7168), "router"),
    ("transformer.blocks.0.ffn.router.layer.weight", (16, 6144), "router"),
    ("blk.0.ffn_gate_inp.weight", (8, 4096), "router"),
    ("params/moe/router/kernel", (512, 8), "router"),
    ("model.layers.3.mlp.shared_expert_gate.weight", (1, 2048), "router"),
    ("mlp.gate.weight", (1376, 512), "matrix"),
    ("mlp.gate_proj.weight", (1376, 512), "matrix"),
    ("model.layers.0.mlp.router.bias", (8,), "bias"),
    ("lstm.gate.weight", (64, 512), "matrix"),
    ("stft.forward_basis_buffer", (258, 1, 256), "transform"),
    ("spectrogram_extractor.stft.conv_real.weight", (513, 1, 1024), "transform"),
    ("stft_conv.weight", (258, 1, 256), "transform"),
    ("cqt_kernels_real", (84, 1, 16384), "transform"),
    ("mel_filters", (80, 201), "transform"),
    ("preprocessor.featurizer.fb", (1, 80, 257), "matrix"),
    ("feature.mel_scale.fb", (201, 128), "transform"),
    ("MFCC.dct_mat", (128, 40), "transform"),
    ("encoder.fft_blocks.0.conv.weight", (256, 256, 9), "matrix"),
    ("pos", (1, 197, 768), "embedding"),
    ("encoder.pos", (197, 768), "embedding"),
    ("position_embd.weight", (512, 384), "embedding"),
    ("token_types.weight", (2, 384), "embedding"),
    ("decoder.positional.pe", (5000, 1, 512), "embedding"),
    ("state.0.exp_avg", (64, 64), "optimizer_state"),
    ("optimizer.state.3.exp_avg_sq", (64,), "optimizer_state"),
    ("optimizer/adam/m/Dense_0/kernel", (64, 64), "optimizer_state"),
    ("logit_scale", (), "scalar"),
    ("alpha", (1, 1, 1), "scalar"),
    ("block1.fc.weight.grad", (64, 64), "gradient"),
    ("gradients", (64,), "gradient"),
    ("layer3 output", (64, 128), "activation"),
    ("weights", (4096,), "matrix"),
    ("x", (4096,), "matrix"),
    ("_fsdp_wrapped_module._flat_param", (10_000_000,), "matrix"),
]


@in_turn("name, shape, role", CASES)
def test_a_role_is_what_an_engineer_would_say(name: str, shape: tuple[int, ...], role: str) -> None:
    assert role_of(name, shape) == role
    assert role in ROLES


def test_neighbours_tell_a_batch_norm_from_others() -> None:
    beside = ["net.1.weight", "net.1.bias", "net.1.running_mean", "net.1.running_var"]
    assert role_of("net.1.weight", (64,), beside) == "norm"
    assert role_of("net.1.bias", (64,), beside) == "bias"


@in_turn("name", ["time_embed.0", "x_embedder", "context_embedder", "label_emb.0.0"])
def test_a_bias_tells_a_layer_from_a_table(name: str) -> None:
    assert role_of(f"{name}.weight", (512, 128), [f"{name}.weight", f"{name}.bias"]) == "matrix"
    assert role_of(f"{name}.weight", (512, 128), [f"{name}.weight"]) in ("embedding", "matrix")
    assert role_of("tok_embeddings.weight", (512, 128), ["output.bias", "tok_embeddings.weight"]) == "embedding"
