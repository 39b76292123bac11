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


def test_presets_load_in_transformers(run_program, tmp_path, caplog):
    listing = dict(line.split() for line in run_program("write_preset_folders", tmp_path).splitlines())
    assert len(listing) >= 6
    for name, parameters in listing.items():
        written = json.loads((tmp_path / name / "config.json").read_text())
        with caplog.at_level(logging.WARNING):
            config = transformers.AutoConfig.from_pretrained(tmp_path / name)
        for key, value in written.items():
            if key == "dtype":
                assert config.dtype == torch.float32
            elif key != "rope_theta":
                assert getattr(config, key) == value, f"{name}: {key}"
        assert config.rope_parameters["rope_theta"] == written["rope_theta"]
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        assert sum(p.numel() for p in model.parameters()) == int(parameters), name
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
