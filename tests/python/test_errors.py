"""What a user can get wrong, and what a machine can: exit code 2, a message with the words that help, nothing half-written."""
import gzip
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import time

import pytest
import torch
from safetensors.torch import save_file

from small_runs import (LENGTHS, MODEL, SAME_BITS, SmallRun, catches, chosen, complete_steps, cpu_s, longspan, snapshot,
                        state_files, wait_until)

USER_ERROR = 2


@pytest.fixture
def run(tmp_path):
    return SmallRun(tmp_path, steps=4, save_every=2, ranks=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run with the checkpoints step-2 and step-4; tests copy its output."""
    run = SmallRun(tmp_path_factory.mktemp("trained"), steps=4, save_every=2)
    run.train()
    return run


def expect_refusal(run, done, before, *words):
    assert done.returncode == USER_ERROR, done.stdout + done.stderr
    assert done.stderr.startswith("longspan: error: ") or "\nlongspan: error: " in done.stderr, done.stderr
    for word in words:
        assert word in done.stderr, f"no '{word}' in: {done.stderr}"
    after = snapshot(run.folder)
    assert sorted(after) == sorted(before), "files appeared or went"
    assert after == before


def refuse(run, *words, overrides=()):
    """Training is refused with these words, and nothing below the folder changes."""
    before = snapshot(run.folder)
    expect_refusal(run, run.try_train(*overrides), before, *words)


# ---- configuration

CONFIGURATIONS = {
    "unknown_key": ("[data.fasta]\nmask_n_weigth = 0.5\n",
                    ["run.toml:", "data.fasta.mask_n_weigth", "nearest: data.fasta.mask_n_weight (float, default 0)"]),
    "unknown_section": ("[optimiser]\nlr = 1.0\n", ["run.toml:", "optimiser.lr", "optimizer.lr"]),
    "wrong_type": ("[attention]\ndedicated = \"two\"\n", ["run.toml:", "attention.dedicated", "'two'", "integer"]),
    "wrong_word": ("[attention]\nservers = \"everywhere\"\n", ["attention.servers", "in-place", "dedicated"]),
    "out_of_range": ("[attention]\nepsilon = 2.0\n", ["attention.epsilon", "1"]),
    "bad_toml": ("[attention\n", ["run.toml:31", "not valid TOML", "']'"]),
    "key_twice": ("[attention]\nepsilon = 0.1\nepsilon = 0.2\n", ["run.toml", "epsilon"]),
}


@pytest.mark.parametrize("addition,words", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_configuration_file(run, addition, words):
    run.config.write_text(run.config.read_text() + addition)
    refuse(run, *words)


OVERRIDES = {
    "unknown": (["--layout.rank=2"], ["--layout.rank=2", "unknown key", "layout.ranks"]),
    "wrong_type": (["--optimizer.steps=many"], ["optimizer.steps", "many", "integer"]),
    "no_value": (["--optimizer.steps"], ["--optimizer.steps", "--section.key=value"]),
    "no_key": (["epochs=3"], ["epochs=3", "--section.key=value"]),
    "shard_group": (["--layout.ranks=4", "--layout.shard_group=3"], ["layout.shard_group", "divide", "layout.ranks"]),
    "all_dedicated": (["--layout.ranks=2", "--attention.dedicated=2"], ["attention.dedicated", "layout.ranks"]),
    "band": (["--layout.band=3"], ["layout.band", "layout.chunks"]),
    "two_models": (["--model.preset=llama_tiny"], ["model.path", "model.preset"]),
    "no_output": (["--output.folder="], ["output.folder"]),
    "eval_of_nothing": (["--output.eval_every=1"], ["output.eval_every", "data.eval"]),
    "too_many_ranks": (["--layout.ranks=1000000000"], ["layout.ranks", "65536"]),
    "too_many_ranks_here": (["--layout.ranks=1025"], ["layout.ranks", "1024", "mpirun -n 1025"]),
    "too_many_threads": (["--layout.threads_per_rank=1000000"], ["layout.threads_per_rank", "hardware threads", "auto"]),
    "too_many_threads_of_all": (["--layout.ranks=1024", "--layout.threads_per_rank=1000"], ["threads_per_rank", "1024 ranks"]),
    "too_many_batches": (["--batch.micro_batches_per_step=1000000000"], ["micro_batches_per_step", "16384"]),
    "too_many_chunks": (["--batch.micro_batch_tokens=10000000", "--layout.chunks=1000000"], ["layout.chunks", "65536"]),
    "rate_beyond_float": (["--optimizer.lr=1e308"], ["optimizer.lr", "1000"]),
    "decay_beyond_float": (["--optimizer.weight_decay=1e300"], ["optimizer.weight_decay", "1000"]),
    "eps_below_float": (["--optimizer.eps=1e-300"], ["optimizer.eps", "1e-30"]),
}


@pytest.mark.parametrize("overrides,words", OVERRIDES.values(), ids=OVERRIDES)
def test_override(run, overrides, words):
    refuse(run, *words, overrides=overrides)


def test_missing_configuration(run):
    before = snapshot(run.folder)
    expect_refusal(run, longspan("train", run.folder / "runs.toml"), before, "runs.toml", "no such file")


@pytest.mark.parametrize("arguments", [[], ["trian", "run.toml"], ["train"], ["export", "somewhere"]])
def test_wrong_usage(arguments):
    done = longspan(*arguments)
    assert done.returncode == USER_ERROR
    assert "--help" in done.stderr


OPTIONS = {
    "no_servers": (["plan", "--servers", "0"], ["--servers", "at least 1"]),
    "minus_servers": (["plan", "--servers", "-3"], ["--servers", "-3"]),
    "too_many_servers": (["plan", "--stream=hist:64K", "--servers=100000000", "--tokens-per-rank=1"], ["--servers", "at most"]),
    "no_batches": (["plan", "--batches", "0"], ["--batches", "at least 1"]),
    "too_many_batches": (["plan", "--stream=hist:64K", "--servers=2", "--tokens-per-rank=64K", "--batches=1000000000"],
                         ["--batches", "at most"]),
    "seed_below_0": (["plan", "--seed", "-1"], ["--seed", "-1"]),
    "word_for_a_number": (["plan", "--seed", "1.5"], ["--seed", "1.5"]),
    "empty_path": (["plan", "--json", ""], ["--json", "empty"]),
    "empty_path_of_eval": (["eval", "run.toml", "--json="], ["--json"]),
    "one_file_twice": (["plan", "--json", "x/../both", "--svg", "both"], ["--json", "--svg", "one file"]),
    "no_ranks": (["train", "run.toml", "--ranks", "0"], ["--ranks", "at least 1"]),
    "no_bins": (["eval", "run.toml", "--by-position", "0"], ["--by-position", "at least 1"]),
    "no_threads": (["profile", "--threads", "0"], ["--threads"]),
    "tokens_below_0": (["data", "inspect", "x.txt", "--micro-batch-tokens", "-1"], ["--micro-batch-tokens", "-1"]),
}


@pytest.mark.parametrize("arguments,words", OPTIONS.values(), ids=OPTIONS)
def test_options(tmp_path, arguments, words):
    done = longspan(*arguments, cwd=tmp_path)
    assert done.returncode == USER_ERROR, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr, f"no '{word}' in: {done.stderr}"
    assert not list(tmp_path.iterdir())


def test_preset_names_are_listed(run):
    text = run.config.read_text().replace(f'path = "{run.folder}/model"', 'preset = "lama_tiny"')
    run.config.write_text(text)
    refuse(run, "lama_tiny", "llama_tiny")


# ---- documents


def fasta(run, content, name="genome.fa"):
    (run.folder / name).write_bytes(content)
    return [f"--data.train={run.folder}/{name}", "--data.tokenizer=nucleotide"]


def jsonl(run, lines, tokenizer="byte"):
    (run.folder / "lines.jsonl").write_text("".join(line + "\n" for line in lines))
    return [f"--data.train={run.folder}/lines.jsonl", f"--data.tokenizer={tokenizer}"]


def shard(run, cut_bin=0, cut_idx=0, patch=()):
    """Packs the documents into a shard and damages it."""
    done = longspan("data", "pack", f"{run.folder}/documents/*.txt", "--out", run.folder / "shard")
    assert done.returncode == 0, done.stderr
    for suffix, cut in [(".bin", cut_bin), (".idx", cut_idx)]:
        path = run.folder / f"shard{suffix}"
        content = path.read_bytes()
        path.write_bytes(content[:len(content) - cut])
    for offset, value in patch:
        content = bytearray((run.folder / "shard.idx").read_bytes())
        content[offset:offset + len(value)] = value
        (run.folder / "shard.idx").write_bytes(content)
    return [f"--data.train={run.folder}/shard.idx", "--data.tokenizer=none"]


DOCUMENTS = {
    "missing": (lambda run: [f"--data.train={run.folder}/documents/page.txt"], ["page.txt", "no such file"]),
    "no_match": (lambda run: [f"--data.train={run.folder}/documents/*.md"], ["*.md", "no such file"]),
    "folder": (lambda run: [f"--data.train={run.folder}"], ["run.toml", "data.format"]),
    "empty_folder": (lambda run: (run.folder / "nothing").mkdir() or [f"--data.train={run.folder}/nothing"],
                     ["nothing", "no file in this folder"]),
    "none_named": (lambda run: ["--data.train=[]"], ["data.train"]),
    "none_inside": (lambda run: jsonl(run, []), ["no documents", "lines.jsonl"]),
    "only_empty": (lambda run: jsonl(run, ['{"text": ""}', '{"text": ""}']), ["2 are empty", "name other documents"]),
    "unknown_suffix": (lambda run: [f"--data.train={run.folder}/run.toml"], [".toml", "data.format"]),
    "overlong": (lambda run: ["--batch.micro_batch_tokens=2900"],
                 ["document_31.txt", "3001", "2900", "batch.micro_batch_tokens", '"skip"', '"split"']),
    "all_skipped": (lambda run: ["--batch.micro_batch_tokens=1", "--layout.chunks=1", "--data.overlong=skip"],
                    ["32 are longer", "batch.micro_batch_tokens"]),
    "fasta_no_header": (lambda run: fasta(run, b"\n\nACGT\n>a\nACGT\n"), ["genome.fa:3", ">"]),
    "fasta_letter": (lambda run: fasta(run, b">a\nACGT\nAC!T\n"), ["genome.fa:3", "'!'"]),
    "fasta_no_bases": (lambda run: fasta(run, b">a\n>b\n"), ["genome.fa"]),
    "fasta_gzip_cut": (lambda run: fasta(run, gzip.compress(b">a\n" + 999 * b"ACGTTGCA\n")[:-9], "genome.fa.gz"),
                       ["genome.fa.gz", "truncated"]),
    "jsonl_syntax": (lambda run: jsonl(run, ['{"text": "a"}', "", '{"text": "b"']), ["lines.jsonl:3", "JSON"]),
    "jsonl_key": (lambda run: jsonl(run, ['{"text": "a"}', '{"txt": "b"}']), ["lines.jsonl:2", "'text'"]),
    "jsonl_ids": (lambda run: jsonl(run, ['{"input_ids": [1, -2]}'], "none"), ["lines.jsonl:1", "input_ids[1]", "-2"]),
    "jsonl_labels": (lambda run: jsonl(run, ['{"input_ids": [1, 2], "loss_mask": [1]}'], "none"),
                     ["lines.jsonl:1", "loss_mask", "1 entries"]),
    "token_too_large": (lambda run: jsonl(run, ['{"input_ids": [1, 2]}', '{"input_ids": [3, 257]}'], "none"),
                        ["lines.jsonl:2", "position 1", "257", "vocab"]),
    "bin_cut": (lambda run: shard(run, cut_bin=3), ["shard", ".bin"]),
    "idx_cut": (lambda run: shard(run, cut_idx=5), ["shard", "truncated"]),
    "idx_magic": (lambda run: shard(run, patch=[(0, b"X")]), ["shard", "MMIDIDX"]),
    "idx_offsets": (lambda run: shard(run, patch=[(34 + 4 * len(LENGTHS) + 8, struct.pack("<q", 6))]), ["shard", "offset"]),
    "overlong_eval": (lambda run: [*jsonl(run, [json.dumps({"text": 3072 * "a"})])[1:],
                                   f"--data.eval={run.folder}/lines.jsonl"],
                      ["lines.jsonl:1", "3073", "batch.micro_batch_tokens", "data.overlong"]),
    "eval_in_train": (lambda run: [f"--data.eval={run.folder}/documents/document_07.txt"], ["document_07.txt", "evaluated"]),
}


@pytest.mark.parametrize("prepare,words", DOCUMENTS.values(), ids=DOCUMENTS)
def test_documents(run, prepare, words):
    overrides = prepare(run)
    refuse(run, *words, overrides=overrides)


def test_vocabulary_smaller_than_the_tokenizer(run):
    (run.folder / "model" / "config.json").write_text(json.dumps({**MODEL, "vocab_size": 100}))
    refuse(run, "document_00.txt", "token id", "vocabulary of 100", "vocab_size")


def test_pack_leaves_nothing_after_an_error(run):
    fasta(run, b">a\nACGT\n>b\nAC*T\n")
    before = snapshot(run.folder)
    done = longspan("data", "pack", run.folder / "genome.fa", "--tokenizer=nucleotide", "--out", run.folder / "packed")
    expect_refusal(run, done, before, "genome.fa:4")
    shard(run)
    before = snapshot(run.folder)
    done = longspan("data", "pack", run.folder / "documents/document_03.txt", "--out", run.folder / "shard")
    expect_refusal(run, done, before, "shard", "--overwrite")


# ---- model folder


def weights():
    """All tensors of the model, which the cases damage."""
    hidden, inner, kv = MODEL["hidden_size"], MODEL["intermediate_size"], 16
    shapes = {"model.embed_tokens.weight": [257, hidden], "model.norm.weight": [hidden], "lm_head.weight": [257, hidden]}
    for layer in range(MODEL["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, shape in {"self_attn.q_proj": [hidden, hidden], "self_attn.k_proj": [kv, hidden],
                            "self_attn.v_proj": [kv, hidden], "self_attn.o_proj": [hidden, hidden],
                            "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden],
                            "mlp.down_proj": [hidden, inner], "input_layernorm": [hidden],
                            "post_attention_layernorm": [hidden]}.items():
            shapes[f"{prefix}{name}.weight"] = shape
    generator = torch.Generator().manual_seed(0)
    return {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}


def edit_header(path, edit):
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + size])
    edit(header)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + size:])


def change_tensors(change):
    def damage(path):
        tensors = weights()
        change(tensors)
        save_file(tensors, path)
    return damage


def cut(path):
    path.write_bytes(path.read_bytes()[:-1000])


def overlap(path):
    def edit(header):
        names = [name for name in header if name != "__metadata__"]
        first, second = [name for name in names if header[name]["shape"] == [48, 32]][:2]
        header[second]["data_offsets"] = header[first]["data_offsets"]
    edit_header(path, edit)


def index_without_shard(path):
    os.rename(path, path.with_name("model-00001-of-00002.safetensors"))
    names = {name: "model-00001-of-00002.safetensors" for name in weights()}
    names["lm_head.weight"] = "model-00002-of-00002.safetensors"
    path.with_name("model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


KEY = "model.layers.1.self_attn.k_proj.weight"
WEIGHTS = {
    "truncated": (cut, ["model.safetensors", "truncated"]),
    "header_only": (lambda path: path.write_bytes(path.read_bytes()[:4]), ["model.safetensors", "truncated"]),
    "not_safetensors": (lambda path: path.write_bytes(b"PK\x03\x04" + 1000 * b"z"), ["model.safetensors", "header"]),
    "overlap": (overlap, ["model.safetensors", "overlaps"]),
    "wrong_shape": (change_tensors(lambda tensors: tensors.update({KEY: torch.zeros(32, 16)})),
                    [KEY, "[32, 16]", "[16, 32]"]),
    "missing_tensor": (change_tensors(lambda tensors: tensors.pop(KEY)), [KEY, "missing"]),
    "surplus_tensor": (change_tensors(lambda tensors: tensors.update({"model.layers.2.norm": torch.zeros(2)})),
                       ["model.layers.2.norm", "no parameter"]),
    "integer_tensor": (change_tensors(lambda tensors: tensors.update({KEY: torch.zeros(16, 32, dtype=torch.int32)})),
                       [KEY, "I32"]),
    "not_a_number": (change_tensors(lambda tensors: tensors[KEY][11].fill_(float("nan"))),
                     ["model.safetensors", KEY, "is nan", "at element 352"]),
    "infinite": (change_tensors(lambda tensors: tensors["lm_head.weight"][-1].fill_(float("-inf"))),
                 ["model.safetensors", "lm_head.weight", "is -inf"]),
    "no_file": (lambda path: path.unlink(), ["no weights", "model.safetensors"]),
    "missing_shard": (index_without_shard, ["model-00002-of-00002.safetensors", "missing"]),
}


@pytest.mark.parametrize("damage,words", WEIGHTS.values(), ids=WEIGHTS)
def test_weights(run, damage, words):
    """With three ranks, of which each reads a part of the weights: all end, with one message."""
    path = run.folder / "model" / "model.safetensors"
    save_file(weights(), path)
    damage(path)
    overrides = ["--model.init=weights", "--layout.ranks=3"]
    refuse(run, *words, overrides=overrides)


def test_good_weights_are_taken(run):
    """The table above damages what is good."""
    save_file(weights(), run.folder / "model" / "model.safetensors")
    run.train("--model.init=weights")


MODEL_CONFIGS = {
    "bad_json": ('{"model_type": "llama",', ["config.json", "JSON"]),
    "family": (json.dumps({**MODEL, "model_type": "gpt2"}), ["config.json", "model_type", "gpt2", "llama"]),
    "bias": (json.dumps({**MODEL, "attention_bias": True}), ["config.json", "attention_bias"]),
    "activation": (json.dumps({**MODEL, "hidden_act": "gelu"}), ["config.json", "hidden_act", "gelu"]),
    "rope": (json.dumps({**MODEL, "rope_scaling": {"rope_type": "longrope", "factor": 2.0}}), ["config.json", "longrope"]),
    "unknown_key": (json.dumps({**MODEL, "logit_softcap": 30.0}), ["config.json", "logit_softcap"]),
    "missing_key": (json.dumps({key: value for key, value in MODEL.items() if key != "hidden_size"}),
                    ["config.json", "hidden_size"]),
    "wrong_type": (json.dumps({**MODEL, "hidden_size": "32"}), ["config.json", "hidden_size"]),
    "heads": (json.dumps({**MODEL, "num_key_value_heads": 3}), ["config.json", "num_key_value_heads"]),
}


@pytest.mark.parametrize("content,words", MODEL_CONFIGS.values(), ids=MODEL_CONFIGS)
def test_model_config(run, content, words):
    (run.folder / "model" / "config.json").write_text(content)
    refuse(run, *words)


def test_missing_model_folder(run):
    shutil.rmtree(run.folder / "model")
    refuse(run, f"{run.folder}/model", "No such file")


# ---- launchers

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500"}
LAUNCHERS = {
    "port": ({**TORCHRUN, "MASTER_PORT": "0"}, ["MASTER_PORT=0", "1 to 65535"]),
    "incomplete": ({"RANK": "0", "WORLD_SIZE": "2"}, ["RANK=0", "MASTER_ADDR"]),
    "contradiction": ({**TORCHRUN, "RANK": "2"}, ["RANK=2", "WORLD_SIZE=2"]),
    "slurm": ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, ["Slurm", "srun --mpi=pmix"]),
}


@pytest.mark.parametrize("environment,words", LAUNCHERS.values(), ids=LAUNCHERS)
def test_launcher(run, environment, words):
    before = snapshot(run.folder)
    expect_refusal(run, longspan("train", run.config, environment=environment), before, *words)


def test_one_process_under_torchrun_is_fine(run):
    done = longspan("train", run.config, "--optimizer.steps=1",
                    environment={**TORCHRUN, "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"})
    assert done.returncode == 0, done.stderr


# ---- input that is no file


def as_documents(path, *keys):
    return lambda run: ["train", run.config, f"--data.train={run.folder}/{path}", *keys]


NO_FILES = {
    "configuration": ("run.toml", lambda run: ["train", run.config]),
    "model": ("model/config.json", lambda run: ["train", run.config]),
    "weights": ("model/model.safetensors", lambda run: ["train", run.config, "--model.init=weights"]),
    "weights_index": ("model/model.safetensors.index.json", lambda run: ["train", run.config, "--model.init=weights"]),
    "profile": ("machine.json", lambda run: ["train", run.config, f"--attention.profile={run.folder}/machine.json"]),
    "text": ("page.txt", as_documents("page.txt")),
    "jsonl": ("lines.jsonl", as_documents("lines.jsonl")),
    "fasta": ("genome.fa", as_documents("genome.fa", "--data.tokenizer=nucleotide")),
    "fasta_gzip": ("genome.fa.gz", as_documents("genome.fa.gz", "--data.tokenizer=nucleotide")),
    "shard": ("shard.idx", as_documents("shard.idx", "--data.tokenizer=none")),
    "hold_out": ("parts.bed", as_documents("genome.fasta", "--data.tokenizer=nucleotide",
                                           "--data.fasta.hold_out=parts.bed")),
    "lengths": ("lengths.txt", lambda run: ["plan", "--lengths", run.folder / "lengths.txt", "--servers=2",
                                            "--tokens-per-rank=64K"]),
    "pack": ("page.txt", lambda run: ["data", "pack", run.folder / "page.txt", "--out", run.folder / "packed"]),
}


@pytest.mark.parametrize("name,command", NO_FILES.values(), ids=NO_FILES)
def test_a_pipe_is_not_waited_for(run, name, command):
    (run.folder / "genome.fasta").write_text(">a\nACGT\n")
    (run.folder / name).unlink(missing_ok=True)
    os.mkfifo(run.folder / name)
    done = longspan(*command(run), cwd=run.folder)
    assert done.returncode == USER_ERROR, done.stdout + done.stderr
    assert name in done.stderr and "not a regular file" in done.stderr, done.stderr
    assert not run.output.exists()


def test_endless_devices_are_not_read(run):
    before = snapshot(run.folder)
    expect_refusal(run, longspan("train", "/dev/zero"), before, "/dev/zero", "not a regular file")
    refuse(run, "/dev/zero", overrides=["--data.train=/dev/zero", "--data.format=text"])


def test_names_that_are_not_utf8(run):
    """Bytes are bytes in names of documents, and their pages still say what they hold."""
    name = os.fsdecode(os.fsencode(run.folder) + b"/documents/caf\xe9\xff.txt")
    os.rename(run.folder / "documents" / "document_03.txt", name)
    run.train(f"--data.eval={run.folder}/documents/document_07.txt", f"--data.train={run.folder}/documents/[a-c]*.txt",
              "--optimizer.steps=1")
    done = longspan("data", "inspect", name, "--json", run.folder / "report.json")
    assert done.returncode == 0, done.stderr
    json.loads((run.folder / "report.json").read_text())


# ---- output


def test_output_folder_below_a_file(run):
    (run.folder / "file").write_text("")
    refuse(run, f"{run.folder}/file/out", overrides=[f"--output.folder={run.folder}/file/out"])
    refuse(run, f"{run.folder}/file", overrides=[f"--output.folder={run.folder}/file"])


def test_output_folder_of_something_else(run):
    """A run replaces and removes files by their names, so it wants none of these names to be taken."""
    refuse(run, "output.folder", "root", overrides=["--output.folder=/"])
    run.output.mkdir()
    (run.output / "config.toml").write_text("mine = true\n")
    refuse(run, "output.folder", "config.toml", "not the folder of a run")
    (run.output / "config.toml").rename(run.output / "notes.toml")
    (run.output / "step-7").mkdir()
    refuse(run, "output.folder", "step-7")
    (run.output / "step-7").rmdir()
    console = run.train()
    assert f"{run.output} holds 1 other" in console and "notes.toml" in console
    assert (run.output / "notes.toml").read_text() == "mine = true\n"
    assert "other" not in run.train("--optimizer.steps=6")


def test_half_written_files_of_a_killed_run_go(trained, run):
    shutil.copytree(trained.output, run.output)
    (run.output / "log.jsonl.tmp-99999").write_text("{")
    (run.output / "log.jsonl.tmp-mine").write_text("{")
    run.train("--layout.ranks=2", "--optimizer.steps=5")
    assert not (run.output / "log.jsonl.tmp-99999").exists()
    assert (run.output / "log.jsonl.tmp-mine").exists()


def test_damaged_log(trained, run):
    shutil.copytree(trained.output, run.output)
    log = run.output / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:2]) + "damaged\n" + "".join(lines[2:]))
    refuse(run, "log.jsonl:3", "not valid JSON", "remove this line", overrides=["--layout.ranks=2", "--optimizer.steps=5"])
    log.write_text("".join(lines))
    run.train("--layout.ranks=2", "--optimizer.steps=5")


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1],
                         ids=["SIGTERM", "SIGINT", "SIGUSR1"])
def test_asked_to_stop_while_it_starts(run, stop_signal):
    """From the first hundredths of a second on: constructors of libtorch take a third of a second before main."""
    for delay_s in (0, 0.2, 0.4):
        process = run.start("--optimizer.steps=100000")
        wait_until(process, lambda: catches(process, stop_signal))
        assert cpu_s(process) < 0.2
        time.sleep(delay_s)
        process.send_signal(stop_signal)
        console, _ = process.communicate(timeout=60)
        assert process.returncode == 0, console
        assert "stopped on request" in console
        assert not list(run.output.glob("*.partial")) and not list(run.output.glob("*.tmp-*"))
    run.train(f"--optimizer.steps={1 + max(complete_steps(run.output), default=0)}")


def test_a_second_interrupt_ends_at_once(run):
    process = run.start("--optimizer.steps=100000")
    wait_until(process, lambda: catches(process, signal.SIGINT))
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT


def test_export_to_an_existing_folder(trained):
    (trained.folder / "there").mkdir(exist_ok=True)
    (trained.folder / "there" / "file").write_text("mine")
    before = snapshot(trained.folder)
    expect_refusal(trained, longspan("export", trained.output, "--to", trained.folder / "there"), before,
                   "there", "already")
    expect_refusal(trained, longspan("export", trained.output, "--to", trained.folder / "there" / "file" / "below"),
                   before, "below")


def test_export_of_nothing(trained, run):
    before = snapshot(run.folder)
    for source in ("nowhere", "documents"):
        expect_refusal(run, longspan("export", run.folder / source, "--to", run.folder / "to"), before,
                       source, "no checkpoint")
    expect_refusal(run, longspan("export", trained.output, "--to", run.folder / "to", "--dtype=int8"), before,
                   "int8", "bfloat16")


def flip_weight(path):
    content = bytearray(path.read_bytes())
    header_bytes = struct.unpack("<Q", content[:8])[0]
    begin = json.loads(content[8:8 + header_bytes])["unit-0001.weights"]["data_offsets"][0]
    content[8 + header_bytes + begin] ^= 1
    path.write_bytes(content)


def cut_half(path):
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


CHECKPOINTS = {
    "flipped": (lambda folder: flip_weight(folder / "rank-00001-of-00002.safetensors"),
                ["step-4/rank-00001-of-00002.safetensors", "checksum"]),
    "cut": (lambda folder: cut_half(folder / "rank-00000-of-00002.safetensors"),
            ["step-4/rank-00000-of-00002.safetensors", "truncated"]),
    "gone": (lambda folder: (folder / "rank-00000-of-00002.safetensors").unlink(),
             ["step-4/rank-00000-of-00002.safetensors", "No such file"]),
    "manifest_cut": (lambda folder: cut_half(folder / "manifest.json"), ["step-4/manifest.json", "JSON"]),
    "manifest_gone": (lambda folder: (folder / "manifest.json").unlink(), ["step-4/manifest.json", "No such file"]),
}


@pytest.mark.parametrize("damage,words", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_corrupt_checkpoint(trained, run, damage, words):
    shutil.copytree(trained.output, run.output)
    damage(run.output / "step-4")
    refuse(run, *words, overrides=["--optimizer.steps=6", "--layout.ranks=3"])
    before = snapshot(run.folder)
    expect_refusal(run, longspan("export", run.output, "--to", run.folder / "to"), before, *words)


def test_the_checkpoint_before_a_corrupt_one_is_good(trained, run):
    """The way out that the message names: remove the corrupt one."""
    shutil.copytree(trained.output, run.output)
    flip_weight(run.output / "step-4" / "rank-00000-of-00002.safetensors")
    before = snapshot(run.folder)
    expect_refusal(run, longspan("eval", run.config, f"--data.eval={run.folder}/documents/*.txt", "--data.train=[]"),
                   before, "step-4/rank-00000-of-00002.safetensors", "checksum", f"remove {run.output}/step-4")
    shutil.rmtree(run.output / "step-4")
    run.train("--layout.ranks=2")
    assert state_files(run.output / "step-4") == state_files(trained.output / "step-4")


def test_checkpoint_of_another_model(trained, run):
    shutil.copytree(trained.output, run.output)
    (run.folder / "model" / "config.json").write_text(json.dumps({**MODEL, "intermediate_size": 64}))
    refuse(run, "step-4", "another model", overrides=["--optimizer.steps=6"])


# ---- disk full


def limited(bytes_):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))


def expect_intact(run, reference):
    """Checkpoints are those of before, and the run goes on from them as if the disk had always been large enough."""
    assert complete_steps(run.output) == [2, 4]
    assert not list(run.output.glob("*.partial")) and not list(run.output.glob("step-6*"))
    run.train("--layout.ranks=2", "--optimizer.steps=6")
    assert chosen(run.steps(), SAME_BITS) == chosen(reference.steps(), SAME_BITS)
    assert state_files(run.output / "step-6") == state_files(reference.output / "step-6")


@pytest.fixture(scope="module")
def longer(trained):
    run = SmallRun(trained.folder / "longer", steps=4, save_every=2)
    shutil.copytree(trained.output, run.output)
    run.train("--optimizer.steps=6")
    return run


@pytest.mark.parametrize("limit,file", [(50_000, "step-6"), (7_000, "log.jsonl")])
def test_no_room_for_a_file(trained, longer, run, limit, file):
    """Files may not grow beyond a limit: those of the checkpoint, or the log."""
    shutil.copytree(trained.output, run.output)
    done = run.try_train("--layout.ranks=2", "--optimizer.steps=6", preexec_fn=limited(limit))
    assert done.returncode == USER_ERROR, done.stdout + done.stderr
    assert file in done.stderr and "File too large" in done.stderr
    expect_intact(run, longer)


def test_disk_full(trained, longer, run):
    run.output.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(run.output)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        shutil.copytree(trained.output, run.output, dirs_exist_ok=True)
        filler = run.output / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(run.output).free - 100_000))
        done = run.try_train("--layout.ranks=2", "--optimizer.steps=6")
        assert done.returncode == USER_ERROR, done.stdout + done.stderr
        assert "step-6" in done.stderr and "No space left" in done.stderr
        filler.unlink()
        expect_intact(run, longer)
    finally:
        subprocess.run(["umount", str(run.output)], check=True)


def test_export_without_room(trained, run):
    before = snapshot(run.folder)
    done = longspan("export", trained.output, "--to", run.folder / "to", preexec_fn=limited(20_000))
    expect_refusal(run, done, before, "model.safetensors", "File too large")
    done = longspan("data", "pack", f"{run.folder}/documents/*.txt", "--out", run.folder / "shard",
                    preexec_fn=limited(2_000))
    expect_refusal(run, done, before, "shard", "File too large")
