"""The tiny random models behind the golden fixtures: shapes, weights, and the types of the quantised files."""

from dataclasses import dataclass

import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as T

BLOCK_32 = [T.Q8_0, T.Q4_0, T.Q5_1, T.IQ4_NL, T.Q4_1, T.Q5_0, T.MXFP4, T.BF16, T.F16]
ALL = ("f32", "f16", "mixed")
BLOCK_256 = [T.Q4_K, T.Q6_K, T.Q2_K, T.Q5_K, T.IQ4_XS, T.Q3_K]


@dataclass
class Spec:
    name: str
    arch: str                                     # general.architecture of the file
    family: str                                   # prefix of the transformers classes
    config: dict
    seed: int
    vocabulary: str = "ascii"                     # see vocabulary.py
    pre: str = "gpt-2"
    embedding_type: T = T.Q8_0                    # types in the quantised file
    output_type: T = T.Q5_1
    first_type: int = 0                           # where in BLOCK_32 the rotation over the matrices starts
    files: tuple = ("f32", "mixed")
    own_head_size: bool = False                   # writes attention.key_length and value_length
    wrong_permutation: bool = False               # also writes a file whose q and k are not permuted
    images: bool = False                          # also writes a fixture of tokens and vectors, see make_golden.py
    deepstack: int = 0                            # layers behind which vectors are added


def dims(layers, width, heads, kv_heads, feed_forward, head_dim=None, **more):
    values = dict(num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv_heads,
                  intermediate_size=feed_forward, max_position_embeddings=256, **more)
    return values | ({"head_dim": head_dim} if head_dim else {})


def rope(base, **more):
    return {"rope_theta": base, "rope_type": more.pop("rope_type", "default"), **more}


LLAMA3 = rope(10000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
GEMMA = {"sliding_attention": rope(10000.0), "full_attention": rope(1000000.0)}

VISION = ("Qwen2_5_VL", "Qwen3VL")  # families of which the text part is built

SPECS = [
    Spec("llama", "llama", "Llama", seed=11, output_type=T.Q4_1, files=ALL,
         config=dims(2, 64, 4, 2, 32, rms_norm_eps=1e-5, rope_parameters=rope(10000.0), tie_word_embeddings=False)),
    Spec("llama_tied", "llama", "Llama", seed=12, vocabulary="bytes", first_type=2, embedding_type=T.Q5_0,
         config=dims(2, 32, 2, 1, 64, rms_norm_eps=1e-5, rope_parameters=rope(100000.0), tie_word_embeddings=True)),
    Spec("llama3_rope", "llama", "Llama", seed=13, pre="llama-bpe", first_type=4, own_head_size=True,
         config=dims(2, 32, 2, 1, 64, 32, rms_norm_eps=1e-5, rope_parameters=LLAMA3, tie_word_embeddings=True)),
    Spec("mistral", "llama", "Mistral", seed=14, first_type=6, own_head_size=True, embedding_type=T.Q4_0,
         config=dims(2, 64, 2, 1, 32, 16, rms_norm_eps=1e-5, rope_parameters=rope(1000000.0), sliding_window=None,
                     tie_word_embeddings=False)),
    Spec("minitron", "llama", "Llama", seed=15, first_type=8, own_head_size=True, wrong_permutation=True,
         config=dims(2, 32, 4, 2, 32, 16, rms_norm_eps=1e-5, rope_parameters=rope(500000.0), tie_word_embeddings=False)),
    Spec("qwen2", "qwen2", "Qwen2", seed=16, pre="qwen2", first_type=1, output_type=T.IQ4_NL, files=ALL,
         config=dims(2, 32, 2, 1, 64, rms_norm_eps=1e-6, rope_parameters=rope(1000000.0), use_sliding_window=False,
                     tie_word_embeddings=False)),
    Spec("qwen3", "qwen3", "Qwen3", seed=17, pre="qwen2", first_type=3, own_head_size=True, files=ALL,
         config=dims(2, 32, 4, 2, 64, 16, rms_norm_eps=1e-6, rope_parameters=rope(1000000.0), use_sliding_window=False,
                     tie_word_embeddings=True)),
    Spec("qwen3moe", "qwen3moe", "Qwen3Moe", seed=18, pre="qwen2", first_type=5, own_head_size=True, files=ALL,
         config=dims(2, 32, 4, 2, 96, 16, rms_norm_eps=1e-6, rope_parameters=rope(1000000.0), use_sliding_window=False,
                     tie_word_embeddings=False, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
                     norm_topk_prob=True)),
    Spec("qwen2vl", "qwen2vl", "Qwen2_5_VL", seed=22, pre="qwen2", files=("f32",), images=True,
         config=dims(2, 32, 2, 1, 64, rms_norm_eps=1e-6, rope_parameters=rope(1000000.0, mrope_section=[2, 3, 3]),
                     use_sliding_window=False, tie_word_embeddings=False)),
    Spec("qwen3vl", "qwen3vl", "Qwen3VL", seed=23, pre="qwen2", own_head_size=True, files=("f32",), images=True, deepstack=1,
         config=dims(2, 32, 4, 2, 64, 16, rms_norm_eps=1e-6, rope_parameters=rope(1000000.0, mrope_section=[4, 2, 2]),
                     tie_word_embeddings=True)),
    Spec("gemma3", "gemma3", "Gemma3", seed=19, pre="default", first_type=7, own_head_size=True, files=ALL,
         config=dims(7, 32, 4, 1, 32, 16, rms_norm_eps=1e-6, rope_parameters=GEMMA, sliding_window=8,
                     query_pre_attn_scalar=16, tie_word_embeddings=True)),
    Spec("llama_k", "llama", "Llama", seed=20, embedding_type=T.Q6_K, output_type=T.Q5_K, own_head_size=True,
         files=("mixed",),
         config=dims(1, 256, 2, 1, 256, 16, rms_norm_eps=1e-5, rope_parameters=rope(10000.0), tie_word_embeddings=False)),
    Spec("qwen3moe_k", "qwen3moe", "Qwen3Moe", seed=21, pre="qwen2", embedding_type=T.Q5_K, output_type=T.Q6_K,
         own_head_size=True, files=("mixed",),
         config=dims(1, 256, 2, 1, 96, 16, rms_norm_eps=1e-6, rope_parameters=rope(1000000.0), use_sliding_window=False,
                     tie_word_embeddings=False, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
                     norm_topk_prob=True)),
]


def make_config(family, values, vocab_size):
    """The transformers config, with the implementations that compute in the plain way."""
    text = "Text" if family == "Gemma3" or family in VISION else ""
    config = getattr(transformers, f"{family}{text}Config")(vocab_size=vocab_size, bos_token_id=1, eos_token_id=2,
                                                            pad_token_id=None, **values)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return config


class TextWithHead(torch.nn.Module):
    """The text part of a vision-language model, which transformers has no class with a head for."""

    def __init__(self, family, config):
        super().__init__()
        self.config = config
        self.model = getattr(transformers, f"{family}TextModel")(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, *args, **more):
        out = self.model(*args, **more)
        out.logits = self.lm_head(out.last_hidden_state)
        return out


def make_model(family, values, vocab_size, dtype=torch.float32):
    config = make_config(family, values, vocab_size)
    model = TextWithHead(family, config) if family in VISION else getattr(transformers, f"{family}ForCausalLM")(config)
    return model.to(dtype).eval()


def gain(name, tied):
    """Standard deviation of a matrix times the square root of its input width; keeps every path visible in the logits.

    Tied embeddings would repeat the last token for ever if the layers did not drown it.
    """
    for part, value in {"q_proj": 1.6, "k_proj": 1.6, "mlp.gate.": 1.5, "gate_proj": 1.3, "gate_up_proj": 1.3,
                        "up_proj": 1.3, "lm_head": 2.0}.items():
        if part in name:
            return value
    return 3.0 if tied and ("o_proj" in name or "down_proj" in name) else 1.0


def random_weight(name, shape, rng, spec):
    if name.endswith("norm.weight"):
        centre = 0.0 if spec.arch == "gemma3" else 1.0  # Gemma multiplies by 1 + weight
        return centre + (0.5 if "_norm" in name else 0.0) + 0.2 * rng.standard_normal(shape)
    if name.endswith(".bias"):
        return 0.3 * rng.standard_normal(shape)
    if "embed_tokens" in name:
        scale = 1 / np.sqrt(shape[1]) if spec.arch == "gemma3" else 0.5 if spec.config["tie_word_embeddings"] else 1.0
        return (scale * rng.standard_normal(shape)).astype(np.float16)
    return (gain(name, spec.config["tie_word_embeddings"]) / np.sqrt(shape[-1]) * rng.standard_normal(shape)).astype(np.float16)


def build(spec, vocab_size):
    """The model with seeded weights. Matrices are exact in float16, so that the F32 and F16 files mean the same model."""
    model = make_model(spec.family, spec.config, vocab_size)
    rng = np.random.default_rng(spec.seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            weight.copy_(torch.from_numpy(random_weight(name, tuple(weight.shape), rng, spec).astype(np.float32)))
    return model


def tensor_type(spec, variant, name, width, counter):
    """The type of one tensor in the file; `counter` runs over the matrices of the layers."""
    if variant == "f32" or "norm" in name or name.endswith(".bias") or "ffn_gate_inp" in name or "rope_freqs" in name:
        return T.F32
    if variant == "f16":
        return T.F16
    if name == "token_embd.weight":
        return spec.embedding_type
    if name == "output.weight":
        return spec.output_type
    wide = BLOCK_256 if width % 256 == 0 else BLOCK_32
    return wide[(spec.first_type + counter) % len(wide)]
