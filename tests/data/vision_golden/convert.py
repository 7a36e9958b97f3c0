"""transformers vision-language model -> decoder GGUF and projector GGUF, under the names, keys and layouts of the common converter."""

import re

import gguf
import numpy as np

import models
import vocabulary

MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]

DECODER_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
DECODER_TOP = {"model.language_model.embed_tokens.weight": "token_embd.weight",
               "model.language_model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
BLOCK_NAMES = {
    "norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
MERGER_NAMES = {"ln_q": "v.post_ln", "norm": "v.post_ln", "mlp.0": "mm.0", "mlp.2": "mm.2", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}
DEEPSTACK_NAMES = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}


def decoder_tensors(model):
    for name, value in model.state_dict().items():
        if name in DECODER_TOP:
            yield DECODER_TOP[name], value.float().numpy()
        elif match := re.fullmatch(r"model\.language_model\.layers\.(\d+)\.(.+)\.(weight|bias)", name):
            layer, stem, suffix = match.groups()
            yield f"blk.{layer}.{DECODER_NAMES[stem]}.{suffix}", value.float().numpy()


def vision_tensors(model, spec):
    """Qwen3-VL's q, k and v stay one tensor; the temporal halves of the patch embedding are two; deepstack counts by layer."""
    for name, value in model.state_dict().items():
        if not name.startswith("model.visual."):
            continue
        x = value.float().numpy()
        stem, suffix = name.removeprefix("model.visual.").rsplit(".", 1)
        if stem == "patch_embed.proj":
            if suffix == "bias":
                yield "v.patch_embd.bias", x
            else:
                yield "v.patch_embd.weight", x[:, :, 0]
                yield "v.patch_embd.weight.1", x[:, :, 1]
        elif stem == "pos_embed":
            yield "v.position_embd.weight", x
        elif match := re.fullmatch(r"blocks\.(\d+)\.(.+)", stem):
            block, role = f"v.blk.{match[1]}", BLOCK_NAMES[match[2]]
            if role == "attn_qkv" and spec.family != "Qwen3VL":
                for letter, part in zip("qkv", np.split(x, 3)):
                    yield f"{block}.attn_{letter}.{suffix}", part
            else:
                yield f"{block}.{role}.{suffix}", x
        elif match := re.fullmatch(r"deepstack_merger_list\.(\d+)\.(.+)", stem):
            layer = spec.vision["deepstack_visual_indexes"][int(match[1])]
            yield f"v.deepstack.{layer}.{DEEPSTACK_NAMES[match[2]]}.{suffix}", x
        else:
            yield f"{MERGER_NAMES[stem.removeprefix('merger.')]}.{suffix}", x


def is_known(name, arch):
    """Whether `gguf` lists the name for the architecture; the patch embedding's second half is known to the converter only."""
    stem = name.removesuffix(".1").rpartition(".")[0]
    patterns = [gguf.TENSOR_NAMES[t] for t in gguf.MODEL_TENSORS[arch]]
    return any(re.fullmatch(re.escape(p).replace(r"\{bid\}", r"\d+"), stem) for p in patterns)


def finish(writer, tensors, variant, arch):
    for name, x in tensors:
        assert is_known(name, arch), name
        half = variant == "f16" and x.ndim > 1 and "position_embd" not in name
        writer.add_tensor(name, np.ascontiguousarray(x).astype(np.float16 if half else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_decoder(model, spec, variant, path):
    writer = gguf.GGUFWriter(path, spec.arch)
    text = spec.text
    writer.add_type("model")
    writer.add_name(f"tiered vision {spec.name} {variant}")
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_embedding_length(text["hidden_size"])
    writer.add_block_count(text["num_hidden_layers"])
    writer.add_feed_forward_length(text["intermediate_size"])
    writer.add_head_count(text["num_attention_heads"])
    writer.add_head_count_kv(text["num_key_value_heads"])
    writer.add_rope_freq_base(text["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_sections([*text["rope_parameters"]["mrope_section"], 0])
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    if spec.arch == "qwen3vl":
        writer.add_key_length(text["head_dim"])
        writer.add_value_length(text["head_dim"])
        writer.add_num_deepstack_layers(len(spec.vision["deepstack_visual_indexes"]))
    writer.add_file_type(0 if variant == "f32" else 1)
    writer.add_quantization_version(2)
    names, types = models.tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(names)
    writer.add_token_types(types)
    writer.add_token_merges([f"{a} {b}" for a, b in vocabulary.MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(models.CHAT_TEMPLATE)
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == spec.arch)
    finish(writer, decoder_tensors(model), variant, arch)


def write_projector(model, spec, variant, path):
    writer = gguf.GGUFWriter(path, "clip")
    vision = spec.vision
    writer.add_type("mmproj")
    writer.add_name(f"tiered vision {spec.name} {variant}")
    writer.add_file_type(0 if variant == "f32" else 1)
    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_projection_dim(models.DIM)
    side = int(vision.get("num_position_embeddings", 0) ** 0.5)
    writer.add_vision_image_size(side * vision["patch_size"] if side else 560)
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(models.DIM)
    # The converter writes the decoder's width for Qwen2-VL.
    writer.add_vision_feed_forward_length(vision.get("intermediate_size", vision["hidden_size"]))
    writer.add_vision_block_count(vision["depth"])
    writer.add_vision_head_count(vision["num_heads"])
    writer.add_vision_image_mean(MEAN if spec.family != "Qwen3VL" else [0.5] * 3)
    writer.add_vision_image_std(STD if spec.family != "Qwen3VL" else [0.5] * 3)
    writer.add_clip_projector_type(spec.projector)
    if spec.family == "Qwen2_5_VL":
        writer.add_vision_use_silu(True)
        writer.add_vision_n_wa_pattern(vision["fullatt_block_indexes"][0] + 1)
    if spec.family == "Qwen3VL":
        writer.add_vision_use_gelu(True)
        writer.add_vision_spatial_merge_size(vision["spatial_merge_size"])
    writer.add_vision_attention_layernorm_eps(spec.text["rms_norm_eps"])
    if spec.family == "Qwen3VL":
        writer.add_vision_is_deepstack_layers([i in vision["deepstack_visual_indexes"] for i in range(vision["depth"])])
    finish(writer, vision_tensors(model, spec), variant, gguf.MODEL_ARCH.MMPROJ)
