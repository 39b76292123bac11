#!/usr/bin/env python3
"""Linear attention (KDA): longspan's kernels beside the torch code of transformers, on one GPU.

    bench/compare_kda.py --binary build/cuda/longspan_kda_speed --out bench/results/compare_kda.json

Both do the same: short convolution with SiLU, unit rows of q and k, and the chunked delta rule of
one document, forward and backward, in bfloat16 with float32 decays and states. transformers' own
functions are causal_conv1d_fn and chunk_kimi_delta_attention of its glm5_next model, as they run
where no other kernels are installed.

First both get the same inputs, and outputs and all gradients are compared, with each other and with
transformers' functions in float64 (on some heads). Then both are timed. The torch code keeps [64,
width] values for each token and head, many times over; where the memory does not hold all heads, it
runs on groups of them, one after the other, and the times add up: what it would take if it could.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch

WIDTH = 128
TAPS = 4
NAMES = ["o", "d_qkv", "d_g", "d_beta", "d_weight"]


def torch_functions():
    """The functions in plain torch, whatever kernels are installed."""
    import transformers
    from transformers.models.glm5_next import modeling_glm5_next as module

    def plain(function):
        return getattr(function, "__wrapped__", function)

    return transformers.__version__, plain(module.causal_conv1d_fn), plain(
        module.chunk_kimi_delta_attention)


def make_inputs(tokens, heads, seed):
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device="cuda")

    return {
        "qkv": normal(tokens, 3, heads, WIDTH).bfloat16(),
        "g": -5 * torch.sigmoid(normal(tokens, heads, WIDTH) - 2),
        "beta": torch.sigmoid(normal(tokens, heads)).bfloat16(),
        "weight": normal(3, heads, TAPS, WIDTH).bfloat16(),
        "d_o": normal(tokens, heads, WIDTH).bfloat16(),
    }


class Peer:
    """Forward and backward of transformers' functions on some heads."""

    def __init__(self, inputs, heads, functions, wide=False):
        self.convolve, self.attend = functions
        part = {name: values[..., heads, :] if name in ("qkv", "g", "d_o") else
                values[:, heads] for name, values in inputs.items()}
        tokens, count = part["beta"].shape
        exact = (lambda x: x.double()) if wide else (lambda x: x)
        # [batch, channels, tokens] and [channels, taps], as the model has them.
        self.qkv = exact(part["qkv"]).reshape(1, tokens, -1).transpose(1, 2).detach()
        weight = part["weight"].float().transpose(2, 3).reshape(-1, TAPS).contiguous()
        self.weight = exact(weight).detach()
        self.g = exact(part["g"])[None].contiguous().detach()
        self.beta = exact(part["beta"])[None].contiguous().detach()
        self.d_o = exact(part["d_o"])[None].contiguous()
        self.leaves = [self.qkv, self.g, self.beta, self.weight]
        for leaf in self.leaves:
            leaf.requires_grad_(True)
        self.shape = (1, tokens, count, WIDTH)

    def forward(self):
        mixed = self.convolve(self.qkv, self.weight, None, "silu").transpose(1, 2)
        q, k, v = (x.reshape(self.shape) for x in mixed.split(mixed.shape[-1] // 3, dim=-1))
        return self.attend(q, k, v, g=self.g, beta=self.beta, use_qk_l2norm_in_kernel=True)[0]

    def step(self):
        return torch.autograd.grad(self.forward(), self.leaves, self.d_o)

    def results(self):
        """In the layout of the binary's files."""
        o = self.forward()
        d_qkv, d_g, d_beta, d_weight = torch.autograd.grad(o, self.leaves, self.d_o)
        _, tokens, count, width = self.shape
        return {
            "o": o[0].detach(),
            "d_qkv": d_qkv.transpose(1, 2).reshape(tokens, 3, count, width),
            "d_g": d_g[0],
            "d_beta": d_beta[0],
            "d_weight": d_weight.reshape(3, count, width, TAPS).transpose(2, 3),
        }


def events_ms(work):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def time_groups(inputs, heads, at_once, functions, repeats, most_groups):
    """Milliseconds of forward and of forward with backward over all heads, some at a time. Groups are alike: beyond the first
    few the mean of those counts."""

    def median(work):
        return sorted(events_ms(work) for _ in range(repeats))[repeats // 2]

    forward = step = 0.0
    groups = range(0, heads, at_once)[:most_groups]
    for first in groups:
        peer = Peer(inputs, slice(first, first + at_once), functions)
        if first == 0:
            peer.step()  # warm
        with torch.no_grad():
            forward += median(peer.forward)
        step += median(peer.step)
    scale = heads / at_once / len(groups)
    return {"forward_ms": scale * forward, "ms": scale * step, "heads_at_once": at_once,
            "groups_timed": len(groups)}


def time_peer(inputs, heads, functions, repeats, most_groups):
    """The fastest of the two largest groups of heads that the memory holds."""
    tokens = inputs["beta"].shape[0]
    free, _ = torch.cuda.mem_get_info()
    # About a dozen tensors of [64, width] float32 for each token and head live at once.
    at_once = heads
    while at_once > 1 and at_once * tokens * 64 * WIDTH * 4 * 12 > free:
        at_once //= 2
    found = []
    while at_once >= 1 and len(found) < 2:
        try:
            found.append(time_groups(inputs, heads, at_once, functions, repeats,
                                     most_groups))
        except torch.cuda.OutOfMemoryError:
            pass
        torch.cuda.empty_cache()
        at_once //= 2
    if not found:
        sys.exit(f"no group of heads of {tokens} tokens fits into the memory")
    return min(found, key=lambda times: times["ms"])


def run_binary(binary, arguments):
    done = subprocess.run([str(binary), *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{binary} failed ({done.returncode}): {done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def error(value, expected):
    value, expected = value.double(), expected.double()
    return ((value - expected).norm() / expected.norm()).item()


def compare(binary, tokens, heads, functions):
    """Errors against float64 of both, on two heads, and between both, on all."""
    inputs = make_inputs(tokens, heads, 1)
    with tempfile.TemporaryDirectory() as folder:
        for name, values in inputs.items():
            values.cpu().contiguous().view(torch.uint8).numpy().tofile(f"{folder}/{name}")
        run_binary(binary, ["--tokens", str(tokens), "--heads", str(heads), "--repeats", "1",
                            "--folder", folder])
        shapes = {"o": inputs["d_o"], "d_qkv": inputs["qkv"], "d_g": inputs["g"],
                  "d_beta": inputs["beta"], "d_weight": inputs["weight"].float()}
        ours = {}
        for name, like in shapes.items():
            values = torch.from_file(f"{folder}/{name}", size=like.numel(), dtype=like.dtype)
            ours[name] = values.view(like.shape).cuda()
    some = slice(0, 2)

    def heads_of(values, name, heads):
        return values[:, heads] if name in ("d_beta", "d_weight") else values[..., heads, :]

    exact = Exact(inputs, some, functions).results()
    rows = []
    theirs = {name: [] for name in NAMES}
    for first in range(0, heads, 8):
        part = Peer(inputs, slice(first, first + 8), functions).results()
        for name in NAMES:
            theirs[name].append(part[name].detach())
        torch.cuda.empty_cache()
    for name in NAMES:
        dimension = 1 if name in ("d_beta", "d_weight") else theirs[name][0].dim() - 2
        joined = torch.cat(theirs[name], dim=dimension)
        rows.append({
            "name": name,
            "longspan": error(heads_of(ours[name], name, some), exact[name]),
            "transformers": error(heads_of(joined, name, some), exact[name]),
            "between": error(ours[name], joined),
        })
    return rows


class Exact:
    """The same in float64: the recurrence's chunked form with transformers' casts lifted."""

    def __init__(self, inputs, heads, functions):
        self.peer = Peer(inputs, heads, functions, wide=True)

    def results(self):
        kept = torch.Tensor.to, torch.Tensor.float
        torch.Tensor.to = lambda x, *a, **k: x if a and a[0] in (torch.float32,) else kept[0](
            x, *a, **k)
        torch.Tensor.float = lambda x, *a, **k: x
        try:
            return self.peer.results()
        finally:
            torch.Tensor.to, torch.Tensor.float = kept


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--case", nargs="+", default=["8192x64", "32768x64"],
                        help="tokens x heads")
    parser.add_argument("--compare-tokens", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3, help="of transformers' functions")
    parser.add_argument("--groups", type=int, default=64,
                        help="of heads, timed of transformers' functions where the memory does not hold all heads")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    version, *functions = torch_functions()
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
              "transformers": version, "width": WIDTH, "times": []}
    report["errors"] = compare(options.binary, options.compare_tokens, 64, functions)
    print(f"errors at {options.compare_tokens} tokens (float64 of transformers is the truth)")
    for row in report["errors"]:
        print(f"  {row['name']:9} longspan {row['longspan']:.1e}  transformers "
              f"{row['transformers']:.1e}  between {row['between']:.1e}", flush=True)
    for case in options.case:
        tokens, heads = (int(number) for number in case.split("x"))
        torch.cuda.empty_cache()
        ours = run_binary(options.binary, ["--tokens", str(tokens), "--heads", str(heads)])
        theirs = time_peer(make_inputs(tokens, heads, 2), heads, functions, options.repeats,
                           options.groups)
        ratio = theirs["ms"] / ours["ms"]
        report["times"].append({"tokens": tokens, "heads": heads, "longspan": ours,
                                "transformers": theirs, "ratio": ratio})
        print(f"{tokens} tokens, {heads} heads: longspan forward {ours['forward_ms']:.2f} ms, "
              f"backward {ours['backward_ms']:.2f}, both {ours['ms']:.2f} "
              f"({ours['peak_gib']:.1f} GiB); transformers forward {theirs['forward_ms']:.1f}, "
              f"both {theirs['ms']:.1f} ({theirs['heads_at_once']} heads at once, "
              f"{theirs['groups_timed']} groups timed): "
              f"{ratio:.1f}x", flush=True)
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    bad = [row["name"] for row in report["errors"]
           if row["longspan"] > max(2 * row["transformers"], 2e-2)]
    if bad:
        sys.exit(f"gradients or outputs are wrong: {', '.join(bad)}")


if __name__ == "__main__":
    main()
