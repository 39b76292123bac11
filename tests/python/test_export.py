"""Weights in from Hugging Face and out again: transformers loads every export and computes what longspan computes, a
save and an export without training give the input's bits, and evaluation equals transformers document by document."""
import json
import subprocess

import pytest
import torch
import torch.nn.functional as functional
from safetensors import safe_open
from transformers import AutoModelForCausalLM

import reference_model
from small_runs import BIN_DIR, longspan, read_log, state_files

VOCABULARY = reference_model.SIZES["vocab_size"]
LENGTHS = [1, 2, 127, 128, 129, 300]
LONGER = [*LENGTHS, 1000, 1900]
# family, changes of the configuration, dtype on disk, largest shard
CASES = {
    "llama_untied": ("llama", dict(tie_word_embeddings=False), torch.float32, "10GB"),
    "llama_tied_sharded": ("llama", dict(tie_word_embeddings=True), torch.float32, "60KB"),
    "llama_bfloat16_sharded": ("llama", dict(tie_word_embeddings=False), torch.bfloat16, "40KB"),
    "qwen3_tied": ("qwen3", dict(tie_word_embeddings=True), torch.float32, "10GB"),
    "qwen3_bfloat16_tied": ("qwen3", dict(tie_word_embeddings=True, head_dim=24), torch.bfloat16, "10GB"),
    "qwen3_untied_sharded": ("qwen3", dict(tie_word_embeddings=False), torch.float32, "60KB"),
}
CONFIG = """
[model]
path = "{folder}/model"
init = "weights"
[data]
train = ["{folder}/train.jsonl"]
tokenizer = "none"
[batch]
micro_batch_tokens = 2048
[layout]
ranks = 2
chunks = 2
[optimizer]
steps = 2
lr = 1e-2
warmup_steps = 0
[output]
folder = "{folder}/out"
"""


def write_documents(path, lengths, seed, **keys):
    generator = torch.Generator().manual_seed(seed)
    documents = [torch.randint(0, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    path.write_text("".join(json.dumps({"input_ids": ids, **keys}) + "\n" for ids in documents))
    return documents


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    """A model folder that transformers wrote, documents and a configuration: (folder, dtype on disk)."""
    family, changes, dtype, max_shard_size = CASES[request.param]
    model = reference_model.make_model(reference_model.make_config(family, **changes), seed=1, dtype=dtype)
    model.save_pretrained(tmp_path / "model", max_shard_size=max_shard_size)
    assert (len(list((tmp_path / "model").glob("*.safetensors"))) > 1) == (max_shard_size != "10GB")
    (tmp_path / "run.toml").write_text(CONFIG.format(folder=tmp_path))
    return tmp_path, dtype


def run(*arguments):
    done = longspan(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def tensors_of(folder):
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found.update({name: file.get_tensor(name) for name in file.keys()})
    return found


def probe_logits(folder, documents, scratch):
    (scratch / "documents.json").write_text(json.dumps(documents))
    output = scratch / "probe.safetensors"
    subprocess.run([BIN_DIR / "longspan_probe", folder, scratch / "documents.json", output], check=True, timeout=120)
    with safe_open(output, "pt") as file:
        return file.get_tensor("logits")


def transformers_logits(model, documents):
    with torch.no_grad():
        return torch.cat([model(input_ids=torch.tensor([ids]), use_cache=False).logits[0] for ids in documents])


def test_transformers_loads_what_was_trained(case):
    folder, _ = case
    documents = write_documents(folder / "train.jsonl", LENGTHS, seed=2)
    run("train", folder / "run.toml")
    for dtype, shard_gb in [("bfloat16", "5"), ("float32", "5"), ("float32", "0.00005")]:
        to = folder / f"exported_{dtype}_{shard_gb}"
        run("export", folder / "out", "--to", to, f"--dtype={dtype}", f"--shard-gb={shard_gb}")
        assert (to / "model.safetensors.index.json").exists() == (shard_gb != "5")
        assert {tensor.dtype for tensor in tensors_of(to).values()} == {getattr(torch, dtype)}
        assert dtype in json.loads((to / "config.json").read_text()).values()
        if shard_gb != "5":
            assert all(torch.equal(a, b) for a, b in zip(load(to).parameters(), model.parameters()))
            continue
        model = load(to)
        found = probe_logits(to, documents, folder)
        assert reference_model.relative_error(found, transformers_logits(model, documents)) < 1e-5
    trained, before = tensors_of(folder / "exported_float32_5"), tensors_of(folder / "model")
    assert trained.keys() == before.keys()
    for name, tensor in trained.items():
        assert not torch.equal(tensor, before[name].float()), f"{name} was not trained"
        assert torch.equal(tensor, tensors_of(folder / "exported_float32_0.00005")[name])
        assert torch.equal(tensor.bfloat16(), tensors_of(folder / "exported_bfloat16_5")[name])


def test_save_load_export_without_training_is_bit_equal(case):
    """Documents without loss weight: the step is skipped, the weights stay as they were loaded."""
    folder, dtype = case
    write_documents(folder / "train.jsonl", [1, 1, 1], seed=2)
    console = run("train", folder / "run.toml", "--optimizer.steps=1")
    assert "no token has a loss weight" in console
    first = state_files(folder / "out" / "step-1")
    run("train", folder / "run.toml", "--optimizer.steps=2")  # loads, skips a step and saves
    assert state_files(folder / "out" / "step-2") == first
    assert [line["kind"] for line in read_log(folder / "out")] == ["header", "skipped", "resume", "skipped"]
    name = str(dtype).removeprefix("torch.")
    run("export", folder / "out", "--to", folder / "exported", f"--dtype={name}")
    before, after = tensors_of(folder / "model"), tensors_of(folder / "exported")
    assert after.keys() == before.keys()
    for tensor_name, tensor in before.items():
        assert after[tensor_name].dtype == dtype and torch.equal(after[tensor_name], tensor), tensor_name


def token_losses(model, ids):
    """Loss of predicting token i + 1, at position i."""
    logits = transformers_logits(model, [ids])
    return functional.cross_entropy(logits[:-1], torch.tensor(ids[1:], dtype=torch.long), reduction="none").double().tolist()


def expect_loss(entry, losses):
    assert entry["weight"] == len(losses)
    if losses:
        assert entry["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    else:
        assert entry["loss"] is None


def test_evaluation_equals_transformers(case):
    folder, _ = case
    write_documents(folder / "train.jsonl", [50], seed=3)
    documents = write_documents(folder / "eval.jsonl", LONGER, seed=4)
    run("eval", folder / "run.toml", f"--data.eval={folder}/eval.jsonl", "--by-position=4",
        "--json", folder / "eval.json")
    found = json.loads((folder / "eval.json").read_text())
    model = load(folder / "model")
    losses = [token_losses(model, ids) for ids in documents]
    longest = max(LONGER)
    bins = [(entry["begin"], entry["end"]) for entry in found["bins"]]
    assert bins == [(0, longest // 8), (longest // 8, longest // 4), (longest // 4, longest // 2), (longest // 2, longest)]
    expect_loss(found, sum(losses, []))
    for (begin, end), entry in zip(bins, found["bins"]):
        expect_loss(entry, [loss for document in losses for loss in document[begin:end]])
    assert [entry["tokens"] for entry in found["documents"]] == LONGER
    for document, entry in zip(losses, found["documents"]):
        expect_loss(entry, document)
        for (begin, end), part in zip(bins, entry["bins"]):
            expect_loss(part, document[begin:end])


def test_evaluation_of_a_checkpoint_is_that_of_its_export(tmp_path):
    model = reference_model.make_model(reference_model.make_config("qwen3"), seed=1, dtype=torch.float32)
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "run.toml").write_text(CONFIG.format(folder=tmp_path))
    write_documents(tmp_path / "train.jsonl", [300, 500], seed=3)
    documents = write_documents(tmp_path / "eval.jsonl", [20, 900], seed=4)
    console = run("train", tmp_path / "run.toml", f"--data.eval={tmp_path}/eval.jsonl", "--output.hf_export_at_end=true")
    assert "evaluation after step 2" in console
    run("eval", tmp_path / "run.toml", f"--data.eval={tmp_path}/eval.jsonl", "--json", tmp_path / "eval.json")
    found = json.loads((tmp_path / "eval.json").read_text())
    model = load(tmp_path / "out" / "hf")
    expect_loss(found, sum((token_losses(model, ids) for ids in documents), []))
    logged = [line["eval_loss"] for line in read_log(tmp_path / "out") if line["kind"] == "eval"]
    assert logged == [pytest.approx(found["loss"], rel=1e-6)]
