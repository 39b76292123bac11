#!/usr/bin/env python3
"""Training speed on one GPU: longspan beside PyTorch with cuDNN's dense attention and with packed FlashAttention-2.

    bench/compare_gpu.py --binary build/cuda/longspan --case 8192x4 --case 65536x1 --out bench/results/compare_gpu.json

A case is LENGTHxDOCUMENTS: equal documents of random token ids that make one micro-batch, the same in every step. All
sides train the preset bench_llama_1b (1.1 billion parameters) from the same weights, in bfloat16 with float32 master
weights, with the same AdamW and clipping, without recomputation. They take turns; each turn begins with the same
weights, its first steps are a warm-up and not counted. Tokens and predicted tokens must be equal and losses agree.
longspan runs with run.deterministic off and on. The peers are bench/peer; run this with the python that has their torch.

MFU: 6 FLOPs for each weight but the embedding's and each token, and 12 for each visible pair of tokens, head and
channel, over the rate of a bfloat16 product of 8192^3 random values, measured in the same run.
Exits with 1 if losses disagree.
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = {"layers": 16, "hidden": 2048, "intermediate": 8192, "vocabulary": 32768, "heads": 16, "kv_heads": 4, "head_dim": 128}
OPTIMIZER = {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}
SYSTEMS = ["longspan", "torch cudnn", "longspan deterministic", "torch varlen"]
WARM_UP_STEPS = 3
# All sides round every activation to 8 bits, in other places; a wrong mask or scale is far above this. Differences grow from
# step to step while the same documents are learned by heart: after 17 steps torch's own two attentions are 1.5 % apart.
LOSS_TOLERANCE = 0.01
JUDGED_STEPS = 10
LONGSPAN_START_S = 120  # longest wait for the first step


class Longspan:
    def __init__(self, name, folder, arguments, tokens, deterministic):
        self.name = name
        self.output = folder / "out"
        self.command = [
            str(arguments.binary), "train", str(folder / "run.toml"), f"--model.path={folder}/model", "--model.init=weights",
            f"--data.train={folder}/documents.jsonl", "--data.tokenizer=none", "--data.append_end_of_document=false",
            f"--batch.micro_batch_tokens={tokens}", "--layout.ranks=1", "--layout.stored_mode=keep",
            f"--run.deterministic={json.dumps(deterministic)}", "--optimizer.steps=100000", "--optimizer.schedule=constant",
            "--optimizer.warmup_steps=0", *(f"--optimizer.{key}={value}" for key, value in OPTIMIZER.items()),
            f"--output.folder={self.output}", "--output.tensorboard=false", "--output.report=false"
        ]

    def turn(self, steps):
        """Ends the run by force once it has done its steps: the checkpoint at its end would take longer than they."""
        subprocess.run(["rm", "-rf", self.output], check=True)
        log = self.output.with_suffix(".log")
        with open(log, "w") as file:
            run = subprocess.Popen(self.command, stdout=file, stderr=subprocess.STDOUT)
        entries, deadline = [], time.monotonic() + LONGSPAN_START_S
        while len(entries) < steps:
            if run.poll() is not None or time.monotonic() > deadline:
                run.kill()
                sys.exit(f"{self.name}: ended or too slow\n{log.read_text()[-3000:]}")
            time.sleep(0.05)
            entries = self.steps()
        run.kill()
        run.wait()
        entries = entries[:steps]
        header = json.loads((self.output / "log.jsonl").read_text().splitlines()[0])
        return {"step_s": [entry["time_metrics/end_to_end(s)"] for entry in entries],
                "loss": [entry["loss"] for entry in entries], "tokens": entries[-1]["tokens/step"],
                "predicted": entries[-1]["tokens/weighted"],
                "peak_bytes": int(entries[-1]["memory/max_active(GiB)"] * 2**30), "commit": header.get("commit"),
                "attention_percent": statistics.median(entry["ca/server_busy(%)"] for entry in entries),
                "attention": [line for line in log.read_text().splitlines() if line.startswith("kernel") and "attention" in line]}

    def steps(self):
        log = self.output / "log.jsonl"
        lines = log.read_text().split("\n")[:-1] if log.exists() else []
        return [entry for entry in map(json.loads, lines) if entry.get("kind") == "step"]


class Peer:
    def __init__(self, name, worker, attention):
        self.name = name
        self.worker = worker
        self.attention = attention

    def turn(self, steps):
        return self.worker.ask({"attention": self.attention, "steps": steps, "optimizer": OPTIMIZER})


class Worker:
    def __init__(self, folder, python):
        self.process = subprocess.Popen([python, ROOT / "bench" / "peer" / "worker.py", folder], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.hello = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the peer ended with exit code {self.process.wait()}")
        return json.loads(line)

    def ask(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def write_documents(folder, length, documents):
    draw = random.Random(length)
    ids = [[int(MODEL["vocabulary"] * draw.random()**3) for _ in range(length)] for _ in range(documents)]
    (folder / "documents.json").write_text(json.dumps(ids))
    with open(folder / "documents.jsonl", "w") as file:
        for document in ids:
            file.write(json.dumps({"input_ids": document}) + "\n")
    (folder / "shape.json").write_text(json.dumps(MODEL))
    (folder / "run.toml").write_text("")


def step_flops(parameters, length, documents):
    products = 6 * (parameters - MODEL["vocabulary"] * MODEL["hidden"]) * length * documents
    pairs = documents * length * (length + 1) // 2
    return products + 12 * pairs * MODEL["heads"] * MODEL["head_dim"] * MODEL["layers"]


def summary(turns, tokens, flops, peak_flops):
    seconds = [step for turn in turns for step in turn["step_s"][WARM_UP_STEPS:]]
    median = statistics.median(seconds)
    return {"step_s": median, "step_s_min": min(seconds), "step_s_max": max(seconds), "steps": len(seconds),
            "tokens_per_s": tokens / median, "mfu": flops / median / peak_flops,
            "peak_gib": max(turn["peak_bytes"] for turn in turns) / 2**30,
            "attention_percent": turns[0].get("attention_percent")}


def loss_difference(turns):
    """Largest relative difference of a step's loss from that of the dense peer, while steps are few."""
    reference = turns["torch cudnn"][0]["loss"][:JUDGED_STEPS]
    return max(abs(loss - expected) / expected for name in turns for turn in turns[name]
               for loss, expected in zip(turn["loss"], reference))


def compare(arguments, length, documents):
    tokens = length * documents
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_documents(folder, length, documents)
        worker = Worker(folder, arguments.python)
        known = [Longspan("longspan", folder, arguments, tokens, False), Peer("torch cudnn", worker, "dense"),
                 Longspan("longspan deterministic", folder, arguments, tokens, True), Peer("torch varlen", worker, "varlen")]
        systems = [system for system in known if system.name in arguments.systems]
        turns = {system.name: [] for system in systems}
        for round_idx in range(arguments.rounds):
            for system in systems[round_idx % len(systems):] + systems[:round_idx % len(systems)]:
                start = time.monotonic()
                turns[system.name].append(system.turn(arguments.steps + WARM_UP_STEPS))
                print(f"{length}x{documents} round {round_idx} {system.name:24s}",
                      " ".join(f"{step:.3f}" for step in turns[system.name][-1]["step_s"] if step), "s;  losses",
                      " ".join(f"{loss:.4f}" for loss in turns[system.name][-1]["loss"]),
                      f"; turn {time.monotonic() - start:.0f} s", flush=True)
        worker.end()
    hello = worker.hello
    ours = [name for name in turns if name.startswith("longspan")]
    theirs = [name for name in turns if name.startswith("torch")]
    for turn in (turn for name in ours for turn in turns[name]):
        assert (turn["tokens"], turn["predicted"]) == (hello["tokens"], hello["predicted"])
    flops = step_flops(hello["parameters"], length, documents)
    summaries = {name: summary(done, tokens, flops, hello["peak_flops"]) for name, done in turns.items()}
    best = max(summaries[name]["tokens_per_s"] for name in theirs)
    ratios = {f"{own} / {peer}": summaries[own]["tokens_per_s"] / summaries[peer]["tokens_per_s"] for own in ours for peer in theirs}
    return {"document_tokens": length, "documents": documents, "machine": hello, "step_flops": flops,
            "systems": summaries, "ratios": ratios, "longspan / faster peer": summaries["longspan"]["tokens_per_s"] / best,
            "loss_difference_max": loss_difference(turns), "turns": turns}


def print_case(case):
    print(f"\n{case['documents']} x {case['document_tokens']} tokens, {case['machine']['gpu']}, peak "
          f"{case['machine']['peak_flops'] / 1e12:.0f} TFLOP/s, losses within {case['loss_difference_max']:.1e}")
    for name, system in case["systems"].items():
        print(f"{name:24s} {1e3 * system['step_s']:8.1f} ms ({1e3 * system['step_s_min']:.1f} to {1e3 * system['step_s_max']:.1f}, "
              f"{system['steps']} steps) {system['tokens_per_s']:8.0f} tokens/s  MFU {100 * system['mfu']:.1f} %  "
              f"{system['peak_gib']:.1f} GiB  attention {system['attention_percent'] or 0:.1f} %")
    for name, ratio in case["ratios"].items():
        print(f"{name:44s} {ratio:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default="build/cuda/longspan")
    parser.add_argument("--python", default=sys.executable, help="the python of the peers")
    parser.add_argument("--case", action="append", help="LENGTHxDOCUMENTS; default: 8192x4 and 65536x1")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="longspan and torch cudnn at least")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10, help="counted steps of each turn")
    parser.add_argument("--out", help="JSON file of the result")
    arguments = parser.parse_args()
    if not {"longspan", "torch cudnn"} <= set(arguments.systems):
        parser.error("--systems without longspan or torch cudnn compares nothing")
    result = {"command": " ".join(sys.argv), "cases": [],
              "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    for case in arguments.case or ["8192x4", "65536x1"]:
        length, documents = map(int, case.split("x"))
        result["cases"].append(compare(arguments, length, documents))
        print_case(result["cases"][-1])
        if arguments.out:
            pathlib.Path(arguments.out).write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(case["loss_difference_max"] > LOSS_TOLERANCE for case in result["cases"]) else 0


if __name__ == "__main__":
    sys.exit(main())
