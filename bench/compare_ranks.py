#!/usr/bin/env python3
"""Training speed on the GPUs of one machine, ragged documents: longspan beside PyTorch with DistributedDataParallel.

    bench/compare_ranks.py --binary build/cuda/longspan --tokens-per-rank 65536 --out bench/results/compare_ranks.json
    bench/compare_ranks.py --binary build/cuda/longspan --tokens-per-rank 131072 --recompute

The lengths of bench/data/prolong_like.txt, shuffled once, are laid into packs of exactly --tokens-per-rank tokens; what
crosses the end of a pack becomes a document of the next one. A step is one pack for each rank of the peer, which sees
them as data parallel ranks do. longspan gets the same pieces as documents, in that order, and spreads them as it likes.
Both train the preset bench_llama_1b from the same weights, in bfloat16 with float32 master weights. --recompute: the peer
recomputes every layer, longspan stores layer inputs and attention outputs.

Beside them: the peer's imbalance, max over mean of the attended pairs of a step's packs; how much faster the peer would be with even
ranks, by a line fitted to its step times over the pairs of its fuller rank (all steps but the first three); and with --uncut longspan's speed on the same
documents without cutting them at packs, which the peer cannot train.
MFU: 6 FLOPs for each weight but the embedding's and each token, 12 for each visible pair, head and channel, over the
rate of a large product measured in the same run. Exits with 1 if losses disagree.
"""
import argparse
import datetime
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import kernel_profile
from compare_gpu import LOSS_TOLERANCE, MODEL, OPTIMIZER, ROOT

LIMIT_S = 240  # of one run
COMPILING_STEPS = 3  # of the peer, which are no measure of its work


def lengths():
    found = [int(line) for line in (ROOT / "bench" / "data" / "prolong_like.txt").read_text().split()]
    random.Random(0).shuffle(found)
    return found


def packs(tokens, count):
    made, pack, room = [], [], tokens
    for length in lengths() * 50:
        while length > 0:
            part = min(length, room)
            pack.append(part)
            length, room = length - part, room - part
            if room == 0:
                made.append(pack)
                if len(made) == count:
                    return made
                pack, room = [], tokens
    raise AssertionError("unreachable")


def pairs(pack):
    return sum(length * (length + 1) // 2 for length in pack)


def documents_of(draw, pack):
    return [[int(MODEL["vocabulary"] * draw.random()**3) for _ in range(length)] for length in pack]


def write_jsonl(path, documents):
    with open(path, "w") as file:
        for document in documents:
            file.write(json.dumps({"input_ids": document}) + "\n")


def run_peer(arguments, folder):
    command = [arguments.python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={arguments.ranks}",
               str(ROOT / "bench" / "peer" / "ddp.py"), str(folder)] + ["--recompute"] * arguments.recompute
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"the peer ended with {done.returncode}\n{done.stdout[-3000:]}")
    return json.loads((folder / "ddp.json").read_text())


def run_longspan(arguments, folder, documents, tokens, steps, name=None, surroundings=None):
    name = name or documents.stem
    output = folder / f"out-{name}"
    command = [str(arguments.binary), "train", str(folder / "run.toml"), f"--model.path={folder}/model", "--model.init=weights",
               f"--data.train={documents}", "--data.tokenizer=none", "--data.append_end_of_document=false",
               "--data.shuffle=false", f"--batch.micro_batch_tokens={tokens}", f"--layout.ranks={arguments.ranks}",
               f"--layout.stored_mode={'layer_inputs_attention' if arguments.recompute else 'keep'}",
               f"--run.deterministic={json.dumps(arguments.deterministic)}", f"--optimizer.steps={steps}",
               "--optimizer.schedule=constant", "--optimizer.warmup_steps=0",
               *(f"--optimizer.{key}={value}" for key, value in OPTIMIZER.items()), *arguments.longspan,
               f"--output.folder={output}", "--output.tensorboard=false", "--output.report=false"]
    output.mkdir()
    log = folder / f"{name}.log"
    with open(log, "w") as file:
        run = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=surroundings)
    entries, deadline = [], time.monotonic() + LIMIT_S
    while len(entries) < steps and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
        file = output / "log.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        entries = [entry for entry in map(json.loads, lines) if entry.get("kind") == "step"]
    run.kill()  # the checkpoint at the end would take longer than the steps
    run.wait()
    if len(entries) < steps:
        sys.exit(f"longspan ended or is too slow\n{log.read_text()[-3000:]}")
    notes = [line for line in log.read_text().splitlines() if line.startswith(("kernel", "device", "peak"))]
    return {"step_s": [entry["time_metrics/end_to_end(s)"] for entry in entries], "loss": [entry["loss"] for entry in entries],
            "tokens": [entry["tokens/step"] for entry in entries], "entries": entries, "notes": notes,
            "peak_bytes": int(entries[-1]["memory/max_active(GiB)"] * 2**30)}


def speed(warm_up, step_s, tokens, flops, peak_flops):
    seconds = sum(step_s[warm_up:])
    return {"tokens_per_s": sum(tokens[warm_up:]) / seconds, "mfu": sum(flops[warm_up:]) / seconds / peak_flops,
            "step_s": seconds / len(step_s[warm_up:])}


def step_flops(parameters, pack):
    products = 6 * (parameters - MODEL["vocabulary"] * MODEL["hidden"]) * sum(pack)
    return products + 12 * pairs(pack) * MODEL["heads"] * MODEL["head_dim"] * MODEL["layers"]


def most_pairs(by_step):
    return [max(map(pairs, of_step)) for of_step in by_step]


def mean_pairs(by_step):
    return [sum(map(pairs, of_step)) / len(of_step) for of_step in by_step]


def fitted(step_pairs, step_s):
    """Seconds of a step as intercept + slope * pairs, least squares."""
    return statistics.linear_regression(step_pairs[COMPILING_STEPS:], step_s[COMPILING_STEPS:])


def balance_ceiling(step_s, by_step, warm_up):
    """The peer's counted time over what it would be if each rank had its step's mean of pairs."""
    fit = fitted(most_pairs(by_step), step_s)
    return sum(step_s[warm_up:]) / sum(fit.intercept + fit.slope * even for even in mean_pairs(by_step)[warm_up:])


def fit_text(fit):
    return f"{fit.intercept:.3f} s + {1e9 * fit.slope:.2f} s a billion pairs"


def uncut(arguments, folder, draw, steps):
    """Whole documents that fit, in the order of the list, in micro-batches that longspan fills itself."""
    tokens = arguments.tokens_per_rank * arguments.ranks
    chosen = [length for length in lengths() if length <= tokens]
    # longspan holds up to 32 micro-batches open at once.
    file = folder / "uncut.jsonl"
    write_jsonl(file, documents_of(draw, chosen[:max(1, 40 * tokens * len(chosen) // sum(chosen))]))
    run = run_longspan(arguments, folder, file, tokens, steps)
    counted = slice(arguments.warm_up, None)
    return {"tokens_per_s": sum(run["tokens"][counted]) / sum(run["step_s"][counted]),
            "mfu_of_log": [entry["mfu(%)"] for entry in run["entries"][counted]], "longest": max(chosen),
            "run": {key: run[key] for key in ("step_s", "loss", "tokens", "peak_bytes")}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default="build/cuda/longspan")
    parser.add_argument("--python", default=sys.executable, help="the python of the peer")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens-per-rank", type=int, default=65536)
    parser.add_argument("--steps", type=int, default=8, help="counted steps")
    parser.add_argument("--warm-up", type=int, default=6, help="steps before them: kernels are compiled and planned")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--deterministic", action="store_true", help="longspan with run.deterministic on")
    parser.add_argument("--uncut", action="store_true")
    parser.add_argument("--profile", action="store_true", help="run longspan once more and show its time kernel by kernel")
    parser.add_argument("--longspan", action="append", default=[], help="another override for longspan")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file of the result")
    arguments = parser.parse_args()
    steps = arguments.steps + arguments.warm_up
    tokens = arguments.tokens_per_rank * arguments.ranks
    made = packs(arguments.tokens_per_rank, steps * arguments.ranks)
    by_step = [made[begin:begin + arguments.ranks] for begin in range(0, len(made), arguments.ranks)]
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ids = [[documents_of(draw, pack) for pack in of_step] for of_step in by_step]
        (folder / "packs.json").write_text(json.dumps(ids))
        (folder / "shape.json").write_text(json.dumps(MODEL))
        (folder / "optimizer.json").write_text(json.dumps(OPTIMIZER))
        (folder / "run.toml").write_text("")
        pieces = folder / "pieces.jsonl"
        write_jsonl(pieces, [document for of_step in ids for pack in of_step for document in pack])
        peer = run_peer(arguments, folder)
        ours = run_longspan(arguments, folder, pieces, tokens, steps)
        flops = [step_flops(peer["parameters"], [length for pack in of_step for length in pack]) for of_step in by_step]
        peak_flops = peer["peak_flops"] * arguments.ranks
        imbalance = [most / mean for most, mean in zip(most_pairs(by_step), mean_pairs(by_step))]
        assert ours["tokens"] == [tokens] * steps, ours["tokens"]
        summaries = {"torch ddp": speed(arguments.warm_up, peer["step_s"], [tokens] * steps, flops, peak_flops),
                     "longspan": speed(arguments.warm_up, ours["step_s"], ours["tokens"], flops, peak_flops)}
        result = {"command": " ".join(sys.argv), "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                  "gpu": peer["gpu"], "torch": peer["torch"], "systems": summaries,
                  "longspan / torch ddp": summaries["longspan"]["tokens_per_s"] / summaries["torch ddp"]["tokens_per_s"],
                  "balance_ceiling": balance_ceiling(peer["step_s"], by_step, arguments.warm_up),
                  "pairs_max_over_mean": sum(imbalance[arguments.warm_up:]) / arguments.steps,
                  "loss_difference_max": max(abs(a - b) / b for a, b in zip(ours["loss"], peer["loss"])),
                  "peer": peer, "longspan": ours}
        if arguments.uncut:
            result["uncut"] = uncut(arguments, folder, draw, steps)
        for label, system in summaries.items():
            print(f"{label:10s} {1e3 * system['step_s']:8.1f} ms a step, {system['tokens_per_s']:8.0f} tokens/s, MFU {100 * system['mfu']:.1f} %")
        print(f"longspan / torch ddp {result['longspan / torch ddp']:.3f}; attended pairs of the peer's ranks, max over mean "
              f"{result['pairs_max_over_mean']:.2f}; with even ranks the peer would be {result['balance_ceiling']:.2f} times as fast; losses within {result['loss_difference_max']:.1e}; peak GiB "
              f"{peer['peak_bytes'] / 2**30:.0f} and {ours['peak_bytes'] / 2**30:.0f}")
        print(f"a step of torch ddp: {fit_text(fitted(most_pairs(by_step), peer['step_s']))} of its fuller rank; of longspan: "
              f"{fit_text(fitted(mean_pairs(by_step), ours['step_s']))} of a rank's mean")
        if arguments.uncut:
            print(f"uncut: {result['uncut']['tokens_per_s']:.0f} tokens/s, MFU {result['uncut']['mfu_of_log']} %")
        if arguments.out:
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")
        if arguments.profile:
            table = folder / "kernels.csv"
            run_longspan(arguments, folder, pieces, tokens, steps, "profile",
                         kernel_profile.surroundings(arguments.binary, table))
            kernel_profile.print_profile(table, arguments.warm_up)
    return 1 if result["loss_difference_max"] > LOSS_TOLERANCE else 0


if __name__ == "__main__":
    sys.exit(main())
