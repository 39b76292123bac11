"""Tiny random hybrid models of Hugging Face transformers (glm5_next, kimi_linear), and what they compute: logits, loss, every
gradient under its name on disk, the pools that queries select and the experts that tokens choose, with the margin of each choice.

    model = make_model("glm5_next", seed=1, num_hidden_layers=5)
    save(model, folder)                                   # fp32 weights and config.json as transformers writes them
    found = run_documents(model, documents, torch.float64)

Every document runs alone, which is what packed documents mean. In float64 the float32 casts inside transformers are lifted:
while a document runs, every torch call that names float32 gets float64, and a result in float32 is an error. Weights are the
saved float32 values in both types.

Choices are made here by a stable sort, higher score first, then lower index: transformers leaves ties to the platform. They may
also be given (`choices`), so that two programs whose scores differ by rounding can be compared behind the same choices.
"""

import contextlib
import dataclasses
import math
import zlib

import torch
import torch.nn.functional as functional
import transformers
from torch.overrides import TorchFunctionMode

GLM = dict(vocab_size=97, hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=5,
           num_attention_heads=2, num_key_value_heads=2, q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=12, v_head_dim=8,
           index_n_heads=8, index_head_dim=12, index_topk=32, index_kpool=4, n_routed_experts=6, num_experts_per_tok=2,
           linear_num_heads=2, linear_head_dim=16, swiglu_limit=1.5, hc_mult=4, hc_sinkhorn_iters=20, rms_norm_eps=1e-5,
           num_dense_layers=1, pad_token_id=None, bos_token_id=None, eos_token_id=None)
KIMI = dict(vocab_size=97, hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=5,
            num_attention_heads=2, num_key_value_heads=2, q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=12,
            qk_rope_head_dim=4, v_head_dim=8, num_local_experts=6, num_experts_per_tok=2, linear_num_heads=2,
            linear_head_dim=16, rms_norm_eps=1e-5, num_dense_layers=1, pad_token_id=None, bos_token_id=None,
            eos_token_id=None)
VISION = dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=16, projection_intermediate_size=16, image_size=28,
              patch_size=14)

# Standard deviations of tensors whose usual beginning (zeros, small numbers) would hide mistakes.
SPREAD = {"A_log": 0.3, "bias": 0.3, "e_score_correction_bias": 0.1, "base": 0.5, "embed_tokens": 1.0, "conv1d": 0.5,
          "index_kpool_compress_ape": 1.0}
GAIN = {"lm_head": 2.0, "gate": 1.5}  # of matrices, over 1 / sqrt(inputs)


def make_config(family, **changes):
    sizes = {**(GLM if family == "glm5_next" else KIMI), **changes}
    layers, dense = sizes["num_hidden_layers"], sizes.pop("num_dense_layers")
    sizes["mlp_layer_types"] = ["dense"] * dense + ["sparse"] * (layers - dense)
    if family == "kimi_linear":
        sizes.setdefault("layer_types", ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)])
        return transformers.KimiLinearConfig(**sizes)
    return transformers.Glm5NextConfig(text_config=sizes, vision_config={**VISION, "out_hidden_size": sizes["hidden_size"]})


def random_value(name, shape, seed):
    """Depends on name and seed only."""
    generator = torch.Generator().manual_seed((seed << 32) ^ zlib.crc32(name.encode()))
    normal = torch.randn(shape, generator=generator)
    leaf = name.removesuffix(".weight").rsplit(".", 1)[-1]
    if leaf == "dt_bias":
        step = torch.exp(torch.rand(shape, generator=generator) * math.log(100.0) + math.log(1e-3))
        return step + torch.log(-torch.expm1(-step))
    if leaf in SPREAD:
        return SPREAD[leaf] * normal
    if len(shape) == 1:  # norms and the scales of the stream maps
        return 1.0 + 0.2 * normal
    return GAIN.get(leaf, 1.0) * normal / math.sqrt(shape[-1])


def make_model(family, seed, **changes):
    config = make_config(family, **changes)
    model_class = (transformers.KimiLinearForCausalLM if family == "kimi_linear"
                   else transformers.Glm5NextForConditionalGeneration)
    model = model_class._from_config(config, attn_implementation="eager", experts_implementation="eager")
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point() and "inv_freq" not in name:
                value.copy_(random_value(name, value.shape, seed))
    return model.eval()


def save(model, folder, **options):
    model.to(torch.float32).save_pretrained(folder, **options)


def text_config(model):
    return model.config.get_text_config()


def text_body(model):
    return getattr(model.model, "language_model", model.model)


# ---------------------------------------------------------------- names on disk

def disk_tensors(family, name, value):
    """[(name on disk, value)] of one tensor as transformers holds it."""
    if name.endswith(".conv1d.weight"):
        return [(name.replace(".conv1d.", f".{letter}_conv1d."), part) for letter, part in zip("qkv", value.chunk(3))]
    name = name.replace(".self_attn.forget_gate.", ".self_attn.")
    for site in ("attn", "ffn"):
        name = name.replace(f".{site}_hc.", f".hc_{site}_")
    if family == "kimi_linear" and any(part in name for part in (".mlp.experts", ".mlp.gate.", ".mlp.shared_experts")):
        name = name.replace(".mlp.", ".block_sparse_moe.")
    gate, up, down = ("w1", "w3", "w2") if family == "kimi_linear" else ("gate_proj", "up_proj", "down_proj")
    prefix, _, leaf = name.rpartition(".")
    if leaf == "gate_up_proj":
        parts = [(expert, *matrix.chunk(2)) for expert, matrix in enumerate(value)]
        return [row for expert, first, second in parts for row in ((f"{prefix}.{expert}.{gate}.weight", first),
                                                                   (f"{prefix}.{expert}.{up}.weight", second))]
    if leaf == "down_proj":
        return [(f"{prefix}.{expert}.{down}.weight", matrix) for expert, matrix in enumerate(value)]
    return [(name, value)]


def on_disk(family, tensors):
    return {disk: part for name, value in tensors.items() for disk, part in disk_tensors(family, name, value)}


# ---------------------------------------------------------------- types and choices

class Float64Inside(TorchFunctionMode):
    """Calls that name float32 get float64; a float32 result is an error."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def widen(value):
            return torch.float64 if value is torch.float32 else value

        if function is torch.Tensor.float:
            function = torch.Tensor.double
        result = function(*map(widen, args), **{key: widen(value) for key, value in (kwargs or {}).items()})
        for value in result if isinstance(result, (tuple, list)) else (result,):
            assert not (isinstance(value, torch.Tensor) and value.dtype == torch.float32), f"float32 from {function}"
        return result


@dataclasses.dataclass
class Choice:
    """What the tokens of a line chose in one layer."""
    ids: torch.Tensor      # int32 [tokens, choices], ascending, -1 where a query has fewer candidates
    margins: torch.Tensor  # [tokens]: score of the last one chosen minus that of the best one left; inf: nothing was left


def stable_best(scores, count):
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :count]


class Chooser(TorchFunctionMode):
    """Takes over the top-k of index and router: notes what was chosen, or gives what is to be chosen."""

    def __init__(self, model, given):
        super().__init__()
        self.place, self.given, self.rows = None, given, 0
        self.ids, self.margins, self.hooks = {}, {}, []
        for i, layer in enumerate(text_body(model).layers):
            if hasattr(layer.self_attn, "indexer"):
                self.watch(layer.self_attn.indexer, f"pools.layer_{i}")
            if hasattr(layer.mlp, "gate"):
                self.watch(layer.mlp.gate, f"experts.layer_{i}")

    def watch(self, module, place):
        def enter(*_):
            self.place = place

        def leave(*_):
            self.place = None

        self.hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    def remove_hooks(self):
        for hook in self.hooks:
            hook.remove()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_topk = function in (torch.topk, torch.Tensor.topk)
        # The router's other two look for the best groups, of which there is one.
        is_choice = is_topk and self.place and (self.place.startswith("pools") or args[0].dim() == 2 and args[0].shape[1] > 1)
        if not is_choice:
            return function(*args, **kwargs)
        scores, count = args[0], kwargs["k"] if "k" in kwargs else args[1]
        indices = self.choose(scores.detach().flatten(0, -2), count).view(*scores.shape[:-1], count)
        return torch.return_types.topk((scores.gather(-1, indices), indices))

    def choose(self, scores, count):
        candidates = scores > torch.finfo(scores.dtype).min / 2  # pools that a query may not see score the least number
        best = stable_best(scores, count)
        if self.given is not None:
            best = self.follow(best, candidates)
        chosen = candidates.gather(-1, best)
        self.note(torch.where(chosen, best, -1), self.margin(scores, best, candidates))
        return best

    def follow(self, best, candidates):
        """The given ids; queries with fewer candidates keep entries that are masked anyway."""
        rows = self.given[self.place][self.rows:self.rows + len(best)].long()
        result = best.clone()
        for t, row in enumerate(rows):
            wanted = row[row >= 0].tolist()
            assert len(wanted) == min(int(candidates[t].sum()), best.shape[1]), f"{self.place}: {wanted} of token {t}"
            rest = [i for i in best[t].tolist() if not candidates[t, i]]
            result[t] = torch.tensor((wanted + rest)[:best.shape[1]], dtype=result.dtype)
        return result

    def margin(self, scores, best, candidates):
        if best.shape[1] == 0:
            return scores.new_full((len(scores),), math.inf)
        left = candidates.scatter(-1, best, False)
        worst_chosen = scores.gather(-1, best).masked_fill(~candidates.gather(-1, best), math.inf).amin(-1)
        best_left = scores.masked_fill(~left, -math.inf).amax(-1)
        return torch.where(left.any(-1), worst_chosen - best_left, math.inf)

    def note(self, ids, margins):
        far = torch.iinfo(torch.int64).max
        ids = ids.masked_fill(ids < 0, far).sort(-1).values
        self.ids.setdefault(self.place, []).append(torch.where(ids == far, -1, ids).int())
        self.margins.setdefault(self.place, []).append(margins)

    def choices(self, model):
        config = text_config(model)
        found = {}
        for place, parts in self.ids.items():
            width = config.index_topk // config.index_kpool if place.startswith("pools") else config.num_experts_per_tok
            ids = [functional.pad(part, (0, width - part.shape[1]), value=-1) for part in parts]
            found[place] = Choice(torch.cat(ids), torch.cat(self.margins[place]))
        return found


# ---------------------------------------------------------------- running

@dataclasses.dataclass
class Found:
    logits: torch.Tensor  # [tokens, vocabulary]
    loss: float           # sum over tokens that have a next one in their document
    gradients: dict       # by name on disk; None where transformers has none
    choices: dict         # by place: "pools.layer_3", "experts.layer_1"


def run_documents(model, documents, dtype, choices=None, gradients=True):
    """`choices`: ids by place, as in Found.choices, that replace those of the model."""
    family = model.config.model_type
    model.to(dtype)
    model.zero_grad()
    chooser = Chooser(model, choices)
    all_logits, total = [], 0.0
    wide = Float64Inside() if dtype == torch.float64 else contextlib.nullcontext()
    with torch.set_grad_enabled(gradients), wide, chooser:
        for document in documents:
            tokens = torch.tensor([document])
            logits = model(input_ids=tokens, use_cache=False).logits[0]
            chooser.rows += len(document)
            all_logits.append(logits.detach())
            if len(document) == 1:
                continue
            loss = functional.cross_entropy(logits[:-1], tokens[0, 1:], reduction="sum")
            total += loss.item()
            if gradients:
                loss.backward()
    chooser.remove_hooks()
    found = {}
    for name, value in model.named_parameters() if gradients else ():
        if name.startswith("model.visual."):
            continue
        if value.grad is None:
            found.update(dict.fromkeys(on_disk(family, {name: value})))
        else:
            found.update(on_disk(family, {name: value.grad.clone()}))
    return Found(torch.cat(all_logits), total, found, chooser.choices(model))


def relative_error(value, reference):
    difference = (value.double() - reference.double()).norm().item()
    return difference / max(reference.double().norm().item(), 1e-300)
