#!/usr/bin/env python3
"""Training speed of the Llama-3-8B shape on the GPUs of one machine, at several lengths of documents.

    bench/context_lengths.py --binary build/cuda/longspan --case 32768x2 --case 131072x1 --out bench/results/context_lengths.json
    bench/context_lengths.py --binary build/cuda/longspan --case 131072x1 --peer flex --peer cudnn

A case is LENGTHxDOCUMENTS: equal documents of random token ids that make one micro-batch, the same in every step, spread over all
ranks. The preset llama_8b starts from random weights, in bfloat16 with float32 master weights; layers keep their inputs and attention
outputs (layout.stored_mode = "layer_inputs_attention"). Mean step time behind the warm-up, tokens/s, the MFU of longspan's log (forward
and backward as the model asks for them, without what is computed again) and the peak of memory that tensors take on a GPU.

--peer: beside it PyTorch with context parallelism and FSDP (bench/peer/context_parallel.py) on the same document, for cases of one document.
Each attention that is named runs; what went wrong with one stands in the result. Random weights differ, so losses do not agree exactly.
"""
import argparse
import datetime
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

VOCABULARY = 128256
PEER = pathlib.Path(__file__).resolve().parent / "peer" / "context_parallel.py"
LINE = "{label}: {step_s:.2f} s a step, {tokens_per_s:.0f} tokens/s, MFU {mfu_percent:.1f} %, peak {peak_gib:.0f} GiB"


def command(arguments, folder, tokens):
    return [str(arguments.binary), "train", str(folder / "run.toml"), "--model.preset=llama_8b",
            f"--data.train={folder}/documents.jsonl", "--data.tokenizer=none", "--data.append_end_of_document=false",
            f"--batch.micro_batch_tokens={tokens}", f"--layout.ranks={arguments.ranks}",
            "--layout.stored_mode=layer_inputs_attention", "--run.deterministic=false",
            f"--optimizer.steps={arguments.warm_up + arguments.steps}", "--optimizer.schedule=constant",
            "--optimizer.warmup_steps=0", "--optimizer.lr=1e-5", f"--output.folder={folder}/out",
            "--output.tensorboard=false", "--output.report=false", *arguments.longspan]


def logged_steps(folder):
    log = folder / "out" / "log.jsonl"
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [entry for entry in map(json.loads, lines) if entry.get("kind") == "step"]


def measure(arguments, case):
    length, documents = map(int, case.split("x"))
    draw, tokens = random.Random(1), length * documents
    wanted = arguments.warm_up + arguments.steps
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with open(folder / "documents.jsonl", "w") as file:
            for _ in range(documents):
                file.write(json.dumps({"input_ids": [int(VOCABULARY * draw.random()**3) for _ in range(length)]}) + "\n")
        (folder / "run.toml").write_text("")
        with open(folder / "log", "w") as log:
            run = subprocess.Popen(command(arguments, folder, tokens), stdout=log, stderr=subprocess.STDOUT)
        deadline, started = time.monotonic() + arguments.limit_s, time.monotonic()
        first_step_s = None
        while len(logged_steps(folder)) < wanted and run.poll() is None and time.monotonic() < deadline:
            if first_step_s is None and logged_steps(folder):
                first_step_s = time.monotonic() - started
            time.sleep(0.2)
        run.kill()  # the checkpoint at the end would take longer than the steps
        run.wait()
        steps = logged_steps(folder)
        if len(steps) < wanted:
            sys.exit(f"{case}: longspan ended or is too slow\n{(folder / 'log').read_text()[-3000:]}")
    counted = steps[arguments.warm_up:]
    step_s = sum(entry["time_metrics/end_to_end(s)"] for entry in counted) / len(counted)
    return {"length": length, "documents": documents, "step_s": step_s, "tokens_per_s": tokens / step_s,
            "mfu_percent": sum(entry["mfu(%)"] for entry in counted) / len(counted),
            "peak_gib": counted[-1]["memory/max_active(GiB)"], "first_step_after_s": first_step_s,
            "losses": [entry["loss"] for entry in steps]}


def measure_peer(arguments, case, attention):
    """The peer's result, or what it said when it failed."""
    length, documents = map(int, case.split("x"))
    if documents != 1:
        return {"attention": attention, "error": "torch's context parallelism runs on cases of one document only"}
    with tempfile.TemporaryDirectory() as name:
        out = pathlib.Path(name) / "result.json"
        command_line = [arguments.python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={arguments.ranks}",
                        str(PEER), f"--attention={attention}", f"--tokens={length}", f"--steps={arguments.steps}",
                        f"--warm-up={arguments.warm_up}", f"--out={out}"]
        with open(pathlib.Path(name) / "log", "w+") as log:
            run = subprocess.Popen(command_line, stdout=log, stderr=subprocess.STDOUT)
            try:
                failed = run.wait(arguments.limit_s) != 0
            except subprocess.TimeoutExpired:
                run.terminate()  # torchrun ends its processes
                run.wait()
                failed = True
            log.seek(0)
            said = log.read()
        return {"attention": attention, "error": said[-6000:]} if failed else json.loads(out.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default="build/cuda/longspan")
    parser.add_argument("--case", action="append", required=True, metavar="LENGTHxDOCUMENTS")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="counted steps")
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=400, help="of one case")
    parser.add_argument("--peer", action="append", default=[], choices=["flex", "flex-parts", "cudnn", "flash"],
                        help="an attention of the peer, run after longspan")
    parser.add_argument("--python", default=sys.executable, help="the python of the peer")
    parser.add_argument("--longspan", action="append", default=[], help="another override for longspan")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file of the result")
    arguments = parser.parse_args()
    results = []
    for case in arguments.case:
        results.append(measure(arguments, case))
        print(LINE.format(label=f"longspan {case}", **results[-1]) + "; first step after {first_step_after_s:.0f} s".format(**results[-1]),
              flush=True)
        if arguments.peer:
            results[-1]["peers"] = []
        for attention in arguments.peer:
            peer = measure_peer(arguments, case, attention)
            results[-1]["peers"].append(peer)
            print(LINE.format(label=f"torch {attention} {case}", **peer) if "error" not in peer else
                  f"torch {attention} {case}: failed\n{peer['error']}", flush=True)
        if arguments.out:
            arguments.out.write_text(json.dumps({
                "command": " ".join(sys.argv), "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "cases": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
