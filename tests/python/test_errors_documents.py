"""Documents, and files that are none: exit code 2, a message with the words that help, nothing half-written."""
import gzip
import json
import os
import struct

import pytest

from refusals import USER_ERROR, expect_refusal, refuse
from small_runs import LENGTHS, MODEL, longspan, snapshot


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
    "missing": (lambda run: [f"--data.train={run.folder}/documents/page.txt"],
                ["data.train (command line)", "page.txt", "no such file"]),
    "missing_eval": (lambda run: ["--data.eval=page.txt"],
                     ["data.eval (command line)", "page.txt", "no such file", os.getcwd()]),
    "missing_hold_out": (lambda run: [*fasta(run, b">a\nACGT\n"), "--data.fasta.hold_out=parts.bed"],
                         ["data.train (command line): data.fasta.hold_out (command line): cannot read parts.bed", "no such file"]),
    "no_match": (lambda run: [f"--data.train={run.folder}/documents/*.md"], ["*.md", "no such file"]),
    "folder": (lambda run: [f"--data.train={run.folder}"], ["run.toml", "data.format"]),
    "empty_folder": (lambda run: (run.folder / "nothing").mkdir() or [f"--data.train={run.folder}/nothing"],
                     ["nothing", "no file in this folder"]),
    "none_named": (lambda run: ["--data.train=[]"], ["data.train"]),
    "none_inside": (lambda run: jsonl(run, []), ["data.train (command line): no documents in", "lines.jsonl (an empty file)"]),
    "empty_text": (lambda run: (run.folder / "empty.txt").write_text("") or [f"--data.train={run.folder}/empty.txt"],
                   ["data.train (command line): no document is left", "1 are empty", "empty.txt"]),
    "hold_out_all": (lambda run: [*fasta(run, b">a\nACGT\n"), "--data.fasta.hold_out=a"],
                     ["data.train (command line)", "genome.fa", "data.fasta.hold_out (command line) holds out all"]),
    "hold_out_unknown": (lambda run: [*fasta(run, b">a\nACGT\n"), "--data.fasta.hold_out=b"],
                         ["data.train (command line)", "data.fasta.hold_out (command line): 'b' matches no record"]),
    "circular_unknown": (lambda run: [*fasta(run, b">a\nACGT\n"), "--data.fasta.circular=b"],
                         ["data.train (command line)", "data.fasta.circular (command line): 'b' matches no document"]),
    "only_empty": (lambda run: jsonl(run, ['{"text": ""}', '{"text": ""}']), ["2 are empty", "name other documents"]),
    "unknown_suffix": (lambda run: [f"--data.train={run.folder}/run.toml"], [".toml", "data.format"]),
    "overlong": (lambda run: ["--batch.micro_batch_tokens=2900"],
                 ["data.train (", "run.toml:8)", "document_31.txt", "3001", "2900", "batch.micro_batch_tokens", '"skip"', '"split"']),
    "all_skipped": (lambda run: ["--batch.micro_batch_tokens=1", "--layout.chunks=1", "--data.overlong=skip"],
                    ["32 are longer", "batch.micro_batch_tokens"]),
    "fasta_no_header": (lambda run: fasta(run, b"\n\nACGT\n>a\nACGT\n"), ["genome.fa:3", ">"]),
    "fasta_letter": (lambda run: fasta(run, b">a\nACGT\nAC!T\n"), ["genome.fa:3", "'!'"]),
    "fasta_no_bases": (lambda run: fasta(run, b">a\n>b\n"), ["genome.fa"]),
    "fasta_gzip_cut": (lambda run: fasta(run, gzip.compress(b">a\n" + 999 * b"ACGTTGCA\n")[:-9], "genome.fa.gz"),
                       ["genome.fa.gz", "truncated"]),
    "jsonl_syntax": (lambda run: jsonl(run, ['{"text": "a"}', "", '{"text": "b"']), ["lines.jsonl:3: not valid JSON at column 13: unexpected end"]),
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
                      ["data.eval (command line)", "lines.jsonl:1", "3073", "batch.micro_batch_tokens", "data.overlong"]),
    "eval_in_train": (lambda run: [f"--data.eval={run.folder}/documents/document_07.txt"], ["document_07.txt", "evaluated"]),
}


@pytest.mark.parametrize("prepare,words", DOCUMENTS.values(), ids=DOCUMENTS)
def test_documents(run, prepare, words):
    overrides = prepare(run)
    refuse(run, *words, overrides=overrides)


def test_vocabulary_smaller_than_the_tokenizer(run):
    (run.folder / "model" / "config.json").write_text(json.dumps({**MODEL, "vocab_size": 100}))
    refuse(run, "data.train (", "document_00.txt", "token id", "vocabulary of 100", "vocab_size")


def test_pack_leaves_nothing_after_an_error(run):
    fasta(run, b">a\nACGT\n>b\nAC*T\n")
    before = snapshot(run.folder)
    done = longspan("data", "pack", run.folder / "genome.fa", "--tokenizer=nucleotide", "--out", run.folder / "packed")
    expect_refusal(run, done, before, "genome.fa:4")
    shard(run)
    before = snapshot(run.folder)
    done = longspan("data", "pack", run.folder / "documents/document_03.txt", "--out", run.folder / "shard")
    expect_refusal(run, done, before, "shard", "--overwrite")


def test_new_folders_are_named(run):
    """Somebody who mistypes a folder should see where things went."""
    for place, line in [("new/sub/x", f"{run.folder}/new/sub: a new folder\n"), ("new/sub/y", "")]:
        done = longspan("data", "pack", run.folder / "documents/document_03.txt", "--out", run.folder / place)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("new folder") == len(line.splitlines()) and line in done.stdout, done.stdout
    assert f"output       {run.output}, a new folder\n" in run.train("--optimizer.steps=1")
    assert "new folder" not in run.train("--optimizer.steps=2")
    (run.folder / "empty.txt").write_text("")
    before = snapshot(run.folder)
    done = longspan("data", "pack", run.folder / "empty.txt", "--out", run.folder / "other/x")
    expect_refusal(run, done, before, "no documents to pack", "empty.txt")


def test_names_cannot_garble_the_terminal(run):
    (run.folder / "evil\x1b[31m.jsonl").write_text('{"text": "a"\n')
    refuse(run, "evil\\x1b[31m.jsonl:1", overrides=[f"--data.train={run.folder}/evil*.jsonl"])


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


def test_binary_files_are_noted(run):
    """Their bytes may be wanted, so they are trained on; but nobody should do so unaware."""
    (run.folder / "documents" / "document_05.txt").write_bytes(b"\x7fELF\0\0\1")
    assert "1 of 32 text files hold NUL bytes" in run.train("--optimizer.steps=1")


def test_names_that_are_not_utf8(run):
    """Bytes are bytes in names of documents, and their pages still say what they hold."""
    name = os.fsdecode(os.fsencode(run.folder) + b"/documents/caf\xe9\xff.txt")
    os.rename(run.folder / "documents" / "document_03.txt", name)
    run.train(f"--data.eval={run.folder}/documents/document_07.txt", f"--data.train={run.folder}/documents/[a-c]*.txt",
              "--optimizer.steps=1")
    done = longspan("data", "inspect", name, "--json", run.folder / "report.json")
    assert done.returncode == 0, done.stderr
    json.loads((run.folder / "report.json").read_text())
