"""transformers model -> GGUF file and back, under the names, keys and weight layouts of the common converter."""

import re
from pathlib import Path

import gguf
import numpy as np
import torch

import encoders
import models
import vocabulary

FAMILY = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3moe": "Qwen3Moe", "gemma3": "Gemma3",
          "qwen2vl": "Qwen2_5_VL", "qwen3vl": "Qwen3VL"}

LAYER_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
}
GEMMA_NAMES = LAYER_NAMES | {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                             "post_feedforward_layernorm": "post_ffw_norm"}
TOP_NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}


def permute(rows, heads):
    """Half-split rope rows -> interleaved rows: within a head, row (half, i) moves to (i, half)."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def unpermute(rows, heads):
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def split_name(name, arch):
    """'model.layers.3.mlp.up_proj.weight' -> 'blk.3.ffn_up.weight'."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    layer, stem, suffix = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name).groups()
    return f"blk.{layer}.{(GEMMA_NAMES if arch == 'gemma3' else LAYER_NAMES)[stem]}.{suffix}"


def file_tensors(model, arch, permuted=True):
    """Yields (file name, float32 array) in the layout of the file."""
    config = model.config
    for name, value in model.state_dict().items():
        x = value.float().numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if ".experts." in name:
            stem = f"blk.{name.split('.')[2]}"
            if name.endswith("down_proj"):
                yield f"{stem}.ffn_down_exps.weight", x
            else:
                half = x.shape[1] // 2
                yield f"{stem}.ffn_gate_exps.weight", x[:, :half]
                yield f"{stem}.ffn_up_exps.weight", x[:, half:]
            continue
        if arch == "gemma3" and name.endswith("norm.weight"):
            x = x + np.float32(1)
        if arch == "llama" and permuted and ".q_proj." in name:
            x = permute(x, config.num_attention_heads)
        if arch == "llama" and permuted and ".k_proj." in name:
            x = permute(x, config.num_key_value_heads)
        yield split_name(name, arch), x


def llama3_factors(config):
    """The divisors of the rope frequencies that the converter stores as rope_freqs.weight."""
    p = config.rope_parameters
    dim = config.head_dim
    frequency = 1.0 / p["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    turns = p["original_max_position_embeddings"] * frequency / (2 * np.pi)
    low, high = p["low_freq_factor"], p["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / p["factor"] + smooth)).astype(np.float32)


def write_metadata(writer, spec, config, variant):
    a = spec.arch
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_type("model")
    writer.add_name(f"tiered golden {spec.name} {variant}")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if spec.own_head_size:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if a == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(config.head_dim or config.hidden_size // config.num_attention_heads)
    if a == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if "mrope_section" in rope:
        writer.add_rope_dimension_sections(list(rope["mrope_section"]) + [0])
    if a == "qwen3vl":
        writer.add_num_deepstack_layers(spec.deepstack)
    if a == "gemma3":
        writer.add_sliding_window(config.sliding_window)  # neither the 5:1 pattern nor the local rope base: as real files
    writer.add_quantization_version(2)


def write_tokenizer(writer, spec):
    names, types = vocabulary.tokens(spec.vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(spec.pre)
    writer.add_token_list(names)
    writer.add_token_types(types)
    writer.add_token_merges([f"{a} {b}" for a, b in vocabulary.MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(spec.arch == "gemma3")
    if spec.vocabulary == "bytes":
        writer.add_chat_template(vocabulary.CHAT_ML)


def write(model, spec, variant, path, permuted=True):
    """Writes one file. `variant` is f32, f16 or mixed."""
    writer = gguf.GGUFWriter(path, spec.arch)
    write_metadata(writer, spec, model.config, variant)
    write_tokenizer(writer, spec)
    tensors = list(file_tensors(model, spec.arch, permuted))
    if model.config.rope_parameters.get("rope_type") == "llama3":
        tensors.insert(0, ("rope_freqs.weight", llama3_factors(model.config)))
    counter = 0
    for name, x in tensors:
        kind = models.tensor_type(spec, variant, name, x.shape[-1], counter)
        counter += name.startswith("blk.") and "norm" not in name and not name.endswith("bias") and "gate_inp" not in name
        if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
            writer.add_tensor(name, x.astype(np.float32 if kind == gguf.GGMLQuantizationType.F32 else np.float16))
        else:
            writer.add_tensor(name, encoders.encode(x, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class File:
    """A GGUF file read back: metadata by key, tensors as float32 arrays in torch order."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.name = Path(path).name
        self.metadata = {key: field.contents() for key, field in reader.fields.items()}
        self.arch = self.metadata["general.architecture"]
        self.tensors = {t.name: t for t in reader.tensors}

    def get(self, key, default=None):
        return self.metadata.get(f"{self.arch}.{key}", default)

    def array(self, name):
        t = self.tensors[name]
        shape = tuple(int(n) for n in reversed(t.shape))
        return gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape)


def config_values(file):
    """The transformers config of a file, from its metadata alone."""
    get = file.get
    heads, width = get("attention.head_count"), get("embedding_length")
    theta = get("rope.freq_base", 10000.0)
    values = models.dims(get("block_count"), width, heads, get("attention.head_count_kv", heads),
                         get("feed_forward_length"), get("attention.key_length", width // heads),
                         rms_norm_eps=get("attention.layer_norm_rms_epsilon"), rope_parameters=models.rope(theta),
                         tie_word_embeddings="output.weight" not in file.tensors)
    values["max_position_embeddings"] = get("context_length")
    if file.arch in ("qwen2", "qwen2vl"):
        values.pop("head_dim")
    if file.arch in ("qwen2vl", "qwen3vl"):
        values["rope_parameters"] = models.rope(theta, mrope_section=list(get("rope.dimension_sections"))[:3])
    if file.arch == "qwen3moe":
        values |= dict(num_experts=get("expert_count"), num_experts_per_tok=get("expert_used_count"),
                       moe_intermediate_size=get("expert_feed_forward_length"), norm_topk_prob=True)
    if file.arch == "gemma3":
        values |= dict(sliding_window=get("attention.sliding_window"), query_pre_attn_scalar=values["head_dim"],
                       rope_parameters={"sliding_attention": models.rope(10000.0), "full_attention": models.rope(theta)})
    return values


def load(path, dtype=torch.float32):
    """Rebuilds the transformers model from the file alone, its weights decoded to float32 first."""
    file = File(path)
    vocab_size = int(file.tensors["token_embd.weight"].shape[1])
    model = models.make_model(FAMILY[file.arch], config_values(file), vocab_size)
    config = model.config
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".experts." in name:
                stem = f"blk.{name.split('.')[2]}"
                parts = ["down"] if name.endswith("down_proj") else ["gate", "up"]
                x = np.concatenate([file.array(f"{stem}.ffn_{part}_exps.weight") for part in parts], axis=1)
            else:
                x = file.array(split_name(name, file.arch))
            if file.arch == "gemma3" and name.endswith("norm.weight"):
                x = x - np.float32(1)
            if file.arch == "llama" and ".q_proj." in name:
                x = unpermute(x, config.num_attention_heads)
            if file.arch == "llama" and ".k_proj." in name:
                x = unpermute(x, config.num_key_value_heads)
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(x)))
        if "rope_freqs.weight" in file.tensors:
            model.model.rotary_emb.inv_freq /= torch.from_numpy(file.array("rope_freqs.weight"))
    return model.to(dtype)
