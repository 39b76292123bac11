#!/usr/bin/env python3
"""Trains the PyTorch peer in turns, as bench/compare_gpu.py asks for them; started by it, not by hand.

Arguments: a folder with documents.json, a list of token lists, and optionally shape.json, fields of Shape. Writes the
starting weights to the subfolder model, then reads a line of JSON per turn, {"attention": "dense", "steps": 5}, and
answers with one: seconds and losses of its steps. Every turn begins with the same weights. Between turns the memory of
activations is given back, so that another process can have it.
"""
import json
import pathlib
import statistics
import sys

import torch

from llama import ATTENTION, Documents, Llama, Shape, random_weights, save_pretrained

PEAK_PRODUCT_WIDTH = 8192
PEAK_REPEATS = 20
SEED = 0


def peak_flops():
    """Of a large bfloat16 product of random values on this machine."""
    a, b = (torch.randn(PEAK_PRODUCT_WIDTH, PEAK_PRODUCT_WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(PEAK_REPEATS + 1)]
    for mark in marks:
        a @ b
        mark.record()
    torch.cuda.synchronize()
    milliseconds = statistics.median(before.elapsed_time(after) for before, after in zip(marks, marks[1:]))
    return 2 * PEAK_PRODUCT_WIDTH**3 / milliseconds * 1e3


def make_optimizer(model, options):
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    norms = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": options["weight_decay"]},
                              {"params": norms, "weight_decay": 0.0}],
                             lr=options["lr"], betas=tuple(options["betas"]), eps=options["eps"], fused=True)


def train(model, documents, request):
    random_weights(model, SEED)
    optimizer = make_optimizer(model, request["optimizer"])
    attention = ATTENTION[request["attention"]]
    torch.cuda.reset_peak_memory_stats()
    marks, losses = [], []
    for _ in range(request["steps"]):
        loss = model(documents, attention)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), request["optimizer"]["clip"], foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
    torch.cuda.synchronize()
    seconds = [before.elapsed_time(after) / 1e3 for before, after in zip(marks, marks[1:])]
    peak = torch.cuda.max_memory_allocated()
    del optimizer
    torch.cuda.empty_cache()
    return {"step_s": [None, *seconds], "loss": [loss.item() for loss in losses], "peak_bytes": peak}


def main():
    folder = pathlib.Path(sys.argv[1])
    shape_file = folder / "shape.json"
    shape = Shape(**json.loads(shape_file.read_text())) if shape_file.exists() else Shape()
    answers, sys.stdout = sys.stdout, sys.stderr  # answers alone reach the one who asks
    with torch.device("cuda"):
        model = Llama(shape)
    random_weights(model, SEED)
    save_pretrained(model, folder / "model")
    documents = Documents.make(shape, json.loads((folder / "documents.json").read_text()), "cuda")
    hello = {"parameters": sum(parameter.numel() for parameter in model.parameters()),
             "tokens": documents.ids.numel(), "predicted": documents.predicted, "peak_flops": peak_flops(),
             "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
             "cudnn": torch.backends.cudnn.version()}
    torch.cuda.empty_cache()
    print(json.dumps(hello), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(train(model, documents, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
