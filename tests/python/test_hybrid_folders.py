"""Model folders of the hybrid families between transformers and longspan: what transformers wrote is read, what longspan wrote is
loaded by transformers, and every number is the same. Image part and prediction layer pass through bit for bit."""

import json
import logging

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

import glm_reference

FAMILIES = ["glm5_next", "kimi_linear"]
# type, ranks that share experts, largest file
REWRITES = {"one_file": ("F32", 1, 10**10), "shards": ("F64", 3, 30_000), "bfloat16": ("BF16", 2, 10**10)}
KEPT_WIDE = ("A_log", "dt_bias", "_base", "_scale", "e_score_correction_bias")


def tensors_of(folder):
    found = {}
    for path in folder.glob("*.safetensors"):
        found.update(load_file(path))
    return found


def load(folder, family):
    loader = AutoModelForCausalLM if family == "kimi_linear" else AutoModelForImageTextToText
    return loader.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize("family", FAMILIES)
def test_round_trip(family, rewrite, run_program, tmp_path, caplog):
    model = glm_reference.make_model(family, seed=1)
    glm_reference.save(model, tmp_path / "theirs")
    dtype, group, shard_bytes = REWRITES[rewrite]
    run_program("rewrite_model", tmp_path / "theirs", tmp_path / "ours", dtype, group, shard_bytes)
    assert (len(list((tmp_path / "ours").glob("*.safetensors"))) > 1) == (rewrite == "shards")
    stored = tensors_of(tmp_path / "ours")
    for name, value in stored.items():
        wide = any(part in name for part in KEPT_WIDE) or name.startswith("model.visual.")
        expected = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16}[dtype]
        assert value.dtype == (torch.float32 if wide and dtype == "BF16" or name.startswith("model.visual.") else expected)
    with caplog.at_level(logging.WARNING):
        again = load(tmp_path / "ours", family)
    assert not [record for record in caplog.records if "weight" in record.message.lower()], caplog.text
    original, found = model.state_dict(), again.state_dict()
    assert set(original) == set(found)
    for name, value in original.items():
        if dtype == "BF16" and not any(part in name for part in ("A_log", "dt_bias", "_hc.base", "_hc.scale", "e_score")):
            if not name.startswith("model.visual."):
                value = value.to(torch.bfloat16).to(torch.float32)
        assert torch.equal(found[name], value), name


def quantise(value):
    """A matrix in e4m3 with one scale for each block of 128 x 128, and what it means."""
    rows, columns = (-(-extent // 128) for extent in value.shape)
    scales = torch.empty(rows, columns)
    payload, meaning = torch.empty_like(value, dtype=torch.float8_e4m3fn), torch.empty_like(value)
    for i in range(rows):
        for j in range(columns):
            block = (slice(128 * i, 128 * (i + 1)), slice(128 * j, 128 * (j + 1)))
            scales[i, j] = value[block].abs().max() / 448
            payload[block] = (value[block] / scales[i, j]).to(torch.float8_e4m3fn)
            meaning[block] = payload[block].float() * scales[i, j]
    return payload, scales, meaning


def test_release_in_8_bits_with_a_prediction_layer(run_program, tmp_path):
    """Blocks with scales become plain numbers; the prediction layer keeps its 8 bits and its scales."""
    model = glm_reference.make_model("glm5_next", seed=2, hidden_size=136, q_lora_rank=130)
    folder = tmp_path / "release"
    glm_reference.save(model, folder)
    tensors, expected = load_file(folder / "model.safetensors"), {}
    for name, value in list(tensors.items()):
        expected[name] = value
        quantised = "experts." in name or any(part in name for part in ("q_a_proj", "q_b_proj", "o_proj", "down_proj.weight"))
        if quantised and value.dim() == 2 and not name.startswith("model.visual."):
            tensors[name], tensors[f"{name}_scale_inv"], expected[name] = quantise(value)
    layer = "model.language_model.layers.5."
    payload, scales, _ = quantise(torch.randn(140, 270))
    carried = {f"{layer}eh_proj.weight": payload, f"{layer}eh_proj.weight_scale_inv": scales,
               f"{layer}enorm.weight": torch.randn(136, dtype=torch.bfloat16)}
    save_file(tensors | carried, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["num_nextn_predict_layers"] = 1
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config))
    run_program("rewrite_model", folder, tmp_path / "plain", "F32")
    assert "quantization_config" not in json.loads((tmp_path / "plain/config.json").read_text())
    with safe_open(tmp_path / "plain/model.safetensors", "pt") as written:
        assert set(written.keys()) == set(expected) | set(carried)
        for name, value in carried.items():
            found = written.get_tensor(name)
            assert found.dtype == value.dtype
            assert torch.equal(found.view(torch.uint8), value.view(torch.uint8)), name
        for name, value in expected.items():
            assert torch.equal(written.get_tensor(name), value), name
    assert sum(name.endswith("_scale_inv") for name in tensors) > 80
