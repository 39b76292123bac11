"""A llama in plain PyTorch, trained as a careful user would: the peer of bench/compare_gpu.py.

Master weights, moments and gradients are float32 with fused AdamW; products and activations are bfloat16. torch.compile
makes one graph of everything before a layer's attention and one of everything after it. The loss goes through the
vocabulary in chunks and computes its gradient on the way, so that no logits are kept or made twice. Attention is one of
ATTENTION: FlashAttention-2 on packed documents ("varlen"), or cuDNN's dense kernel where documents are equal ("dense").
"""
import dataclasses
import json

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint

BF16 = torch.bfloat16
LOSS_CHUNK_TOKENS = 8192
NO_TARGET = -100


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int = 16
    hidden: int = 2048
    intermediate: int = 8192
    vocabulary: int = 32768
    heads: int = 16
    kv_heads: int = 4
    head_dim: int = 128
    theta: float = 500000.0
    epsilon: float = 1e-5

    def config(self):
        return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": self.vocabulary,
                "hidden_size": self.hidden, "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
                "max_position_embeddings": 1 << 20, "rms_norm_eps": self.epsilon, "rope_theta": self.theta,
                "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16"}


@dataclasses.dataclass(frozen=True)
class Documents:
    """One micro-batch, where the model is."""
    length: int  # of the longest
    ids: torch.Tensor
    targets: torch.Tensor
    cosines: torch.Tensor
    sines: torch.Tensor
    ends: torch.Tensor
    predicted: float
    divisor: torch.Tensor  # the same as a tensor: a compiled function would be compiled again for each number

    @staticmethod
    def make(shape, documents, device, predicted=None):
        """`predicted`: what the loss is divided by, if not the tokens that predict one here."""
        lengths = torch.tensor([len(document) for document in documents])
        ids = torch.tensor([token for document in documents for token in document], device=device)
        ends = F.pad(lengths.cumsum(0), (1, 0)).to(device, torch.int32)
        targets = ids.roll(-1)
        targets[ends[1:].long() - 1] = NO_TARGET
        positions = torch.cat([torch.arange(length, device=device) for length in lengths.tolist()])
        frequencies = shape.theta ** (-torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float64) / shape.head_dim)
        angles = torch.outer(positions, frequencies)[:, None]
        predicted = predicted or ids.numel() - len(documents)
        return Documents(int(lengths.max()), ids, targets, angles.cos().to(BF16), angles.sin().to(BF16), ends, predicted,
                         torch.tensor(float(predicted), device=device))


def varlen(q, k, v, documents):
    return varlen_attn(q, k, v, documents.ends, documents.ends, documents.length, documents.length, window_size=(-1, 0))


def dense(q, k, v, documents):
    """For documents of one length."""
    q, k, v = (rows.view(-1, documents.length, *rows.shape[1:]).transpose(1, 2) for rows in (q, k, v))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return o.transpose(1, 2).reshape(-1, *q.shape[1:2], q.shape[3])


ATTENTION = {"varlen": varlen, "dense": dense}


def linear(x, weight):
    return F.linear(x, weight.to(BF16))


def norm(x, weight, epsilon):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon) * weight).to(BF16)


def rotate(x, cosines, sines):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), -1)


def before_attention(x, norm_weight, qkv_weight, cosines, sines, heads, kv_heads, head_dim, epsilon):
    qkv = linear(norm(x, norm_weight, epsilon), qkv_weight).view(x.shape[0], heads + 2 * kv_heads, head_dim)
    q, k, v = qkv.split((heads, kv_heads, kv_heads), 1)
    return rotate(q, cosines, sines), rotate(k, cosines, sines), v


def after_attention(x, o, o_weight, norm_weight, gate_up_weight, down_weight, epsilon):
    x = x + linear(o.flatten(1), o_weight)
    gate, up = linear(norm(x, norm_weight, epsilon), gate_up_weight).chunk(2, -1)
    return x + linear(F.silu(gate) * up, down_weight)


def loss_and_gradient(logits, targets, divisor):
    wide = logits.float()
    log_sums = wide.logsumexp(-1)
    counted = targets != NO_TARGET
    index = torch.where(counted, targets, 0)
    losses = torch.where(counted, log_sums - wide.gather(1, index[:, None])[:, 0], 0.0)
    hot = torch.arange(logits.shape[1], device=logits.device)[None] == index[:, None]
    gradient = ((wide - log_sums[:, None]).exp() - hot.float()) * (counted.float() / divisor)[:, None]
    return losses.sum() / divisor, gradient.to(BF16)


def add_product(total, a, b):
    """To a float32 total, with no product of its own in memory where the device can do without."""
    if total.is_cuda and a.dtype != torch.float32:
        torch.ops.aten.addmm.dtype_out(total, a, b, torch.float32, out=total)
    else:
        total += a.float() @ b.float()


class HeadLoss(torch.autograd.Function):
    """Mean loss; the gradients are made in the forward, chunk by chunk."""

    @staticmethod
    def forward(context, x, weight, documents, loss_kernel):
        rounded = weight.to(BF16)
        dx = torch.empty_like(x)
        dweight = torch.zeros_like(weight, dtype=torch.float32)
        loss = torch.zeros((), device=x.device)
        for rows in torch.arange(x.shape[0]).split(LOSS_CHUNK_TOKENS):
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            chunk_loss, dlogits = loss_kernel(x[part] @ rounded.t(), documents.targets[part], documents.divisor)
            loss += chunk_loss
            torch.mm(dlogits, rounded, out=dx[part])
            add_product(dweight, dlogits.t(), x[part])
        context.save_for_backward(dx, dweight)
        return loss

    @staticmethod
    def backward(context, gradient):
        dx, dweight = context.saved_tensors
        return dx * gradient.to(BF16), dweight.mul_(gradient), None, None


class Layer(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        make = lambda *size: torch.nn.Parameter(torch.empty(size))
        self.input_norm, self.post_norm = make(shape.hidden), make(shape.hidden)
        self.qkv = make(width + 2 * kv_width, shape.hidden)
        self.o = make(shape.hidden, width)
        self.gate_up = make(2 * shape.intermediate, shape.hidden)
        self.down = make(shape.hidden, shape.intermediate)


class Llama(torch.nn.Module):
    def __init__(self, shape, recompute=False):
        super().__init__()
        self.shape, self.recompute = shape, recompute
        self.embedding = torch.nn.Parameter(torch.empty(shape.vocabulary, shape.hidden))
        self.layers = torch.nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = torch.nn.Parameter(torch.empty(shape.hidden))
        self.head = torch.nn.Parameter(torch.empty(shape.vocabulary, shape.hidden))
        compiled = lambda function: torch.compile(function, dynamic=False)
        self.before, self.after = compiled(before_attention), compiled(after_attention)
        self.final_norm, self.loss_kernel = compiled(norm), compiled(loss_and_gradient)

    def layer(self, x, layer, documents, attention):
        shape = self.shape
        q, k, v = self.before(x, layer.input_norm, layer.qkv, documents.cosines, documents.sines, shape.heads,
                              shape.kv_heads, shape.head_dim, shape.epsilon)
        o = attention(q, k, v, documents)
        return self.after(x, o, layer.o, layer.post_norm, layer.gate_up, layer.down, shape.epsilon)

    def forward(self, documents, attention):
        x = F.embedding(documents.ids, self.embedding).to(BF16)
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(self.layer, x, layer, documents, attention, use_reentrant=False)
            else:
                x = self.layer(x, layer, documents, attention)
        return HeadLoss.apply(self.final_norm(x, self.norm, self.shape.epsilon), self.head, documents, self.loss_kernel)


def random_weights(model, seed):
    """Weights that bfloat16 holds exactly, so that a file of them in bfloat16 is the same model."""
    generator = torch.Generator(model.embedding.device).manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1)
            else:
                parameter.normal_(0, 0.02, generator=generator)
                parameter.copy_(parameter.to(BF16))


def save_pretrained(model, folder):
    """The model as a Hugging Face folder."""
    shape = model.shape
    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    tensors = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.norm, "lm_head.weight": model.head}
    for index, layer in enumerate(model.layers):
        q, k, v = layer.qkv.split((width, kv_width, kv_width))
        gate, up = layer.gate_up.chunk(2)
        named = {"input_layernorm": layer.input_norm, "post_attention_layernorm": layer.post_norm, "self_attn.q_proj": q,
                 "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": layer.o, "mlp.gate_proj": gate,
                 "mlp.up_proj": up, "mlp.down_proj": layer.down}
        tensors |= {f"model.layers.{index}.{name}.weight": tensor for name, tensor in named.items()}
    folder.mkdir()
    save_file({name: tensor.detach().to(BF16).cpu().contiguous() for name, tensor in tensors.items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(shape.config()))
