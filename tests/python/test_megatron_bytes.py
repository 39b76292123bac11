"""The C++ shard writer against one written here with struct: the same bytes."""
import struct

import pytest


def documents_of(seed, vocabulary):
    """The documents that write_sample_shard writes: the same small generator on both sides."""
    state = seed
    documents = []
    for number in range(20):
        document = []
        for _ in range(1 + (number * 7) % 13):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            document.append((state >> 33) % vocabulary)
        documents.append(document)
    return documents


def shard_bytes(documents, vocabulary):
    kind, code = ("H", 8) if vocabulary < 65500 else ("i", 4)
    tokens = b"".join(struct.pack(f"<{len(d)}{kind}", *d) for d in documents)
    index = b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, code)
    index += struct.pack("<QQ", len(documents), len(documents) + 1)
    offset, offsets = 0, b""
    for document in documents:
        index += struct.pack("<i", len(document))
        offsets += struct.pack("<q", offset)
        offset += len(document) * struct.calcsize(kind)
    index += offsets
    for number in range(len(documents) + 1):
        index += struct.pack("<q", number)
    return tokens, index


@pytest.mark.parametrize("seed, vocabulary", [(1, 5), (2, 65499), (3, 65500), (4, 250000)])
def test_same_bytes(run_program, tmp_path, seed, vocabulary):
    run_program("write_sample_shard", tmp_path / "x", seed, vocabulary)
    tokens, index = shard_bytes(documents_of(seed, vocabulary), vocabulary)
    assert (tmp_path / "x.bin").read_bytes() == tokens
    assert (tmp_path / "x.idx").read_bytes() == index
