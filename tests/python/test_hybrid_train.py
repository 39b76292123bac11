"""Hybrid models as a user trains them: they learn, transformers loads what they export, a killed run goes on with the same bits.

One fixed batch of real text (this repository's README), the tiny presets, learning rate 1e-2: the loss falls to a tenth of its first value
within 40 steps. Documents are longer than what an index selects, so sparse attention drops keys.
"""
import json
import pathlib
import subprocess

import pytest
import torch
import torch.nn.functional as functional
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from small_runs import LONGSPAN, kill_when, last_logged_step, longspan, read_log, state_files

README = pathlib.Path(__file__).parents[2] / "README.md"
# By preset: the class that transformers has for it.
PRESETS = {"glm53_flash_tiny": AutoModelForImageTextToText, "kimi_linear_tiny": AutoModelForCausalLM}
LENGTHS = [600, 37, 3, 1]
CONFIG = """
[model]
preset = "{preset}"
init = "random"
[data]
train = ["{folder}/documents/*.txt"]
tokenizer = "byte"
[batch]
micro_batch_tokens = {tokens}
[layout]
ranks = 2
chunks = 2
band = 1
expert_group = 2
stored_mode = "{stored_mode}"
threads_per_rank = 1
[optimizer]
steps = {steps}
lr = 1e-2
warmup_steps = 4
schedule = "constant"
weight_decay = 0
[output]
folder = "{folder}/out"
save_every = {save_every}
"""


def write_run(folder, preset, steps, stored_mode="layer_inputs_attention", save_every=0):
    text = README.read_text(encoding="utf-8").encode("ascii", "ignore").decode()
    (folder / "documents").mkdir()
    begin = 0
    for index, length in enumerate(LENGTHS):
        (folder / "documents" / f"{index}.txt").write_text(text[begin:begin + length])
        begin += length
    # An end-of-document token closes each document: all of them are the one batch of every step.
    config = CONFIG.format(folder=folder, preset=preset, steps=steps, stored_mode=stored_mode, save_every=save_every,
                           tokens=sum(LENGTHS) + len(LENGTHS))
    (folder / "run.toml").write_text(config)
    return folder / "run.toml"


def documents_with_end(folder):
    return [list(path.read_bytes()) + [256] for path in sorted((folder / "documents").glob("*.txt"))]


def train(run, *overrides):
    done = longspan("train", run, *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("preset", PRESETS)
def test_learns_one_batch_and_exports_it(tmp_path, preset):
    run = write_run(tmp_path, preset, steps=40)
    train(run)
    steps = [line for line in read_log(tmp_path / "out") if line["kind"] == "step"]
    losses = [line["loss"] for line in steps]
    assert len(losses) == 40
    assert min(losses) < losses[0] / 10, losses
    # Of 8 experts each token chooses 2; only kimi_linear runs core attention, so only it has a plan to report.
    assert all(1 <= line["experts/load_max_over_mean"] <= 4 for line in steps)
    assert ("plan/imbalance_max_over_mean" in steps[0]) == (preset == "kimi_linear_tiny")

    # Evaluated are the documents of the training; so the configuration has to name others for that.
    (tmp_path / "other.txt").write_text("other text")
    done = longspan("eval", run, f"--data.train={tmp_path}/other.txt", f"--data.eval={tmp_path}/documents/*.txt",
                    "--by-position", "1", "--json", tmp_path / "eval.json")
    assert done.returncode == 0, done.stderr
    done = longspan("export", tmp_path / "out", "--to", tmp_path / "hf")
    assert done.returncode == 0, done.stderr
    model = PRESETS[preset].from_pretrained(tmp_path / "hf", dtype=torch.float32, attn_implementation="eager").eval()
    loss_sum, targets = 0.0, 0
    with torch.no_grad():
        for tokens in documents_with_end(tmp_path):
            ids = torch.tensor([tokens])
            logits = model(ids).logits[0].double()
            loss_sum += functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="sum").item()
            targets += len(tokens) - 1
    evaluated = json.loads((tmp_path / "eval.json").read_text())
    assert evaluated["weight"] == targets
    assert abs(evaluated["loss"] - loss_sum / targets) < 1e-4


@pytest.mark.parametrize("stored_mode", ["keep", "context_only"])
def test_a_killed_run_goes_on_with_the_same_bits(tmp_path, stored_mode):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    reference = write_run(whole, "glm53_flash_tiny", steps=8, stored_mode=stored_mode, save_every=3)
    run = write_run(killed, "glm53_flash_tiny", steps=8, stored_mode=stored_mode, save_every=3)
    train(reference)
    process = subprocess.Popen([str(LONGSPAN), "train", str(run)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    kill_when(process, lambda: last_logged_step(killed / "out") >= 4)
    assert 4 <= last_logged_step(killed / "out") < 8
    train(run)
    assert state_files(whole / "out" / "step-8") == state_files(killed / "out" / "step-8")


# The batch is the same in every step, in float64 no near-tie of a choice flips: losses differ by rounding only.
def test_a_run_goes_on_with_another_expert_group(tmp_path):
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    for folder in (whole, moved):
        folder.mkdir()
    train(write_run(whole, "glm53_flash_tiny", steps=8), "--model.dtype=float64")
    run = write_run(moved, "glm53_flash_tiny", steps=8)
    train(run, "--model.dtype=float64", "--optimizer.steps=4")
    train(run, "--model.dtype=float64", "--optimizer.steps=6", "--layout.expert_group=1")
    train(run, "--model.dtype=float64", "--layout.ranks=4", "--layout.expert_group=4", "--layout.shard_group=2")
    steps = {folder: [line for line in read_log(folder / "out") if line["kind"] == "step"] for folder in (whole, moved)}
    assert [line["step"] for line in steps[moved]] == list(range(1, 9))
    for expected, found in zip(steps[whole], steps[moved]):
        assert abs(found["loss"] / expected["loss"] - 1) < 1e-9
        for name in ("tokens/seen", "docs/seen", "experts/load_max_over_mean", "experts/idle"):
            assert found[name] == expected[name]


def selection_biases(step_folder):
    """By name, from the arrays of a checkpoint."""
    manifest = json.loads((step_folder / "manifest.json").read_text())
    found = {}
    for parameter in manifest["parameters"]:
        if not parameter["name"].endswith("e_score_correction_bias"):
            continue
        begin, end = parameter["begin"], parameter["begin"] + parameter["shape"][0]
        name = f"unit-{parameter['unit']:04d}.weights"
        array = next(array for array in manifest["arrays"] if array["name"] == name)
        values = []
        for shard in array["shards"]:
            with safe_open(step_folder / shard["file"], "pt") as file:
                part = file.get_tensor(name)
            values += part[max(0, begin - shard["begin"]):max(0, end - shard["begin"])].tolist()
        found[parameter["name"]] = values
    return found


def test_the_selection_bias_balances_experts_alike_on_any_layout(tmp_path):
    rate, steps = 0.02, 12
    options = ["--model.dtype=float64", f"--optimizer.selection_bias_rate={rate}"]
    layouts = {"one": ["--layout.ranks=1", "--layout.expert_group=1"], "two": ["--layout.ranks=2", "--layout.expert_group=1"],
               "group": [], "four": ["--layout.ranks=4", "--layout.expert_group=2", "--layout.shard_group=2"]}
    biases = {}
    for name, layout in layouts.items():
        (tmp_path / name).mkdir()
        train(write_run(tmp_path / name, "glm53_flash_tiny", steps=steps), *options, *layout)
        biases[name] = selection_biases(tmp_path / name / "out" / f"step-{steps}")
    assert len(biases["one"]) == 3
    for name in layouts:
        assert biases[name] == biases["one"], name
    for values in biases["one"].values():
        moves = [value / rate for value in values]
        assert all(abs(move - round(move)) < 1e-9 and abs(move) <= steps for move in moves)
        assert min(moves) < 0 < max(moves)

    # Stopped and gone on: the same bits, the bias among them.
    (tmp_path / "resumed").mkdir()
    run = write_run(tmp_path / "resumed", "glm53_flash_tiny", steps=steps)
    train(run, *options, "--optimizer.steps=5")
    train(run, *options)
    assert state_files(tmp_path / "resumed" / "out" / f"step-{steps}") == state_files(tmp_path / "group" / "out" / f"step-{steps}")

    # Without it the bias stays, and the busiest expert has more.
    (tmp_path / "off").mkdir()
    train(write_run(tmp_path / "off", "glm53_flash_tiny", steps=steps), "--model.dtype=float64")
    assert all(set(values) == {0.0} for values in selection_biases(tmp_path / "off" / "out" / f"step-{steps}").values())
    load = {name: [line["experts/load_max_over_mean"] for line in read_log(tmp_path / name / "out") if line["kind"] == "step"]
            for name in ("group", "off")}
    assert load["group"][0] == load["off"][0]
    assert sum(load["group"][-4:]) < 0.8 * sum(load["off"][-4:]), load


@pytest.mark.parametrize("override, words", [("--layout.expert_chunk_pairs=3", ["layout.expert_chunk_pairs = 3", "set at least"]),
                                             ("--model.preset=llama_tiny", ["layout.expert_group = 2", "no experts"]),
                                             ("--model.preset=llama_tiny --layout.expert_group=1 --optimizer.selection_bias_rate=0.1",
                                              ["optimizer.selection_bias_rate = 0.1", "no experts"])])
def test_experts_that_cannot_be_spread_are_refused_at_the_start(tmp_path, override, words):
    run = write_run(tmp_path, "glm53_flash_tiny", steps=40)
    done = longspan("train", run, *override.split())
    assert done.returncode == 2, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()
