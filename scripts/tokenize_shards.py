#!/usr/bin/env python3
"""Token shards (.bin, .idx) from text or jsonl files and a tokenizer.json.

longspan tokenizes bytes and nucleotides itself; for every other vocabulary this script writes shards
that it (and Megatron) reads as they are:

    scripts/tokenize_shards.py --tokenizer models/x/tokenizer.json --out shards/x docs/*.txt more.jsonl

A text file is one document; a jsonl file has one a line, under the key "text". After each document
comes the end-of-document token, if one is named (--end-of-document "<|endoftext|>"). Special tokens
that the tokenizer's own template would add are left out. Needs the `tokenizers` package. The format
is described in docs/data.md.
"""

import argparse
import array
import json
import os
import struct
import sys
from pathlib import Path

TOKEN_TYPES = {"H": 8, "i": 4}  # u16 and i32 in the index's own numbering
SMALL_VOCABULARY = 65500
BATCH = 256


class ShardWriter:
    """Writes one shard under temporary names; close() renames them, the index last."""

    def __init__(self, prefix, vocabulary_size):
        self.prefix = prefix
        self.kind = "H" if vocabulary_size < SMALL_VOCABULARY else "i"
        self.lengths = array.array("i")
        Path(prefix).parent.mkdir(parents=True, exist_ok=True)
        self.bin = open(prefix + ".bin.tmp", "wb")

    def add(self, ids):
        tokens = array.array(self.kind, ids)
        if sys.byteorder != "little":
            tokens.byteswap()
        tokens.tofile(self.bin)
        self.lengths.append(len(tokens))

    def close(self):
        width = struct.calcsize(self.kind)
        count = len(self.lengths)
        offsets, offset = [], 0
        for length in self.lengths:
            offsets.append(offset)
            offset += length * width
        with open(self.prefix + ".idx.tmp", "wb") as index:
            index.write(b"MMIDIDX\0\0")
            index.write(struct.pack("<QBQQ", 1, TOKEN_TYPES[self.kind], count, count + 1))
            index.write(struct.pack(f"<{count}i", *self.lengths))
            index.write(struct.pack(f"<{count}q", *offsets))
            index.write(struct.pack(f"<{count + 1}q", *range(count + 1)))
            index.flush()
            os.fsync(index.fileno())
        self.bin.flush()
        os.fsync(self.bin.fileno())
        self.bin.close()
        # Sidecars of an older shard of this name would not belong to the new one.
        for suffix in (".weights", ".names"):
            Path(self.prefix + suffix).unlink(missing_ok=True)
        os.replace(self.prefix + ".bin.tmp", self.prefix + ".bin")
        os.replace(self.prefix + ".idx.tmp", self.prefix + ".idx")

    def abandon(self):
        self.bin.close()
        for suffix in (".bin.tmp", ".idx.tmp"):
            Path(self.prefix + suffix).unlink(missing_ok=True)


def read_documents(paths):
    """Yields (where, text) of each document."""
    for path in paths:
        if not path.endswith(".jsonl"):
            yield path, Path(path).read_text(encoding="utf-8")
            continue
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                where = f"{path}:{number}"
                try:
                    text = json.loads(line)["text"]
                except (ValueError, KeyError, TypeError) as error:
                    raise SystemExit(f"{where}: no JSON object with a key 'text' ({error!r})")
                if not isinstance(text, str):
                    raise SystemExit(f"{where}: 'text' must be a string")
                yield where, text


def batches(items, size):
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def write_shard(tokenizer, paths, prefix, end_of_document=None):
    """Returns (documents, empty documents, tokens)."""
    end = []
    if end_of_document is not None:
        end_id = tokenizer.token_to_id(end_of_document)
        if end_id is None:
            raise SystemExit(f"the tokenizer has no token {end_of_document!r}")
        end = [end_id]
    # Ids may have holes, so the largest decides, not their number.
    vocabulary_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    writer = ShardWriter(prefix, vocabulary_size)
    documents = empty = tokens = 0
    try:
        for batch in batches(read_documents(paths), BATCH):
            texts = [text for _, text in batch]
            for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
                if not encoding.ids:
                    empty += 1
                    continue
                writer.add(encoding.ids + end)
                documents += 1
                tokens += len(encoding.ids) + len(end)
        if documents == 0:
            raise SystemExit("no documents: all files are empty")
        writer.close()
    except BaseException:
        writer.abandon()
        raise
    return documents, empty, tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="path of a tokenizer.json")
    parser.add_argument("--out", required=True, help="shard name: OUT.bin and OUT.idx are written")
    parser.add_argument("--end-of-document", help="token put after each document; none by default")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing shard")
    parser.add_argument("files", nargs="+", help="text files (one document each) and .jsonl files")
    arguments = parser.parse_args()
    if Path(arguments.out + ".idx").exists() and not arguments.overwrite:
        raise SystemExit(f"{arguments.out}.idx is already there; choose another name, or --overwrite")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(arguments.tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    documents, empty, tokens = write_shard(
        tokenizer, arguments.files, arguments.out, arguments.end_of_document
    )
    left_out = f", left out {empty} empty ones" if empty else ""
    print(f"{arguments.out}: {documents} documents, {tokens} tokens{left_out}")


if __name__ == "__main__":
    main()
