"""Logits, loss and every parameter gradient equal transformers, float32 to 1e-5 and float64 to 1e-10."""

import json
import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file

import reference_model

PROBE = os.path.join(os.environ["LONGSPAN_BIN_DIR"], "longspan_probe")
LENGTHS = [1, 2, 127, 128, 129, 1000]
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
ROPES = {
    "default": DEFAULT,
    "linear": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 256, "rope_theta": 500000.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "rope_theta": 10000.0},
}
CASES = [
    ("llama", 0, dict(tie_word_embeddings=False, rope_parameters=ROPES["default"])),
    ("llama", 1, dict(tie_word_embeddings=True, rope_parameters=ROPES["llama3"])),
    ("llama", 2, dict(num_key_value_heads=4, rope_parameters=ROPES["yarn"])),
    ("llama", 3, dict(num_key_value_heads=1, rope_parameters=ROPES["linear"])),
    ("qwen3", 4, dict(tie_word_embeddings=True, rope_parameters=ROPES["default"])),
    ("qwen3", 5, dict(head_dim=24, tie_word_embeddings=False, rope_parameters=ROPES["yarn"])),
]
# One rank in one piece, and a layout with everything in it.
LAYOUTS = [[], ["--ranks=3", "--chunks=2", "--band=1", "--stored-mode=context_only", "--inner-mode=layer_inputs"]]


def write_inputs(folder, family, seed, changes, dtype):
    config = reference_model.make_config(family, **changes)
    model = reference_model.make_model(config, seed, dtype)
    reference_model.keep_float32_frequencies(model)
    model.save_pretrained(folder / "model")
    generator = torch.Generator().manual_seed(seed)
    documents = [torch.randint(0, config.vocab_size, (n,), generator=generator).tolist() for n in LENGTHS]
    (folder / "documents.json").write_text(json.dumps(documents))
    return model, documents


def run_probe(folder, dtype, layout):
    output = folder / "out.safetensors"
    name = "float64" if dtype == torch.float64 else "float32"
    subprocess.run([PROBE, str(folder / "model"), str(folder / "documents.json"), str(output), f"--dtype={name}",
                    *layout], check=True, timeout=300)
    return load_file(output)


@pytest.mark.parametrize("dtype,bound", [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["fp32", "fp64"])
@pytest.mark.parametrize("family,seed,changes", CASES, ids=[f"{c[0]}_{c[1]}" for c in CASES])
def test_equals_transformers(tmp_path, family, seed, changes, dtype, bound):
    """On every layout; transformers computes once for all of them."""
    model, documents = write_inputs(tmp_path, family, seed, changes, dtype)
    logits, loss, gradients = reference_model.documents_loss_and_gradients(model, documents)
    for layout in LAYOUTS:
        found = run_probe(tmp_path, dtype, layout)
        errors = {"logits": reference_model.relative_error(found["logits"], logits),
                  "loss": abs(found["loss"].item() - loss) / loss}
        for name, gradient in gradients.items():
            errors[name] = reference_model.relative_error(found["gradient." + name], gradient)
        worst = max(errors, key=errors.get)
        print(f"{layout}: worst {worst} {errors[worst]:.2e}")
        assert errors[worst] <= bound, (layout, errors)


def test_the_comparison_can_fail(tmp_path):
    """One weight off by one per cent must be seen."""
    model, documents = write_inputs(tmp_path, *CASES[0], torch.float64)
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[3, 5] *= 1.01
    logits, _, _ = reference_model.documents_loss_and_gradients(model, documents)
    found = run_probe(tmp_path, torch.float64, [])
    assert reference_model.relative_error(found["logits"], logits) > 1e-10
