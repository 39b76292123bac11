"""Tiny random models of Hugging Face transformers, and what they compute: the oracle of the equality tests.

In float64 the float32 casts inside transformers (RMS norm, rotary embedding, eager softmax) are lifted; rotary angles stay
float32 products of float32 inverse frequencies and positions, as transformers forms them, in both types.
"""

import contextlib

import torch
import torch.nn.functional as functional
import transformers
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

SIZES = dict(vocab_size=97, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, max_position_embeddings=2048, rms_norm_eps=1e-5,
             pad_token_id=None, bos_token_id=1, eos_token_id=2, attn_implementation="eager",
             initializer_range=0.2)


def make_config(family, **changes):
    config_class = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[family]
    return config_class(**{**SIZES, **changes})


def make_model(config, seed, dtype):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32)
    with torch.no_grad():  # norm weights of exactly one would hide a missing factor
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model.to(dtype)


@contextlib.contextmanager
def float64_inside(enabled):
    """Lifts transformers' internal float32 casts while the context is open."""
    if not enabled:
        yield
        return
    softmax = functional.softmax

    def norm_forward(self, hidden):
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden * torch.rsqrt(variance + self.variance_epsilon))

    def rotary_forward(self, x, position_ids):
        angles = (self.inv_freq[None, :, None].float() @ position_ids[:, None, :].float()).transpose(1, 2)
        angles = torch.cat((angles, angles), dim=-1).double()
        return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling

    def wide_softmax(x, dim=None, _stacklevel=3, dtype=None):
        return softmax(x, dim=dim, dtype=x.dtype if x.dtype == torch.float64 else dtype)

    classes = [(modeling_llama.LlamaRMSNorm, norm_forward), (modeling_qwen3.Qwen3RMSNorm, norm_forward),
               (modeling_llama.LlamaRotaryEmbedding, rotary_forward),
               (modeling_qwen3.Qwen3RotaryEmbedding, rotary_forward)]
    originals = [cls.forward for cls, _ in classes]
    for cls, replacement in classes:
        cls.forward = replacement
    functional.softmax = wide_softmax
    try:
        yield
    finally:
        functional.softmax = softmax
        for (cls, _), original in zip(classes, originals):
            cls.forward = original


def keep_float32_frequencies(model):
    """Model.to(float64) must not touch the inverse frequencies: both sides round them to float32."""
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            module.inv_freq = module.inv_freq.float()
            module.original_inv_freq = module.inv_freq


def documents_loss_and_gradients(model, documents):
    """(logits of all tokens in a row, sum of token losses, gradient by name), document after document."""
    model.zero_grad()
    wide = next(model.parameters()).dtype == torch.float64
    all_logits, total = [], 0.0
    with float64_inside(wide):
        for document in documents:
            tokens = torch.tensor([document])
            logits = model(input_ids=tokens, use_cache=False).logits[0]
            all_logits.append(logits.detach())
            if len(document) > 1:
                loss = functional.cross_entropy(logits[:-1], tokens[0, 1:], reduction="sum")
                loss.backward()
                total += loss.item()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return torch.cat(all_logits), total, gradients


def relative_error(value, reference):
    difference = (value.double() - reference.double()).norm().item()
    return difference / max(reference.double().norm().item(), 1e-300)
