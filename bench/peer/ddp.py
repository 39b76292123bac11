#!/usr/bin/env python3
"""Trains the PyTorch peer with DistributedDataParallel on packs of ragged documents; started by bench/compare_ranks.py:

    python -m torch.distributed.run --nproc-per-node 2 bench/peer/ddp.py FOLDER --attention varlen

FOLDER/packs.json: for each step, for each rank, the token lists of a pack; every pack has the same number of tokens.
Writes the starting weights to FOLDER/model and the result to FOLDER/ddp.json: seconds and loss of each step, on the
clock of rank 0 between barriers that every step has anyway (the sum of gradients).
"""
import argparse
import json
import os
import pathlib
import time

import torch
import torch.distributed as dist

from llama import ATTENTION, Documents, Llama, Shape, random_weights, save_pretrained
from worker import SEED, make_optimizer, peak_flops


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--recompute", action="store_true")
    arguments = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    shape = Shape(**json.loads((arguments.folder / "shape.json").read_text()))
    options = json.loads((arguments.folder / "optimizer.json").read_text())
    with device:
        model = Llama(shape, arguments.recompute)
    random_weights(model, SEED)
    if rank == 0:
        save_pretrained(model, arguments.folder / "model")
    optimizer = make_optimizer(model, options)
    network = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
    steps, losses, seconds = json.loads((arguments.folder / "packs.json").read_text()), [], []
    made = []
    for packs in steps:
        predicted = sum(len(document) - 1 for pack in packs for document in pack)
        # DDP averages over ranks, so each rank's part is taken that many times.
        made.append(Documents.make(shape, packs[rank], device, predicted / world))
    dist.barrier()
    torch.cuda.synchronize()
    start = time.monotonic()
    for documents in made:
        loss = network(documents, ATTENTION["varlen"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), options["clip"], foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
        seconds.append(time.monotonic() - start)
        start = time.monotonic()
    result = {"step_s": seconds, "loss": losses, "peak_bytes": torch.cuda.max_memory_allocated(),
              "parameters": sum(parameter.numel() for parameter in model.parameters()), "peak_flops": peak_flops(),
              "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    if rank == 0:
        (arguments.folder / "ddp.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
