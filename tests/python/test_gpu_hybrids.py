"""Hybrid models on a GPU, from the outside: in bfloat16 they learn one fixed batch of real text, and the export, evaluated in float32 on
the GPU, gives transformers' loss within 1e-4. The tiny presets always; glm53_flash_mini, of 3.24 billion parameters, where the GPU has 100 GiB
and LONGSPAN_MINI_FOLDER names a folder with 60 GB of room. Without a GPU these tests are skipped; where LONGSPAN_REQUIRE_GPU=1 is set
they fail instead."""
import json
import os
import pathlib
import subprocess

import pytest
import torch
import torch.nn.functional as functional
from transformers import AutoModelForImageTextToText

from small_runs import LONGSPAN, read_log
from test_hybrid_train import PRESETS, documents_with_end, write_run

MINI = "glm53_flash_mini"
STEPS = 40
ON_GPU = ["--layout.device=cuda", "--layout.ranks=1", "--layout.expert_group=1"]
# The learning rates that the test of issue and page states. Widths differ by 32, and so does the rate that suits them.
LEARNING_RATES = {"glm53_flash_tiny": 1e-2, "kimi_linear_tiny": 1e-2, MINI: 3e-4}
TIMEOUT_S = 900
# Narrow heads, and float32, run kernels that are not made for speed.
SLOW_MIXES = '--layout.allow_slow=["attention", "linear attention", "index scoring", "sparse attention"]'


@pytest.fixture(autouse=True)
def gpu():
    if not torch.cuda.is_available():
        (pytest.fail if os.environ.get("LONGSPAN_REQUIRE_GPU") == "1" else pytest.skip)("no GPU is visible")


def longspan(*arguments):
    done = subprocess.run([str(LONGSPAN), *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def transformers_loss(folder, model_class, documents):
    model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").cuda().eval()
    loss_sum, targets = 0.0, 0
    with torch.no_grad():
        for tokens in documents:
            ids = torch.tensor([tokens], device="cuda")
            logits = model(ids).logits[0].double()
            loss_sum += functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="sum").item()
            targets += len(tokens) - 1
    return loss_sum / targets, targets


def check(folder, preset, model_class):
    run = write_run(folder, preset, steps=STEPS)
    allowed = [] if preset == MINI else [SLOW_MIXES]
    longspan("train", run, *ON_GPU, *allowed, f"--optimizer.lr={LEARNING_RATES[preset]}")
    losses = [line["loss"] for line in read_log(folder / "out") if line["kind"] == "step"]
    assert len(losses) == STEPS
    assert min(losses) < losses[0] / 10, losses
    (folder / "other.txt").write_text("other text")
    longspan("eval", run, *ON_GPU, f"--data.train={folder}/other.txt", f"--data.eval={folder}/documents/*.txt",
             "--model.dtype=float32", SLOW_MIXES, "--json", folder / "eval.json")
    longspan("export", folder / "out", "--to", folder / "hf")
    evaluated = json.loads((folder / "eval.json").read_text())
    loss, targets = transformers_loss(folder / "hf", model_class, documents_with_end(folder))
    assert evaluated["weight"] == targets
    assert abs(evaluated["loss"] - loss) < 1e-4
    print(f"{preset}: loss {losses[0]:.4f} at first, {min(losses):.4f} at best, of the export {evaluated['loss']:.6f}, "
          f"in transformers {loss:.6f}")


@pytest.mark.parametrize("preset", PRESETS)
def test_tiny_models_learn_one_batch(tmp_path, preset):
    check(tmp_path, preset, PRESETS[preset])


def test_mini_model_learns_one_batch():
    folder = os.environ.get("LONGSPAN_MINI_FOLDER")
    if not folder or torch.cuda.get_device_properties(0).total_memory < 100 << 30:
        pytest.skip("LONGSPAN_MINI_FOLDER names no folder, or the GPU has less than 100 GiB")
    run_folder = pathlib.Path(folder) / "mini"
    run_folder.mkdir(parents=True)
    check(run_folder, MINI, AutoModelForImageTextToText)
