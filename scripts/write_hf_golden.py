"""Writes tests/golden/hf_configs.json: what transformers makes of a range of config.json texts.

    .venv/bin/python scripts/write_hf_golden.py [PATH]

Each case holds a configuration as a user may have it on disk, the values that transformers derives
from it, the rotary frequencies and scaling of the model's own rotary module, and names and shapes of
all parameters. torch runs its scalar kernels here, whose powers are rounded correctly; the
vectorised ones differ from that in the last place of about one value in a hundred.
"""
import json
import os
import pathlib
import sys

os.environ["ATEN_CPU_CAPABILITY"] = "default"

import torch  # noqa: E402  (the variable must be set first)
import transformers  # noqa: E402

SMALL_LLAMA = dict(model_type="llama", vocab_size=96, hidden_size=64, intermediate_size=160,
                   num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
SMALL_QWEN3 = dict(SMALL_LLAMA, model_type="qwen3", head_dim=32)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)
YARN = dict(rope_type="yarn", factor=16.0, original_max_position_embeddings=4096)


def cases():
    """Name and configuration; the names say what is special."""
    yield "llama4_full", dict(
        SMALL_LLAMA, architectures=["LlamaForCausalLM"], torch_dtype="bfloat16", hidden_act="silu",
        attention_bias=False, attention_dropout=0.0, mlp_bias=False, bos_token_id=1, eos_token_id=2,
        initializer_range=0.03, max_position_embeddings=4096, pretraining_tp=1, rms_norm_eps=1e-5,
        rope_scaling=None, rope_theta=500000.0, tie_word_embeddings=True, use_cache=True,
        transformers_version="4.46.0")
    yield "llama_minimal", {k: v for k, v in SMALL_LLAMA.items() if k != "num_key_value_heads"}
    yield "llama_wide_head", dict(SMALL_LLAMA, head_dim=96, num_key_value_heads=None)
    yield "llama5_written", transformers.LlamaConfig(**SMALL_LLAMA).to_dict()
    yield "qwen3_minimal", {k: v for k, v in SMALL_QWEN3.items() if k != "head_dim"}
    yield "qwen3_no_window", dict(SMALL_QWEN3, sliding_window=4096, use_sliding_window=False,
                                  max_window_layers=28, tie_word_embeddings=True, rope_theta=1e6)
    yield "qwen3_5_written", transformers.Qwen3Config(**SMALL_QWEN3, dtype="float32").to_dict()
    yield "linear4_type", dict(SMALL_LLAMA, head_dim=128, rope_theta=10000.0,
                               rope_scaling=dict(type="linear", factor=3.7))
    yield "linear5", dict(SMALL_LLAMA, head_dim=80,
                          rope_parameters=dict(rope_type="linear", factor=4, rope_theta=1e6))
    yield "llama3_4", dict(SMALL_LLAMA, head_dim=128, rope_theta=500000.0, rope_scaling=LLAMA3,
                           max_position_embeddings=131072)
    yield "llama3_5", dict(SMALL_LLAMA, head_dim=64, max_position_embeddings=131072,
                           rope_parameters=dict(LLAMA3, factor=32.0, rope_theta=500000.0))
    yield "yarn4", dict(SMALL_LLAMA, head_dim=128, rope_theta=10000.0, rope_scaling=YARN,
                        max_position_embeddings=65536)
    yield "yarn4_outer_length", dict(SMALL_LLAMA, head_dim=128, rope_theta=10000.0,
                                     rope_scaling=dict(YARN), max_position_embeddings=65536,
                                     original_max_position_embeddings=2048)
    yield "yarn5_qwen3", dict(SMALL_QWEN3, head_dim=128, max_position_embeddings=131072,
                              rope_parameters=dict(rope_type="yarn", rope_theta=1e6, factor=4.0,
                                                   original_max_position_embeddings=32768))
    yield "yarn5_mscale", dict(
        SMALL_LLAMA, head_dim=64, max_position_embeddings=163840,
        rope_parameters=dict(YARN, rope_theta=10000.0, factor=40.0, mscale=1.0, mscale_all_dim=0.7,
                             beta_fast=40, beta_slow=2))
    yield "yarn5_no_truncate", dict(
        SMALL_LLAMA, head_dim=96, max_position_embeddings=65536,
        rope_parameters=dict(YARN, rope_theta=150000.0, truncate=False, attention_factor=1.25))
    # The two ends of the ramp coincide: the reference widens it by 0.001.
    yield "yarn5_no_ramp", dict(
        SMALL_LLAMA, head_dim=16, max_position_embeddings=65536,
        rope_parameters=dict(YARN, rope_theta=10000.0, truncate=False, beta_fast=2, beta_slow=2))
    yield "yarn5_length_by_default", dict(
        SMALL_LLAMA, head_dim=32, max_position_embeddings=8192,
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=2.0))


def describe(config_dict):
    # A copy: the library fills in its argument.
    config_dict = json.loads(json.dumps(config_dict))
    config = transformers.AutoConfig.for_model(config_dict.pop("model_type"), **config_dict)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    rotary = type(model.model.rotary_emb)(config)
    dtype = config.dtype
    return dict(
        head_dim=config.head_dim,
        num_key_value_heads=config.num_key_value_heads,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        initializer_range=config.initializer_range,
        tie_word_embeddings=config.tie_word_embeddings,
        dtype="" if dtype is None else str(dtype).removeprefix("torch."),
        rope_type=config.rope_parameters["rope_type"],
        rope_theta=config.rope_parameters["rope_theta"],
        inverse_frequencies=rotary.inv_freq.double().tolist(),
        attention_scaling=rotary.attention_scaling,
        parameters=[[name, list(p.shape)] for name, p in model.named_parameters()],
    )


def main():
    committed = pathlib.Path(__file__).parent.parent / "tests" / "golden" / "hf_configs.json"
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else committed
    lines = [json.dumps(dict(name=name, config=config, expected=describe(config)))
             for name, config in cases()]
    versions = dict(transformers=transformers.__version__, torch=torch.__version__)
    path.write_text(f'{{"written_with": {json.dumps(versions)}, "cases": [\n'
                    + ",\n".join(lines) + "\n]}\n")
    print(f"{path}: {len(lines)} cases")


if __name__ == "__main__":
    main()
