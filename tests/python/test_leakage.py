"""The leakage report of `longspan data inspect` against a plain count, and the FASTA index."""
import json
import random
import re

import pytest

from small_runs import longspan

BASES = 24
COMPLEMENT = str.maketrans("ACGT", "TGCA")


def reverse_complement(bases):
    return bases.translate(COMPLEMENT)[::-1]


def windows(bases):
    """All runs of 24 letters among A, C, G, T, in upper case."""
    return [match.group(1) for match in re.finditer(f"(?=([ACGT]{{{BASES}}}))", bases.upper())]


def plain_count(train, evaluation):
    known = {window for bases in train for window in windows(bases)}
    known |= {reverse_complement(window) for window in known}
    return {name: {"windows": len(windows(bases)), "found": sum(window in known for window in windows(bases))}
            for name, bases in evaluation.items()}


def write_fasta(path, records, width=61):
    lines = []
    for name, bases in records.items():
        lines += [f">{name} a record", *[bases[at:at + width] for at in range(0, len(bases), width)]]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def genome():
    """Records of which some share stretches on either strand, soft-masked and with N among them."""
    generator = random.Random(4)
    draw = lambda count: "".join(generator.choice("ACGTACGTACGTacgtN"[:generator.choice([12, 16, 17])]) for _ in range(count))
    records = {f"chr{index}": draw(3000) for index in range(6)}
    records["chr4"] = records["chr4"][:500] + records["chr0"][700:1900] + records["chr4"][500:]
    records["chr5"] = reverse_complement(records["chr1"].upper())[1000:1400] + records["chr5"]
    records["tiny"] = "ACGT"
    return records


def inspect(*arguments):
    done = longspan("data", "inspect", "--tokenizer", "nucleotide", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def found_in(path):
    return {entry["name"]: {"windows": entry["windows"], "found": entry["found"]}
            for entry in json.loads(path.read_text())["leakage"]["documents"]}


def test_equals_a_plain_count(tmp_path, genome):
    held_out = {name: genome[name] for name in ("chr4", "chr5", "tiny")}
    train = {name: bases for name, bases in genome.items() if name not in held_out}
    expected = plain_count(train.values(), held_out)
    assert expected["chr4"]["found"] > 400 and 100 < expected["chr5"]["found"] < 400, "the genome is as described"
    # Two files, and one file with a hold-out.
    write_fasta(tmp_path / "train.fa", train)
    write_fasta(tmp_path / "eval.fa", held_out)
    console = inspect(tmp_path / "train.fa", "--leakage", "--eval", tmp_path / "eval.fa", "--json", tmp_path / "a.json")
    assert found_in(tmp_path / "a.json") == expected
    total = {key: sum(entry[key] for entry in expected.values()) for key in ("windows", "found")}
    percent = 100 * total["found"] / total["windows"]
    assert f"{percent:.2f} % of {total['windows']} held-out 24-mers" in console
    write_fasta(tmp_path / "genome.fa", genome)
    hold_out = [f"--hold-out={name}" for name in held_out]
    inspect(tmp_path / "genome.fa", "--leakage", *hold_out, "--json", tmp_path / "b.json")
    assert found_in(tmp_path / "b.json") == expected


def test_what_leakage_needs(tmp_path):
    write_fasta(tmp_path / "a.fa", {"a": "ACGT" * 10})
    for arguments, word in [(["--leakage", "--tokenizer=nucleotide"], "--eval or --hold-out"),
                            (["--leakage", "--eval", tmp_path / "a.fa"], "--tokenizer nucleotide"),
                            (["--eval", tmp_path / "a.fa"], "without --leakage")]:
        done = longspan("data", "inspect", tmp_path / "a.fa", *arguments)
        assert done.returncode == 2 and word in done.stderr, done.stderr


def test_index(tmp_path, genome):
    path = tmp_path / "genome.fa"
    write_fasta(path, genome)
    assert longspan("data", "index", path).returncode == 0
    expected, offset = [], 0
    for name, bases in genome.items():
        offset += len(f">{name} a record\n")
        width = min(61, len(bases))
        expected.append([name, str(len(bases)), str(offset), str(width), str(width + 1)])
        offset += len(bases) + -(-len(bases) // 61)
    index = tmp_path / "genome.fa.fai"
    assert [line.split("\t") for line in index.read_text().splitlines()] == expected
    assert "as it was" in longspan("data", "index", path).stdout
    # A file that has moved on from its index.
    write_fasta(path, {**genome, "tiny": "ACGTA"})
    done = longspan("data", "inspect", path)
    assert done.returncode == 2 and "genome.fa.fai:7" in done.stderr and "--overwrite" in done.stderr, done.stderr
    done = longspan("data", "index", path)
    assert done.returncode == 2 and "--overwrite" in done.stderr
    assert longspan("data", "index", path, "--overwrite").returncode == 0
    assert longspan("data", "inspect", path).returncode == 0
