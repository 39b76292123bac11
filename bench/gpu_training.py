#!/usr/bin/env python3
"""Speed of training on one GPU: tokens per second and MFU of the preset bench_llama_1b.

    bench/gpu_training.py --binary build/cuda/longspan
    bench/gpu_training.py --document-tokens 65536 --step-tokens 65536 -- --run.deterministic=true
    bench/gpu_training.py --profile             # where the time of a step goes, kernel by kernel

Documents are random token ids of equal length, frequent ids more often. The run is ended by force after --seconds: its
checkpoint would take longer than its steps. The first steps are left out; figures are medians. --profile loads the
library liblongspan_kernel_times.so that stands beside the program (bench/kernel_times.cpp). Arguments behind -- go to
longspan. Standard library only.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import tempfile

import kernel_profile

WARM_UP_STEPS = 4
VOCABULARY = 32768


def write_documents(path, document_tokens, documents):
    generator = random.Random(2)
    with open(path, "w") as file:
        for _ in range(documents):
            ids = (str(int(VOCABULARY * generator.random() ** 3)) for _ in range(document_tokens))
            file.write('{"input_ids": [%s]}\n' % ",".join(ids))


def train_command(arguments, folder):
    return [
        str(arguments.binary), "train", str(folder / "run.toml"),
        "--model.preset=bench_llama_1b", f"--data.train={folder / 'documents.jsonl'}", "--data.tokenizer=none",
        f"--batch.micro_batch_tokens={arguments.step_tokens}", "--layout.stored_mode=keep",
        "--run.deterministic=false", "--optimizer.steps=100000", f"--output.folder={folder / 'out'}",
        "--output.tensorboard=false", *arguments.more
    ]


def run(command, seconds, log, surroundings=None):
    with open(log, "w") as file:
        try:
            subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=seconds, check=True, env=surroundings)
        except subprocess.TimeoutExpired:
            pass  # as meant: subprocess has killed it


def print_speed(folder):
    for line in (folder / "log.txt").read_text().splitlines():
        if line.startswith(("device", "kernel", "peak")):
            print(line)
    entries = [json.loads(line) for line in (folder / "out" / "log.jsonl").read_text().splitlines()]
    steps = [entry for entry in entries if entry.get("kind") == "step"][WARM_UP_STEPS:]
    if not steps:
        raise SystemExit((folder / "log.txt").read_text()[-2000:] + "\nno step after the warm-up: give --seconds more")
    seconds = statistics.median(step["time_metrics/end_to_end(s)"] for step in steps)
    tokens = steps[-1]["tokens/step"]
    print(f"{len(steps)} steps, median {1e3 * seconds:.1f} ms, {tokens / seconds:.0f} tokens/s, "
          f"MFU {statistics.median(step['mfu(%)'] for step in steps):.1f} %, "
          f"attention {statistics.median(step['ca/server_busy(%)'] for step in steps):.1f} % of the step, "
          f"peak memory {steps[-1]['memory/max_active(GiB)']:.1f} GiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default="build/cuda/longspan")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--document-tokens", type=int, default=8192)
    parser.add_argument("--step-tokens", type=int, default=32768)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("more", nargs="*", help="further arguments of longspan train")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_documents(folder / "documents.jsonl", arguments.document_tokens,
                        max(4, 16 * arguments.step_tokens // arguments.document_tokens))
        (folder / "run.toml").write_text("")
        command = train_command(arguments, folder)
        print(" ".join(command))
        if arguments.profile:
            table = folder / "kernels.csv"
            run(command, arguments.seconds, folder / "log.txt", kernel_profile.surroundings(arguments.binary, table))
            kernel_profile.print_profile(table, WARM_UP_STEPS)
        else:
            run(command, arguments.seconds, folder / "log.txt")
            print_speed(folder)


if __name__ == "__main__":
    main()
