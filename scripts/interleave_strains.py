#!/usr/bin/env python3
"""Two related genomes, cut into blocks and alternated: x1 y1 x2 y2 ... as FASTA records.

    scripts/interleave_strains.py COL.fasta.gz N315.fasta.gz --to demo/strains/train.fa

A block of the second genome begins where the first 32 bases of a block of the first occur in it, so the two are the same place of
both genomes, give or take mutations; blocks whose beginning does not occur exactly once are left out. The useful copy of a base of
the second genome then lies one block back: a model that uses its context predicts the second half of a record of two blocks far
better than the first, one that does not predicts both alike. The longest record of each file is used.
"""
import argparse
import gzip
import pathlib

ANCHOR = 32  # bases by which blocks are paired


def longest_record(path):
    """The bases of the longest record of a FASTA file, plain or gzip."""
    opened = gzip.open(path, "rt") if str(path).endswith(".gz") else open(path)
    records = []
    with opened as lines:
        for line in lines:
            if line.startswith(">"):
                records.append([])
            elif records:
                records[-1].append(line.strip().upper())
    if not records:
        raise SystemExit(f"{path}: no FASTA record")
    return max(("".join(parts) for parts in records), key=len)


def interleaved(first, second, block):
    """Pairs x y of blocks that begin alike, in the order of the first genome."""
    starts = range(0, len(first) - block + 1, block)
    places = {first[start:start + ANCHOR]: [] for start in starts}
    for position in range(len(second) - block + 1):
        found = places.get(second[position:position + ANCHOR])
        if found is not None:
            found.append(position)
    for start in starts:
        found = places[first[start:start + ANCHOR]]
        if len(found) == 1:
            yield first[start:start + block] + second[found[0]:found[0] + block]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=pathlib.Path)
    parser.add_argument("second", type=pathlib.Path)
    parser.add_argument("--block", type=int, default=64, help="bases of one block")
    parser.add_argument("--record", type=int, default=128, help="most bases of one record")
    parser.add_argument("--skip", type=int, default=0, help="records left out at the start")
    parser.add_argument("--count", type=int, default=0, help="records written; 0: all that follow")
    parser.add_argument("--to", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    if arguments.block < ANCHOR or arguments.record < 2 * arguments.block:
        raise SystemExit(f"--block must be at least {ANCHOR} and --record hold two blocks or more")
    pairs = list(interleaved(longest_record(arguments.first), longest_record(arguments.second), arguments.block))
    each = arguments.record // (2 * arguments.block)
    records = ["".join(pairs[start:start + each]) for start in range(0, len(pairs) - each + 1, each)]
    end = arguments.skip + arguments.count if arguments.count else len(records)
    chosen = records[arguments.skip:end]
    if not chosen:
        raise SystemExit(f"no record left: {len(records)} in all, {arguments.skip} skipped")
    arguments.to.parent.mkdir(parents=True, exist_ok=True)
    with open(arguments.to, "w") as out:
        for index, record in enumerate(chosen):
            out.write(f">interleaved_{arguments.skip + index}\n")
            out.writelines(record[i:i + 80] + "\n" for i in range(0, len(record), 80))
    print(f"{arguments.to}: {len(chosen)} records of {len(chosen[0])} bases, blocks of {arguments.block}")


if __name__ == "__main__":
    main()
