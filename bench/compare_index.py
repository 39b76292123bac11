#!/usr/bin/env python3
"""Index scoring with top-k of one long document: longspan beside a PyTorch scorer on the same GPU.

    bench/compare_index.py --binary build/cuda/longspan_index_speed --tokens 262144 --tokens 1048576 --out index.json

The shape is the released one: 32 heads of width 128, pools of 4 tokens, 512 pools chosen. The peer goes over chunks of
queries and of pools: a bfloat16 matrix product by cuBLAS, then one compiled kernel (torch.compile) for relu, the weighted
sum over heads and the causal mask, then torch.topk, merged into a running list; chunks that no query sees are left out.
Its products are bfloat16, which halves what it writes and reads; longspan's stay in float32 registers. Chunk sizes are
tried on a part of the document first, and the fastest are taken. Both draw the same inputs (their sums are compared), and
the selections of some hundred queries are compared with float64: longspan's sets must be those of float64 wherever the
last chosen and the first dropped score differ by more than rounding; of the peer only the share of equal pools is told.
Turns: longspan, peer, as often as --rounds says; a figure is each side's best. Needs torch.
"""
import argparse
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import torch

HEADS, WIDTH, POOL_TOKENS, TOP = 32, 128, 4, 512
SCALE = WIDTH**-0.5
MARGIN = 1e-5  # of the scores' size: float32 sums of 32 terms
CHUNKS = [(64, 16384), (128, 8192), (128, 16384), (256, 4096), (256, 8192), (512, 4096)]
PROBE_QUERIES = 4096
MINUS_INFINITY = float("-inf")


def draw_inputs(tokens):
    torch.manual_seed(1)
    options = {"device": "cuda", "dtype": torch.bfloat16}
    queries = torch.randn(tokens, HEADS, WIDTH, **options)
    weights = torch.randn(tokens, HEADS, **options)
    keys = torch.randn(tokens // POOL_TOKENS, WIDTH, **options)
    return queries, weights, keys


def head_sum(dots, weights, positions, pool_ids):
    scores = (torch.relu(dots.float()) * weights.float()[:, :, None]).sum(1)
    visible = (positions[:, None] + 1) // POOL_TOKENS
    return torch.where(pool_ids[None, :] < visible, scores, MINUS_INFINITY)


class Peer:
    def __init__(self, queries, weights, keys):
        self.queries, self.weights, self.keys = queries, weights, keys
        self.positions = torch.arange(queries.shape[0], device="cuda")
        self.pool_ids = torch.arange(keys.shape[0], device="cuda")
        self.head_sum = torch.compile(head_sum, dynamic=True)

    def scores(self, begin, end, first, last):
        dots = torch.mm(self.queries[begin:end].view(-1, WIDTH), self.keys[first:last].t())
        return self.head_sum(dots.view(end - begin, HEADS, last - first), self.weights[begin:end],
                             self.positions[begin:end], self.pool_ids[first:last])

    # Selected pools of queries [begin, end); those that see no more than TOP take all and are left out.
    def run(self, begin, end, chunk):
        query_step, pool_step = chunk
        lists = torch.full((end - begin, TOP), -1, device="cuda", dtype=torch.int32)
        for row in range(max(begin, (TOP + 1) * POOL_TOKENS - 1), end, query_step):
            row_end = min(end, row + query_step)
            seen = row_end // POOL_TOKENS
            values = indices = None
            for first in range(0, seen, pool_step):
                last = min(seen, first + pool_step)
                scores = self.scores(row, row_end, first, last)
                best, places = scores.topk(min(TOP, last - first), 1, sorted=False)
                places = places + first
                if values is not None:
                    values = torch.cat([values, best], 1)
                    indices = torch.cat([indices, places], 1)
                    best, order = values.topk(TOP, 1, sorted=False)
                    places = indices.gather(1, order)
                values, indices = best, places
            lists[row - begin:row_end - begin] = indices.to(torch.int32)
        return lists


def seconds_of(run):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    result = run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3, result


def fastest_chunk(peer, tokens):
    times = {}
    begin = max(0, tokens - PROBE_QUERIES)
    for chunk in CHUNKS:
        run = functools.partial(peer.run, begin, tokens, chunk)
        run()
        times[chunk] = seconds_of(run)[0]
        print(f"  peer, chunks of {chunk[0]} queries x {chunk[1]} pools: {times[chunk] * 1e6 / (tokens - begin):.2f} us a query",
              flush=True)
    return min(times, key=times.get)


# Scores of some queries in float64, -infinity where they see nothing.
def exact_scores(queries, weights, keys, rows):
    scores = []
    for row in rows:
        dots = torch.relu(queries[row].double() @ keys.double().t() * SCALE)
        score = weights[row].double() @ dots
        score[(row + 1) // POOL_TOKENS:] = MINUS_INFINITY
        scores.append(score)
    return torch.stack(scores)


# The shares of chosen pools that are those of float64, and how many rows are wrong beyond rounding.
def compare(lists, exact):
    best, chosen = exact.topk(TOP + 1, 1)
    size = best[:, 0]
    wrong, equal = 0, 0
    for row in range(lists.shape[0]):
        found = lists[row].long()
        equal += int(torch.isin(found, chosen[row, :TOP]).sum())
        border = best[row, TOP - 1]
        margin = MARGIN * size[row]
        must = exact[row] > border + margin  # no other choice could be right
        may = exact[row] >= border - margin
        is_chosen = torch.zeros_like(must)
        is_chosen[found] = True
        wrong += int((must & ~is_chosen).any() or (is_chosen & ~may).any() or found.unique().numel() != TOP)
    return equal / lists.numel(), wrong


def run_longspan(binary, tokens, rows, repeats, folder):
    (folder / "rows.txt").write_text("\n".join(map(str, rows)))
    command = [str(binary), "--tokens", str(tokens), "--repeats", str(repeats),
               "--rows", str(folder / "rows.txt"), "--pools", str(folder / "pools.bin")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    pools = torch.frombuffer(bytearray((folder / "pools.bin").read_bytes()), dtype=torch.int32).view(len(rows), TOP)
    return json.loads(output), pools.cuda()


def compare_at(arguments, tokens, folder):
    print(f"{tokens} tokens", flush=True)
    first = (TOP + 1) * POOL_TOKENS - 1
    rows = [first + (tokens - 1 - first) * i // (arguments.rows - 1) for i in range(arguments.rows)]
    own_times, peer_times = [], []
    queries, weights, keys = draw_inputs(tokens)
    sums = [float(x.sum(dtype=torch.float64)) for x in (queries, weights, keys)]
    exact = exact_scores(queries, weights, keys, rows)
    peer = Peer(queries, weights, keys)
    chunk = fastest_chunk(peer, tokens)
    for _ in range(arguments.rounds):
        own, own_pools = run_longspan(arguments.binary, tokens, rows, arguments.repeats, folder)
        own_times += own["seconds"]
        if own["sums"] != sums:
            sys.exit(f"the inputs differ: {own['sums']} and {sums}")
        for _ in range(arguments.repeats):
            seconds, lists = seconds_of(functools.partial(peer.run, 0, tokens, chunk))
            peer_times.append(seconds)
    own_share, own_wrong = compare(own_pools, exact)
    peer_share, peer_wrong = compare(lists[torch.tensor(rows, device="cuda")], exact)
    pairs = sum((t + 1) // POOL_TOKENS for t in range(first, tokens))
    result = {
        "tokens": tokens, "longspan_s": own_times, "peer_s": peer_times, "peer_chunk": chunk,
        "ratio": min(peer_times) / min(own_times), "ratio_of_medians": statistics.median(peer_times) / statistics.median(own_times),
        "longspan_tflops": pairs * 2 * HEADS * WIDTH / min(own_times) / 1e12,
        "longspan_bytes_beyond_warm_up": own["bytes_at_peak_beyond_warm_up"],
        "rows_compared": len(rows), "longspan_equal_share": own_share, "longspan_wrong_rows": own_wrong,
        "peer_equal_share": peer_share, "peer_rows_beyond_rounding": peer_wrong,
    }
    print(f"  longspan {min(own_times):.3f} s, peer {min(peer_times):.3f} s: {result['ratio']:.2f} times the peer's speed; "
          f"{result['longspan_tflops']:.0f} TFLOP/s; wrong rows {own_wrong} of {len(rows)}; pools as in float64: "
          f"longspan {own_share:.5f}, peer {peer_share:.5f}", flush=True)
    if own_wrong:
        sys.exit("longspan selected pools that float64 does not")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, required=True, help="longspan_index_speed")
    parser.add_argument("--tokens", type=int, action="append", help="length of a document; may be repeated")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2, help="timed runs of each side in a round")
    parser.add_argument("--rows", type=int, default=128, help="queries whose selection is compared")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file of the results")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        results = [compare_at(arguments, tokens, pathlib.Path(folder)) for tokens in arguments.tokens or [262144, 1048576]]
    if arguments.out:
        arguments.out.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                                             "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
