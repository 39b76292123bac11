#!/usr/bin/env python3
"""Trains the Llama-3-8B shape on one long document with torch's context parallelism; started by bench/context_lengths.py --peer, or

    python -m torch.distributed.run --standalone --nproc-per-node 2 bench/peer/context_parallel.py --attention flex

Weights, gradients and moments are float32 shards (fully_shard), gathered in bfloat16 layer by layer; gradients are summed in float32,
AdamW is fused. The tokens of the document are spread over the same ranks, and --attention says how:

    flex        FlexAttention on gathered keys and values, rows dealt out by the balancer PTRR; a layer is one compiled graph
    flex-parts  the same, but compiled in three parts, and attention is computed again in backward
    cudnn       ring attention on cuDNN, head and tail of the document for each rank; what lies around attention is compiled
    flash       the same on FlashAttention-2

Layers are checkpointed: they keep their input and, but for flex-parts, what attention gave, which is not computed again. The loss and
random weights are those of the other peers (llama.py); the document is that of context_lengths.py. Rank 0 prints each step and a JSON
line at the end.
"""
import argparse
import dataclasses
import functools
import json
import os
import pathlib
import random
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.experimental._context_parallel import (_context_parallel_shard, _ContextParallel,
                                                                     _enable_context_parallel_dispatcher,
                                                                     _HeadTailLoadBalancer, _PTRRLoadBalancer)
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import llama
from worker import make_optimizer, peak_flops

LLAMA_8B = llama.Shape(layers=32, hidden=4096, intermediate=14336, vocabulary=128256, heads=32, kv_heads=8)
OPTIMIZER = {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}  # as context_lengths.py
ATTENTIONS = ["flex", "flex-parts", "cudnn", "flash"]
SEQUENCE = 2  # dimension of queries, keys and values
KEPT = [torch.ops.higher_order.flex_attention, torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default]


@dataclasses.dataclass(frozen=True)
class Part:
    """A rank's tokens of the document, where the model is."""
    ids: torch.Tensor
    targets: torch.Tensor
    cosines: torch.Tensor
    sines: torch.Tensor
    divisor: torch.Tensor  # what the loss is divided by
    mask: object = None    # a BlockMask of these queries and all keys, for FlexAttention

    @staticmethod
    def make(shape, tokens, attention, mesh):
        """Every token is told its target and position before the balancer shuffles them."""
        device = torch.device(mesh.device_type, int(os.environ["LOCAL_RANK"]) if mesh.device_type == "cuda" else None)
        draw = random.Random(1)
        ids = torch.tensor([int(shape.vocabulary * draw.random()**3) for _ in range(tokens)], device=device)
        targets = ids.roll(-1)
        targets[-1] = llama.NO_TARGET
        buffers = [ids, targets, torch.arange(tokens, device=device)]
        if attention.startswith("flex"):
            mask = torch.compile(create_block_mask)(causal, 1, 1, tokens, tokens, device=mesh.device_type)
            balancer = _PTRRLoadBalancer(mask, mesh.size())
            ids, targets, positions, mask = _context_parallel_shard(mesh, [*buffers, mask], [0, 0, 0, SEQUENCE], balancer)
        else:
            balancer, mask = _HeadTailLoadBalancer(tokens, mesh.size(), device), None
            ids, targets, positions = _context_parallel_shard(mesh, buffers, [0, 0, 0], balancer)
        frequencies = shape.theta ** (-torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float64) / shape.head_dim)
        angles = torch.outer(positions, frequencies)[:, None]
        # fully_shard averages over ranks, so each rank's part is taken that many times.
        divisor = torch.tensor((tokens - 1) / mesh.size(), device=device)
        return Part(ids, targets, angles.cos().to(llama.BF16), angles.sin().to(llama.BF16), divisor, mask)


def causal(_batch, _head, query, key):
    return query >= key


class Attention(torch.nn.Module):
    """What torch's context parallelism takes hold of: its hooks change keys and values on their way in."""

    def __init__(self, attention, compiled):
        super().__init__()
        self.backend = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}.get(attention)
        self.flex = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention

    def forward(self, query, key, value, block_mask=None):
        if self.backend is None:
            return self.flex(query, key, value, block_mask=block_mask, enable_gqa=True)
        with sdpa_kernel(self.backend):
            return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    def parallelize(self, mesh):
        kind = _ContextParallel.AttentionType.FLEX if self.backend is None else _ContextParallel.AttentionType.SDPA
        if self.backend is not None:
            _enable_context_parallel_dispatcher()
        parallelize_module(self, mesh, _ContextParallel(seq_dim=SEQUENCE, attention_type=kind))


def keep_attention(_context, operator, *_arguments, **_options):
    return CheckpointPolicy.MUST_SAVE if operator in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


class Run:
    """How layers are computed: what is compiled, and what is computed again."""

    def __init__(self, shape, attention, mesh, compiled):
        whole = compiled and attention == "flex"
        compile_part = functools.partial(torch.compile, dynamic=False) if compiled and not whole else lambda part: part
        self.shape = shape
        self.before, self.after = compile_part(llama.before_attention), compile_part(llama.after_attention)
        self.attention = Attention(attention, compiled and attention == "flex-parts")
        self.attention.parallelize(mesh)
        kept = {} if attention == "flex-parts" else {
            "context_fn": functools.partial(create_selective_checkpoint_contexts, keep_attention)}
        self.layer = functools.partial(checkpoint, self.once, use_reentrant=False, **kept)
        if whole:
            self.layer = torch.compile(self.layer, dynamic=False)
        compile_end = functools.partial(torch.compile, dynamic=False) if compiled else lambda part: part
        self.final_norm, self.loss_kernel = compile_end(llama.norm), compile_end(llama.loss_and_gradient)

    def once(self, x, weights, part):
        shape = self.shape
        input_norm, post_norm, qkv, o_weight, gate_up, down = weights
        rows = self.before(x, input_norm, qkv, part.cosines, part.sines, shape.heads, shape.kv_heads, shape.head_dim,
                           shape.epsilon)
        q, k, v = (row.transpose(0, 1)[None] for row in rows)
        o = self.attention(q, k, v, block_mask=part.mask) if part.mask is not None else self.attention(q, k, v)
        return self.after(x, o[0].transpose(0, 1), o_weight, post_norm, gate_up, down, shape.epsilon)


class Layer(llama.Layer):
    def forward(self, x, part, run):
        return run.layer(x, (self.input_norm, self.post_norm, self.qkv, self.o, self.gate_up, self.down), part)


class Head(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm = torch.nn.Parameter(torch.empty(shape.hidden))
        self.weight = torch.nn.Parameter(torch.empty(shape.vocabulary, shape.hidden))

    def forward(self, x, part, run):
        return llama.HeadLoss.apply(run.final_norm(x, self.norm, run.shape.epsilon), self.weight, part, run.loss_kernel)


class Llama(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embedding = torch.nn.Parameter(torch.empty(shape.vocabulary, shape.hidden))
        self.layers = torch.nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.head = Head(shape)

    def forward(self, part, run):
        x = F.embedding(part.ids, self.embedding)
        for layer in self.layers:
            x = layer(x, part, run)
        return self.head(x, part, run)


def sharded_model(shape, mesh, device):
    """With random weights that do not depend on the number of ranks."""
    with torch.device("meta"):
        model = Llama(shape)
    policy = MixedPrecisionPolicy(param_dtype=llama.BF16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in [*model.layers, model.head, model]:
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=module is not model.head)
    model.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            whole = torch.ones(parameter.shape, device=device)
            if parameter.dim() > 1:
                whole.normal_(0, 0.02, generator=generator)
            own = distribute_tensor(whole, mesh, parameter.placements, src_data_rank=None)
            parameter.to_local().copy_(own.to_local())
    return model


def step_flops(shape, tokens):
    """As longspan counts them (src/spec/flops.h)."""
    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = shape.hidden * (2 * width + 2 * kv_width + 3 * shape.intermediate)
    pairs = tokens * (tokens + 1) // 2
    return 6 * (shape.layers * layer + shape.vocabulary * shape.hidden) * tokens + 12 * pairs * width * shape.layers


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def train(arguments, shape, mesh, device, say):
    started = time.monotonic()
    part = Part.make(shape, arguments.tokens, arguments.attention, mesh)
    run = Run(shape, arguments.attention, mesh, not arguments.no_compile)
    synchronize(device)
    say(f"tokens shared out after {time.monotonic() - started:.1f} s")
    if device.type == "cuda":
        torch.cuda.empty_cache()
    model = sharded_model(shape, mesh, device)
    optimizer = make_optimizer(model, OPTIMIZER)
    synchronize(device)
    say(f"model ready after {time.monotonic() - started:.1f} s")
    seconds, losses, norms = [], [], []
    for step in range(arguments.warm_up + arguments.steps):
        dist.barrier()
        start = time.monotonic()
        loss = model(part, run)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER["clip"], foreach=True).full_tensor()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / mesh.size())
        norms.append(norm.item())
        synchronize(device)
        seconds.append(time.monotonic() - start)
        held = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0
        say(f"step {step}: {seconds[-1]:.3f} s, loss {losses[-1]:.6f}, gradient norm {norms[-1]:.5f}, peak {held:.1f} GiB")
    return {"all_step_s": seconds, "losses": losses, "gradient_norms": norms}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", choices=ATTENTIONS, default="flex")
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--steps", type=int, default=2, help="counted steps")
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--float32", action="store_true", help="all in float32, for comparisons")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file of the result")
    for field in dataclasses.fields(llama.Shape):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=field.type, default=getattr(LLAMA_8B, field.name))
    arguments = parser.parse_args()
    shape = llama.Shape(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(llama.Shape)})
    if arguments.float32:
        llama.BF16 = torch.float32
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    mesh = init_device_mesh(device.type, (world,), mesh_dim_names=("sequence",))
    say = functools.partial(print, flush=True) if rank == 0 else lambda _: None
    peak = peak_flops() if on_gpu else None
    result = train(arguments, shape, mesh, device, say)
    step_s = sum(result["all_step_s"][arguments.warm_up:]) / arguments.steps
    result = {"attention": arguments.attention, "length": arguments.tokens, "documents": 1, "step_s": step_s,
              "tokens_per_s": arguments.tokens / step_s,
              "mfu_percent": 100 * step_flops(shape, arguments.tokens) / step_s / (peak * world) if peak else None,
              "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None, **result, "peak_flops": peak,
              "gpu": torch.cuda.get_device_name() if on_gpu else None, "torch": torch.__version__}
    say(json.dumps(result))
    if arguments.out and rank == 0:
        arguments.out.write_text(json.dumps(result) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
