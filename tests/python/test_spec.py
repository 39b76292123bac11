"""transformers loads the configuration of every preset and means the same model by it."""
import json
import logging
import subprocess
import sys
import pathlib

import pytest
import torch
import transformers

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def check_values(written, config, name):
    """Every written key has the same value in the configuration that transformers makes of it."""
    for key, value in written.items():
        if isinstance(value, dict) and key.endswith("_config") and key != "linear_attn_config":
            check_values(value, getattr(config, key), f"{name}: {key}")
        elif key == "dtype":
            assert config.dtype == torch.float32
        elif key != "rope_theta":
            assert getattr(config, key) == value, f"{name}: {key}"


def check_parameters(config, written, parameters, name):
    """The same number of parameters; the image part is none of ours, the routers' biases are buffers there."""
    with torch.device("meta"):
        model = getattr(transformers, written["architectures"][0])._from_config(config)
    tensors = [*model.named_parameters(), *(row for row in model.named_buffers() if "e_score" in row[0])]
    found = {parameter: value.numel() for parameter, value in tensors if not parameter.startswith("model.visual.")}
    assert sum(found.values()) == parameters, name


def test_presets_load_in_transformers(run_program, tmp_path, caplog):
    listing = dict(line.split() for line in run_program("write_preset_folders", tmp_path).splitlines())
    assert len(listing) >= 6
    for name, parameters in listing.items():
        written = json.loads((tmp_path / name / "config.json").read_text())
        with caplog.at_level(logging.WARNING):
            config = transformers.AutoConfig.from_pretrained(tmp_path / name)
        check_values(written, config, name)
        if "rope_theta" in written:
            assert config.rope_parameters["rope_theta"] == written["rope_theta"]
        check_parameters(config, written, int(parameters), name)
    assert not caplog.records, [record.message for record in caplog.records]


def test_golden_file_is_what_transformers_gives_today(tmp_path):
    """The C++ tests compare with a committed file; this one says when the library has moved on."""
    golden = REPOSITORY / "tests/golden/hf_configs.json"
    written_with = json.loads(golden.read_text())["written_with"]["transformers"]
    if transformers.__version__ != written_with:
        pytest.skip(f"transformers {transformers.__version__}, golden file of {written_with}")
    fresh = tmp_path / "hf_configs.json"
    subprocess.run([sys.executable, REPOSITORY / "scripts/write_hf_golden.py", fresh], check=True)
    assert json.loads(fresh.read_text()) == json.loads(golden.read_text())
