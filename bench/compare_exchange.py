#!/usr/bin/env python3
"""Rate of messages between two GPUs: longspan's ranks as threads (copy engines) and as processes (NCCL), beside torch's
batch_isend_irecv over NCCL.

    bench/compare_exchange.py --binary build/cuda/longspan_exchange_speed --out bench/results/exchange.json

256 MiB from each sender, whole and in pieces of 1 MiB and 64 KiB, one way and both ways at once; medians on the host's clock. NCCL
gets the pieces of a direction as one group.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

MESSAGE_BYTES = 256 << 20
CASES = [(both_ways, piece) for both_ways in (False, True) for piece in (MESSAGE_BYTES, 1 << 20, 64 << 10)]


def nccl_rank(repeats):
    import torch
    import torch.distributed as dist
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    outgoing = torch.randint(256, (MESSAGE_BYTES,), dtype=torch.uint8, device="cuda")
    incoming = torch.zeros_like(outgoing)
    results = []
    for both_ways, piece in CASES:
        operations = []
        for sent, received in zip(outgoing.split(piece), incoming.split(piece)):
            if both_ways or rank == 0:
                operations.append(dist.P2POp(dist.isend, sent, 1 - rank))
            if both_ways or rank == 1:
                operations.append(dist.P2POp(dist.irecv, received, 1 - rank))
        seconds = []
        for _ in range(repeats + 1):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            start = time.monotonic()
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            torch.cuda.synchronize()
            seconds.append(time.monotonic() - start)
        results.append({"piece_bytes": piece, "both_ways": both_ways,
                        "gb_per_s": MESSAGE_BYTES / statistics.median(seconds[1:]) / 1e9})
    if rank == 1:  # the receiver of the one-way cases
        print("RESULT", json.dumps(results), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/cuda/longspan_exchange_speed")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--nccl-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.nccl_rank:
        return nccl_rank(arguments.repeats)
    ours = json.loads(subprocess.run([arguments.binary, f"--repeats={arguments.repeats}"], check=True, stdout=subprocess.PIPE).stdout)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*torchrun, "--no-python", arguments.binary, f"--repeats={arguments.repeats}"], check=True, text=True,
                          stdout=subprocess.PIPE)
    processes = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[")))
    done = subprocess.run([*torchrun, __file__, "--nccl-rank", f"--repeats={arguments.repeats}"], check=True, text=True,
                          stdout=subprocess.PIPE)
    theirs = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))[len("RESULT"):])
    for mine, over_nccl, peer in zip(ours, processes, theirs):
        print(f"{'both ways' if mine['both_ways'] else 'one way':9s}, pieces of {mine['piece_bytes'] >> 10:6d} KiB: "
              f"threads {mine['gb_per_s']:.0f} GB/s, processes {over_nccl['gb_per_s']:.0f} GB/s, "
              f"torch with NCCL {peer['gb_per_s']:.0f} GB/s each way")
    if arguments.out:
        arguments.out.write_text(json.dumps({"command": " ".join(sys.argv), "longspan": ours, "longspan_processes": processes, "torch_nccl": theirs}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
