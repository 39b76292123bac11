#!/usr/bin/env python3
"""Index scoring with top-k of one long document: longspan beside a PyTorch scorer on the same GPU.

    bench/compare_index.py --binary build/cuda/longspan_index_speed --tokens 262144 --tokens 1048576 --out index.json

The shape is the released one: 32 heads of width 128, pools of 4 tokens, 512 pools chosen. The peer goes over chunks of
queries and of pools: a bfloat16 matrix product by cuBLAS, then one compiled kernel (torch.compile) for relu, the weighted
sum over heads and the causal mask, then torch.topk, either of each chunk and merged into a running list or once of all
scores of a chunk of queries; chunks that no query sees are left out.
Its products are bfloat16, which halves what it writes and reads; longspan's stay in float32 registers. Chunk sizes and
both ways are tried on a part of the document first, and the fastest are taken. Both draw the same inputs (their sums are compared), and
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
# Queries, pools, and whether all scores of the queries are kept for one topk.
CHUNKS = [(queries, pools, whole) for queries, pools in [(256, 16384), (512, 16384), (1024, 8192)] for whole in [False, True]]
PROBE_QUERIES = 4096
KEPT_CHUNKS = 2  # for the next document
MINUS_INFINITY = float("-inf")


def draw_inputs(tokens):
    torch.manual_seed(1)
    options = {"device": "cuda", "dtype": torch.bfloat16}
    queries = torch.randn(tokens, HEADS, WIDTH, **options)
    weights = torch.randn(tokens, HEADS, **options)
    keys = torch.randn(tokens // POOL_TOKENS, WIDTH, **options)
    return queries, weights, keys


def head_sum(dots, weights, positions, pool_ids, scores):
    sums = (torch.relu(dots.float()) * weights.float()[:, :, None]).sum(1)
    visible = (positions[:, None] + 1) // POOL_TOKENS
    scores.copy_(torch.where(pool_ids[None, :] < visible, sums, MINUS_INFINITY))


class Peer:
    def __init__(self, queries, weights, keys):
        self.queries, self.weights, self.keys = queries, weights, keys
        self.positions = torch.arange(queries.shape[0], device="cuda")
        self.pool_ids = torch.arange(keys.shape[0], device="cuda")
        self.head_sum = torch.compile(head_sum, dynamic=False)

    # Selected pools of the queries from `begin` on; those that see no more than TOP take all and may come out odd.
    def run(self, begin, chunk):
        query_step, pool_step, whole = chunk
        tokens, pools = self.queries.shape[0], self.keys.shape[0]
        lists = torch.full((tokens - begin, TOP), -1, device="cuda", dtype=torch.int32)
        dots = torch.empty(query_step * HEADS, pool_step, device="cuda", dtype=torch.bfloat16)
        scores = torch.empty(query_step, pools if whole else pool_step, device="cuda")
        first_row = max(begin, (TOP + 1) * POOL_TOKENS - 1) // query_step * query_step
        for row in range(max(begin, first_row), tokens, query_step):
            rows = slice(row, row + query_step)
            best = None
            ends = range(pool_step, (row + query_step) // POOL_TOKENS + pool_step, pool_step)
            for end in ends:
                of_pools = slice(end - pool_step, end)
                torch.mm(self.queries[rows].view(-1, WIDTH), self.keys[of_pools].t(), out=dots)
                part = scores[:, of_pools] if whole else scores
                self.head_sum(dots.view(query_step, HEADS, pool_step), self.weights[rows], self.positions[rows],
                              self.pool_ids[of_pools], part)
                if not whole:
                    best = self.merged(best, part, end - pool_step)
            chosen = scores[:, :ends[-1]].topk(TOP, 1, sorted=False)[1] if whole else best[1]
            lists[row - begin:row - begin + query_step] = chosen.to(torch.int32)
        return lists

    @staticmethod
    def merged(best, scores, first_pool):
        values, places = scores.topk(TOP, 1, sorted=False)
        places = places + first_pool
        if best is None:
            return values, places
        values = torch.cat([best[0], values], 1)
        places = torch.cat([best[1], places], 1)
        values, order = values.topk(TOP, 1, sorted=False)
        return values, places.gather(1, order)


def seconds_of(run):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    result = run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3, result


def chunk_text(chunk):
    return f"{chunk[0]} queries x {chunk[1]} pools, {'one topk' if chunk[2] else 'running topk'}"


# The chunks from fast to slow, of those given.
def ranked_chunks(peer, chunks):
    tokens = peer.queries.shape[0]
    begin = max(0, tokens - PROBE_QUERIES)
    times = {}
    for chunk in chunks:
        run = functools.partial(peer.run, begin, chunk)
        run()
        times[chunk] = min(seconds_of(run)[0] for _ in range(2))
        print(f"  peer, chunks of {chunk_text(chunk)}: {times[chunk] * 1e6 / (tokens - begin):.2f} us a query", flush=True)
    return sorted(chunks, key=times.get)


def print_profile(run):
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as measured:
        run()
        torch.cuda.synchronize()
    kernels = sorted(measured.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    total = sum(kernel.self_device_time_total for kernel in kernels)
    for kernel in kernels[:6]:
        share = kernel.self_device_time_total / total
        print(f"    {100 * share:4.1f} % {kernel.count:6d} x {kernel.self_device_time_total / kernel.count:8.1f} us  {kernel.key[:90]}")


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


def compare_at(arguments, tokens, chunks, folder):
    print(f"{tokens} tokens", flush=True)
    first = (TOP + 1) * POOL_TOKENS - 1
    rows = [first + (tokens - 1 - first) * i // (arguments.rows - 1) for i in range(arguments.rows)]
    own_times, peer_times = [], []
    queries, weights, keys = draw_inputs(tokens)
    sums = [float(x.sum(dtype=torch.float64)) for x in (queries, weights, keys)]
    exact = exact_scores(queries, weights, keys, rows)
    peer = Peer(queries, weights, keys)
    chunks = ranked_chunks(peer, chunks)
    chunk = chunks[0]
    if arguments.profile:
        print_profile(functools.partial(peer.run, max(0, tokens - PROBE_QUERIES), chunk))
    for _ in range(arguments.rounds):
        own, own_pools = run_longspan(arguments.binary, tokens, rows, arguments.repeats, folder)
        own_times += own["seconds"]
        if own["sums"] != sums:
            sys.exit(f"the inputs differ: {own['sums']} and {sums}")
        for _ in range(arguments.repeats):
            seconds, lists = seconds_of(functools.partial(peer.run, 0, chunk))
            peer_times.append(seconds)
    own_share, own_wrong = compare(own_pools, exact)
    peer_share, peer_wrong = compare(lists[torch.tensor(rows, device="cuda")], exact)
    pairs = sum((t + 1) // POOL_TOKENS for t in range(first, tokens))
    result = {
        "tokens": tokens, "longspan_s": own_times, "peer_s": peer_times, "peer_chunk": chunk_text(chunk),
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
    return result, chunks[:KEPT_CHUNKS]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, required=True, help="longspan_index_speed")
    parser.add_argument("--tokens", type=int, action="append", help="length of a document; may be repeated")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2, help="timed runs of each side in a round")
    parser.add_argument("--rows", type=int, default=128, help="queries whose selection is compared")
    parser.add_argument("--profile", action="store_true", help="where the peer's time goes")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file of the results")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    results, chunks = [], CHUNKS
    with tempfile.TemporaryDirectory() as folder:
        for tokens in arguments.tokens or [262144, 1048576]:
            result, chunks = compare_at(arguments, tokens, chunks, pathlib.Path(folder))
            results.append(result)
    if arguments.out:
        arguments.out.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                                             "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
