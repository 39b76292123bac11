#!/usr/bin/env python3
"""Two related genomes, cut at the same positions into blocks and alternated: x1 y1 x2 y2 ... as FASTA records.

    scripts/interleave_strains.py COL.fasta.gz N315.fasta.gz --block 2000 --record 16384 --to demo/strains/train.fa

The useful copy of a base then lies about one block back, so a model that uses its context predicts better the further a
position lies beyond the first block of its record; one that does not stays at the loss of a single genome. The longest
record of each file is used. Every record starts at a block of the first genome.
"""
import argparse
import gzip
import pathlib


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
    """x1 y1 x2 y2 ... as far as both genomes reach with whole blocks."""
    whole = min(len(first), len(second)) // block
    return "".join(genome[i * block:(i + 1) * block] for i in range(whole) for genome in (first, second))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=pathlib.Path)
    parser.add_argument("second", type=pathlib.Path)
    parser.add_argument("--block", type=int, default=2000, help="bases of one block")
    parser.add_argument("--record", type=int, default=16384, help="most bases of one record")
    parser.add_argument("--skip", type=int, default=0, help="records left out at the start")
    parser.add_argument("--count", type=int, default=0, help="records written; 0: all that follow")
    parser.add_argument("--to", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    if arguments.block < 1 or arguments.record < 2 * arguments.block:
        raise SystemExit("--block must be positive and --record hold two blocks or more")
    line = interleaved(longest_record(arguments.first), longest_record(arguments.second), arguments.block)
    size = arguments.record // (2 * arguments.block) * 2 * arguments.block
    records = [line[start:start + size] for start in range(0, len(line) - size + 1, size)]
    end = arguments.skip + arguments.count if arguments.count else len(records)
    chosen = records[arguments.skip:end]
    if not chosen:
        raise SystemExit(f"no record left: {len(records)} in all, {arguments.skip} skipped")
    arguments.to.parent.mkdir(parents=True, exist_ok=True)
    with open(arguments.to, "w") as out:
        for index, record in enumerate(chosen):
            out.write(f">interleaved_{arguments.skip + index}\n")
            out.writelines(record[i:i + 80] + "\n" for i in range(0, len(record), 80))
    print(f"{arguments.to}: {len(chosen)} records of {size} bases, blocks of {arguments.block}")


if __name__ == "__main__":
    main()
