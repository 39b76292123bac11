#!/usr/bin/env python3
"""Training speed of longspan beside transformers + PyTorch, and of 4 in-process ranks beside 1, on this machine's CPU.

    .venv/bin/python bench/compare_transformers.py --out bench/results/NAME.json

All three train the model of the preset bench_llama_4x256 from the same weights, in float32, with the same AdamW and
clipping, on the same documents: one micro-batch, the same in every step, half of its tokens in documents of 4,096 or
more. They take turns, a few steps each, so that other work on the machine hits all of them; each turn's first step is a
warm-up and not counted. Losses must agree, which shows that they do the same work. Beside the time of a step its CPU
time is kept, which other work on the machine disturbs far less: with --threads=1 it compares the work itself.

transformers: attn_implementation="sdpa", document by document without padding, no key/value cache, sum of token losses
over the step's number of predicted tokens, fused or plain AdamW, whichever is faster here. longspan: stored mode keep,
so that neither side computes anything twice.

Exits with 1 if a ratio is below its target (--target-transformers, --target-ranks) or losses disagree.
"""
import argparse
import datetime
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEARNING_RATE = 3e-4
BETAS = (0.9, 0.95)
EPSILON = 1e-8
WEIGHT_DECAY = 0.1
CLIP = 1.0
LONG_TOKENS = 4096
# Sums of thousands of float32 terms in another order, and a few updates: far below any error in the mathematics.
LOSS_TOLERANCE = 1e-4


def make_lengths(total, seed):
    """Half of the tokens in documents of at least LONG_TOKENS, the rest in short ones, in a seeded order."""
    draw = random.Random(seed)
    lengths = []
    left = total // 2
    while left >= 2 * LONG_TOKENS:
        lengths.append(draw.randint(LONG_TOKENS, min(left - LONG_TOKENS, 2 * LONG_TOKENS)))
        left -= lengths[-1]
    lengths.append(left)
    left = total - sum(lengths)
    while left > 0:
        lengths.append(min(left, round(2 ** draw.uniform(5, 11.9))))
        left -= lengths[-1]
    draw.shuffle(lengths)
    assert sum(lengths) == total
    return lengths


def make_documents(lengths, seed):
    draw = random.Random(seed + 1)
    return [[draw.randrange(256) for _ in range(length)] for length in lengths]


class Longspan:
    def __init__(self, name, folder, arguments, ranks, threads):
        self.name = name
        self.folder = folder
        self.binary = arguments.binary
        self.micro_batch_tokens = arguments.tokens
        self.layout = [f"--layout.ranks={ranks}", f"--layout.threads_per_rank={threads}", *arguments.longspan]
        self.description = f"longspan, {ranks} rank(s) of {threads} thread(s)"

    def command(self, steps, output):
        return [self.binary, "train", self.folder / "run.toml", *self.layout, f"--optimizer.steps={steps}",
                f"--output.folder={output}"]

    def turn(self, steps):
        """(seconds, CPU seconds, loss) of each step"""
        with tempfile.TemporaryDirectory(dir=self.folder) as output:
            run = subprocess.Popen([str(part) for part in self.command(steps, output)], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
            printed, cpu_marks = [], []
            for line in run.stdout:
                printed.append(line)
                # Steps follow each other without a break, so that the first one's includes the start.
                if line.startswith("step "):
                    cpu_marks.append(cpu_seconds_of(run.pid))
            if run.wait() != 0:
                sys.exit(f"{self.name}: exit code {run.returncode}\n{''.join(printed[-40:])}")
            entries = [json.loads(line) for line in (pathlib.Path(output) / "log.jsonl").read_text().splitlines()]
        self.commit = entries[0]["commit"]
        log = [entry for entry in entries if entry["kind"] == "step"]
        assert all(entry["tokens/step"] == self.micro_batch_tokens for entry in log)
        cpu_s = [after - before for before, after in zip([0.0, *cpu_marks], cpu_marks)]
        assert len(cpu_s) == len(log) == steps
        return [(entry["time_metrics/end_to_end(s)"], cpu, entry["loss"]) for entry, cpu in zip(log, cpu_s)]


class Transformers:
    name = "transformers"

    def __init__(self, folder, documents, threads):
        self.folder = folder
        self.documents = [torch.tensor([document]) for document in documents]
        self.predicted = sum(len(document) - 1 for document in documents)
        self.threads = threads
        self.fused = False
        self.description = f"transformers {transformers.__version__}, torch {torch.__version__}, {threads} thread(s)"

    def start(self):
        torch.set_num_threads(self.threads)
        transformers.utils.logging.disable_progress_bar()
        model = transformers.LlamaForCausalLM.from_pretrained(self.folder / "model", dtype=torch.float32,
                                                              attn_implementation="sdpa")
        model.train()
        matrices = [p for p in model.parameters() if p.dim() > 1]
        norms = [p for p in model.parameters() if p.dim() == 1]
        optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": WEIGHT_DECAY},
                                       {"params": norms, "weight_decay": 0.0}],
                                      lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, fused=self.fused)
        return model, optimizer

    def step(self, model, optimizer):
        loss_sum = 0.0
        for ids in self.documents:
            logits = model(ids, use_cache=False).logits[0]
            loss = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="sum") / self.predicted
            loss.backward()
            loss_sum += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss_sum

    def choose_optimizer(self):
        """The faster of fused and plain AdamW on this machine: best of 20 updates each."""
        best_s = {}
        for self.fused in (False, True):
            model, optimizer = self.start()
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            times = []
            for _ in range(20):
                start = time.perf_counter()
                optimizer.step()
                times.append(time.perf_counter() - start)
            best_s[self.fused] = min(times)
        self.fused = best_s[True] < best_s[False]
        self.description += f", {'fused' if self.fused else 'plain'} AdamW ({best_s[self.fused] * 1e3:.1f} ms)"

    def turn(self, steps):
        model, optimizer = self.start()
        done = []
        for _ in range(steps):
            start, cpu = time.perf_counter(), time.process_time()
            loss = self.step(model, optimizer)
            done.append((time.perf_counter() - start, time.process_time() - cpu, loss))
        return done


def write_inputs(folder, documents, arguments):
    with (folder / "documents.jsonl").open("w") as out:
        for index, document in enumerate(documents):
            out.write(json.dumps({"input_ids": document, "name": f"document {index}"}) + "\n")
    (folder / "run.toml").write_text(f"""
[model]
path = "{folder}/model"
init = "weights"
[data]
train = ["{folder}/documents.jsonl"]
tokenizer = "none"
[batch]
micro_batch_tokens = {arguments.tokens}
[layout]
stored_mode = "keep"
[optimizer]
lr = {LEARNING_RATE}
schedule = "constant"
warmup_steps = 0
betas = {list(BETAS)}
eps = {EPSILON}
weight_decay = {WEIGHT_DECAY}
clip = {CLIP}
[output]
tensorboard = false
report = false
""")
    # The common starting point: the preset after one step on a short document, exported.
    (folder / "short.jsonl").write_text(json.dumps({"input_ids": documents[0][:32]}) + "\n")
    made = subprocess.run([arguments.binary, "train", folder / "run.toml", "--model.path=",
                           "--model.preset=bench_llama_4x256", "--model.init=random",
                           f"--data.train={folder}/short.jsonl", "--layout.ranks=1", "--optimizer.steps=1",
                           "--output.hf_export_at_end=true", f"--output.folder={folder}/start"],
                          capture_output=True, text=True)
    if made.returncode != 0:
        sys.exit(f"could not make the model: {made.stdout}{made.stderr}")
    (folder / "start" / "hf").rename(folder / "model")


def busy_cores(seconds):
    """Cores that work of any process keeps busy, over a short while."""
    def jiffies():
        fields = [int(value) for value in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]
    total, idle = jiffies()
    time.sleep(seconds)
    total_after, idle_after = jiffies()
    return os.cpu_count() * (1 - (idle_after - idle) / max(1, total_after - total))


def wait_for_quiet(arguments):
    deadline = time.monotonic() + arguments.wait_minutes * 60
    while True:
        busy = busy_cores(2)
        if busy <= arguments.busy_max or time.monotonic() > deadline:
            return busy


def cpu_seconds_of(process):
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def machine():
    models = [line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
              if line.startswith("model name")]
    return {"cpu": models[0] if models else "unknown", "cores": os.cpu_count(), "torch": torch.__version__,
            "transformers": transformers.__version__, "python": sys.version.split()[0],
            "system": " ".join(os.uname()[i] for i in (0, 2)), "matrix_flags": torch.backends.cpu.get_cpu_capability()}


def median_of(result, key, system, round_idx=None):
    return statistics.median(sample[key] for sample in result["samples"] if sample["system"] == system
                             and round_idx in (None, sample["round"]))


def ratio(result, key, faster, slower):
    """Median of one over the other; and the same of each round by itself."""
    rounds = sorted({sample["round"] for sample in result["samples"]})
    each = [median_of(result, key, faster, r) / median_of(result, key, slower, r) for r in rounds]
    return {"of_medians": median_of(result, key, faster) / median_of(result, key, slower), "by_round": each,
            "median_of_rounds": statistics.median(each)}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build" / "release" / "longspan"))
    parser.add_argument("--out", help="JSON file of the result")
    parser.add_argument("--tokens", type=int, default=32768, help="tokens of the micro-batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="counted steps of each turn")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads in all")
    parser.add_argument("--ranks", type=int, default=4, help="in-process ranks of the third system; 1: leave it out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--busy-max", type=float, default=0.2, help="start a round once other work keeps so few cores busy")
    parser.add_argument("--wait-minutes", type=float, default=0, help="but wait no longer than this for it")
    parser.add_argument("--target-transformers", type=float, default=1.0)
    parser.add_argument("--target-ranks", type=float, default=0.9)
    parser.add_argument("--longspan", action="append", default=[], help="further override for longspan")
    return parser.parse_args()


def measure(arguments, folder):
    lengths = make_lengths(arguments.tokens, arguments.seed)
    documents = make_documents(lengths, arguments.seed)
    write_inputs(folder, documents, arguments)
    other = Transformers(folder, documents, arguments.threads)
    other.choose_optimizer()
    threads_each = max(1, arguments.threads // max(1, arguments.ranks))
    systems = [Longspan("longspan", folder, arguments, 1, arguments.threads), other]
    if arguments.ranks > 1:
        systems.append(Longspan(f"longspan x{arguments.ranks}", folder, arguments, arguments.ranks, threads_each))
    result = {"command": " ".join(sys.argv), "commit": None, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
              "machine": machine(), "systems": {system.name: system.description for system in systems},
              "document_tokens": lengths, "samples": [], "turns": []}
    losses = {}
    for round_idx in range(arguments.rounds):
        busy = wait_for_quiet(arguments)
        # Another one begins in every round, so that none always follows the same other.
        order = systems[round_idx % len(systems):] + systems[:round_idx % len(systems)]
        for system in order:
            cpu, start = cpu_seconds(), time.perf_counter()
            done = system.turn(arguments.steps + 1)
            losses[system.name] = [loss for _, _, loss in done]
            wall = time.perf_counter() - start
            result["turns"].append({"system": system.name, "round": round_idx, "cores_got": (cpu_seconds() - cpu) / wall,
                                    "load": os.getloadavg()[0], "busy_cores_before_round": busy})
            for step, (step_s, cpu_s, _) in enumerate(done[1:]):
                result["samples"].append({"system": system.name, "round": round_idx, "step": step + 1,
                                          "step_s": step_s, "tokens_per_s": arguments.tokens / step_s,
                                          "cpu_s": cpu_s, "tokens_per_cpu_s": arguments.tokens / cpu_s})
            print(f"round {round_idx}  {system.name:14s}",
                  " ".join(f"{arguments.tokens / s:7.0f}" for s, _, _ in done[1:]), "tokens/s  ",
                  " ".join(f"{arguments.tokens / cpu:7.0f}" for _, cpu, _ in done[1:]), "tokens/CPU s   got",
                  f" {result['turns'][-1]['cores_got']:.2f} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    result["commit"] = systems[0].commit
    reference = losses[other.name]
    result["loss_difference_max"] = max(abs(loss - expected) / abs(expected) for system in systems
                                        for loss, expected in zip(losses[system.name], reference))
    for key in ("tokens_per_s", "tokens_per_cpu_s"):
        result[f"median_{key}"] = {system.name: median_of(result, key, system.name) for system in systems}
        result[f"longspan_over_transformers_{key}"] = ratio(result, key, "longspan", "transformers")
        if arguments.ranks > 1:
            result[f"ranks_over_one_rank_{key}"] = ratio(result, key, systems[2].name, "longspan")
    return result


def main():
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments, pathlib.Path(folder))
    for name, speed in result["median_tokens_per_s"].items():
        print(f"{name:14s} {speed:8.0f} tokens/s, {result['median_tokens_per_cpu_s'][name]:8.0f} tokens/CPU s (medians)   "
              f"{result['systems'][name]}")
    failed = False
    for name, target in (("longspan_over_transformers", arguments.target_transformers),
                         ("ranks_over_one_rank", arguments.target_ranks)):
        if f"{name}_tokens_per_s" not in result:
            continue
        speed = result[f"{name}_tokens_per_s"]
        failed |= speed["median_of_rounds"] < target
        print(f"{name}: {speed['median_of_rounds']:.2f} (median of rounds; {min(speed['by_round']):.2f} to "
              f"{max(speed['by_round']):.2f}; target {target}); by CPU time "
              f"{result[f'{name}_tokens_per_cpu_s']['median_of_rounds']:.2f}")
    difference = result["loss_difference_max"]
    print(f"largest relative difference of a step's loss: {difference:.1e} (tolerance {LOSS_TOLERANCE:.0e})")
    if arguments.out:
        out = pathlib.Path(arguments.out)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if failed or difference > LOSS_TOLERANCE else 0


if __name__ == "__main__":
    sys.exit(main())
