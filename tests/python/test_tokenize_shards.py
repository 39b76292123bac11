"""scripts/tokenize_shards.py against a numpy reader of the format that shares no code with it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

tokenizers = pytest.importorskip("tokenizers")

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "tokenize_shards.py"


def read_shard(prefix):
    """Documents of a shard; asserts every rule of the format on the way."""
    index = np.fromfile(f"{prefix}.idx", dtype=np.uint8)

    def take(offset, dtype, count):
        return np.frombuffer(index[offset : offset + np.dtype(dtype).itemsize * count].tobytes(), dtype)

    assert index[:9].tobytes() == b"MMIDIDX\0\0"
    assert take(9, "<u8", 1)[0] == 1
    dtype = {8: "<u2", 4: "<i4"}[int(index[17])]
    sequences, borders = (int(n) for n in take(18, "<u8", 2))
    lengths = take(34, "<i4", sequences)
    offsets = take(34 + 4 * sequences, "<i8", sequences)
    documents = take(34 + 12 * sequences, "<i8", borders)
    assert index.size == 34 + 12 * sequences + 8 * borders
    tokens = np.fromfile(f"{prefix}.bin", dtype=dtype)
    ends = np.cumsum(lengths.astype(np.int64)) * tokens.itemsize
    assert np.array_equal(offsets, np.concatenate([[0], ends[:-1]]))
    assert ends[-1] == tokens.nbytes
    assert documents[0] == 0 and documents[-1] == sequences
    parts = np.split(tokens, np.cumsum(lengths)[:-1])
    return [np.concatenate(parts[a:b]).tolist() for a, b in zip(documents[:-1], documents[1:])]


def make_tokenizer(path, size):
    words = {"<unk>": 0, "<end>": 1, "one": 2, "two": 3, "far": size - 1}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)  # a tokenizer.json may ask for it; documents are not cut
    tokenizer.save(str(path))


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.parametrize("size", [100, 65500, 200000])
def test_round_trip(tmp_path, size):
    make_tokenizer(tmp_path / "tokenizer.json", size)
    (tmp_path / "a.txt").write_text("one two far\n")
    (tmp_path / "empty.txt").write_text(" \n")
    lines = [{"text": "two"}, {"text": "other one"}]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    done = run("--tokenizer", tmp_path / "tokenizer.json", "--out", tmp_path / "s/x",
               "--end-of-document", "<end>",
               tmp_path / "a.txt", tmp_path / "empty.txt", tmp_path / "b.jsonl")
    assert done.returncode == 0, done.stderr
    assert "3 documents, 9 tokens, left out 1 empty ones" in done.stdout
    assert read_shard(tmp_path / "s/x") == [[2, 3, size - 1, 1], [3, 1], [0, 2, 1]]
    width = 2 if size < 65500 else 4
    assert (tmp_path / "s/x.bin").stat().st_size == 9 * width
    again = run("--tokenizer", tmp_path / "tokenizer.json", "--out", tmp_path / "s/x", tmp_path / "a.txt")
    assert again.returncode != 0 and "--overwrite" in again.stderr


def test_errors_leave_nothing(tmp_path):
    make_tokenizer(tmp_path / "tokenizer.json", 100)
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{"other": 1}\n')
    done = run("--tokenizer", tmp_path / "tokenizer.json", "--out", tmp_path / "s/x", tmp_path / "b.jsonl")
    assert done.returncode != 0 and "b.jsonl:2" in done.stderr
    assert list((tmp_path / "s").iterdir()) == []
