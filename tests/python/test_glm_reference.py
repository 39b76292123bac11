"""The oracle of the hybrid models is judged first: its float64 agrees with transformers' own float32, one layer of each kind
agrees with the formulas written out token by token, its names are those that transformers writes, and its choices are those of
a plain sort."""

import math

import pytest
import torch
from safetensors.torch import load_file

import glm_reference

LENGTHS = [1, 3, 4, 5, 37, 64, 70]
FAMILIES = ["glm5_next", "kimi_linear"]


def random_documents(seed, lengths=tuple(LENGTHS), vocabulary=97):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocabulary, (length,), generator=generator).tolist() for length in lengths]


def input_of(module, model, document):
    """What a part of the model gets and gives for one document, in float64."""
    seen = {}

    def note(_, args, kwargs, output):
        seen["input"] = (args[0] if args else kwargs["hidden_states"]).detach()
        seen["output"] = output

    hook = module.register_forward_hook(note, with_kwargs=True)
    glm_reference.run_documents(model, [document], torch.float64, gradients=False)
    hook.remove()
    return seen["input"][0], seen["output"]


@pytest.mark.parametrize("family", FAMILIES)
def test_float64_and_float32_agree(family):
    """Behind the same choices; gradients of transformers' float32 are good to three digits only."""
    model, documents = glm_reference.make_model(family, seed=1), random_documents(1)
    wide = glm_reference.run_documents(model, documents, torch.float64)
    ids = {place: choice.ids for place, choice in wide.choices.items()}
    narrow = glm_reference.run_documents(model, documents, torch.float32, choices=ids)
    assert (wide.logits - narrow.logits).abs().max() < 1e-4
    assert abs(wide.loss - narrow.loss) < 1e-4 * wide.loss
    assert wide.logits.dtype == torch.float64 and narrow.logits.dtype == torch.float32
    for name, gradient in wide.gradients.items():
        if gradient is None:
            assert "indexer" in name and narrow.gradients[name] is None
        else:
            assert gradient.dtype == torch.float64
            assert glm_reference.relative_error(narrow.gradients[name], gradient) < 2e-3, name


def test_lifting_is_complete():
    """Without it the same comparison in float64 sees float32's rounding."""
    model, documents = glm_reference.make_model("glm5_next", seed=2), random_documents(2, [9])
    lifted = glm_reference.run_documents(model, documents, torch.float64, gradients=False).logits
    plain = model(input_ids=torch.tensor(documents), use_cache=False).logits[0].detach()
    assert plain.dtype == torch.float64
    assert 1e-9 < (plain - lifted).abs().max() < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_linear_attention_is_the_recurrence(family):
    model = glm_reference.make_model(family, seed=3)
    part = glm_reference.text_body(model).layers[1].self_attn
    x, (output,) = input_of(part, model, random_documents(3, [70])[0])
    heads, width, taps = part.num_heads, part.head_dim, part.conv_kernel_size

    def rows(name):
        return x @ getattr(part, name).weight.T

    def unit(value):
        return value / torch.sqrt((value * value).sum(-1, keepdim=True) + 1e-6)

    joined = torch.cat([rows("q_proj"), rows("k_proj"), rows("v_proj")], -1)
    padded = torch.cat([joined.new_zeros(taps - 1, joined.shape[1]), joined])
    filtered = sum(part.conv1d.weight[:, 0, tap] * padded[tap:tap + len(x)] for tap in range(taps))
    filtered = filtered * torch.sigmoid(filtered)
    q, k, v = (value.view(len(x), heads, width) for value in filtered.chunk(3, -1))
    q, k = unit(q) / math.sqrt(width), unit(k)
    gate = part.forget_gate
    z = (x @ gate.f_a_proj.weight.T @ gate.f_b_proj.weight.T + gate.dt_bias).view(len(x), heads, width)
    rate = torch.exp(gate.A_log.view(heads, 1))
    log_decay = -5 * torch.sigmoid(rate * z) if family == "glm5_next" else -rate * torch.log1p(torch.exp(z))
    beta = torch.sigmoid(rows("b_proj"))
    state, outputs = x.new_zeros(heads, width, width), []  # [head, key channel, value channel]
    for t in range(len(x)):
        state = state * torch.exp(log_decay[t])[..., None]
        recalled = (state * k[t][..., None]).sum(1)
        state = state + k[t][..., None] * (beta[t][:, None] * (v[t] - recalled))[:, None]
        outputs.append((state * q[t][..., None]).sum(1))
    o = torch.stack(outputs)
    o = part.o_norm.weight * o / torch.sqrt((o * o).mean(-1, keepdim=True) + 1e-5)
    o = o * torch.sigmoid((rows("g_a_proj") @ part.g_b_proj.weight.T).view_as(o))
    expected = o.flatten(1) @ part.o_proj.weight.T
    assert (output.detach() - expected).abs().max() < 1e-12


def test_stream_maps_are_the_formulas():
    model = glm_reference.make_model("glm5_next", seed=4)
    part = glm_reference.text_body(model).layers[2].ffn_hc
    streams, (write, mix, read_in) = input_of(part, model, random_documents(4, [11])[0])
    for t, rows in enumerate(streams):
        flat = rows.flatten()
        raw = part.fn @ (flat / torch.sqrt((flat * flat).mean() + 1e-5))
        raw = raw * part.scale.repeat_interleave(torch.tensor([4, 4, 16])) + part.base
        read = torch.sigmoid(raw[:4]) + 1e-6
        m = torch.softmax(raw[8:].view(4, 4), 1) + 1e-6
        m = m / (m.sum(0, keepdim=True) + 1e-6)
        for _ in range(19):
            m = m / (m.sum(1, keepdim=True) + 1e-6)
            m = m / (m.sum(0, keepdim=True) + 1e-6)
        assert (write[0, t] - 2 * torch.sigmoid(raw[4:8])).abs().max() < 1e-13
        assert (mix[0, t] - m).abs().max() < 1e-13
        assert (read_in[0, t] - read @ rows).abs().max() < 1e-13


def test_pools_are_those_of_a_plain_sort():
    model, documents = glm_reference.make_model("glm5_next", seed=5), random_documents(5, [1, 3, 4, 5, 90])
    part = glm_reference.text_body(model).layers[3].self_attn.indexer
    inputs = []
    hook = part.register_forward_hook(lambda _, args, kwargs, out: inputs.append((kwargs, out)), with_kwargs=True)
    found = glm_reference.run_documents(model, documents, torch.float64, gradients=False).choices["pools.layer_3"]
    hook.remove()
    row = dropped = 0
    for kwargs, chosen in inputs:
        x, latent = kwargs["hidden_states"][0], kwargs["q_resid"][0]
        key, share = part.wk(x), x @ part.index_kpool_compress_gate.T
        key = (key - key.mean(-1, keepdim=True)) / torch.sqrt(key.var(-1, keepdim=True, correction=0) + 1e-6)
        key = key * part.k_norm.weight + part.k_norm.bias
        pools = []
        for first in range(0, len(x) // 4 * 4, 4):
            weights = torch.softmax(share[first:first + 4] + part.index_kpool_compress_ape, 0)
            pools.append((weights * key[first:first + 4]).sum(0))
        query = part.wq_b(latent).view(len(x), part.n_heads, -1)
        for t in range(len(x)):
            scores = []
            for pool in pools[:(t + 1) // 4]:
                heads = torch.relu(query[t] @ pool / math.sqrt(part.head_dim))
                scores.append(((part.weights_proj(x[t]) * part.n_heads**-0.5) @ heads).item())
            order = sorted(range(len(scores)), key=lambda p: (-scores[p], p))
            best, rest = sorted(order[:8]), order[8:]
            assert [p for p in found.ids[row].tolist() if p >= 0] == best
            expected_margin = min(scores[p] for p in best) - max(scores[p] for p in rest) if rest else math.inf
            assert found.margins[row].item() == pytest.approx(expected_margin, abs=1e-12)
            tail = range((t + 1) // 4 * 4, t + 1)
            keys = [4 * p + slot for p in best for slot in range(4)] + list(tail)
            assert sorted(key for key in chosen[0, t].tolist() if key >= 0) == keys
            row, dropped = row + 1, dropped + bool(rest)
    assert dropped > 40


@pytest.mark.parametrize("family", FAMILIES)
def test_names_are_those_that_transformers_writes(family, tmp_path):
    model = glm_reference.make_model(family, seed=6)
    glm_reference.save(model, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    ours = glm_reference.on_disk(family, model.state_dict())
    if family == "kimi_linear":  # transformers writes dense parts as if they were experts
        stored = {name.replace("layers.0.block_sparse_moe.", "layers.0.mlp."): value for name, value in stored.items()}
    assert set(stored) == set(ours)
    assert all(torch.equal(stored[name], ours[name]) for name in stored)


def test_given_choices_are_followed():
    model, documents = glm_reference.make_model("glm5_next", seed=7), random_documents(7, [3, 90])
    free = glm_reference.run_documents(model, documents, torch.float64, gradients=False)
    ids = {place: choice.ids.clone() for place, choice in free.choices.items()}
    again = glm_reference.run_documents(model, documents, torch.float64, choices=ids, gradients=False)
    assert (free.logits - again.logits).abs().max() < 1e-12  # experts are summed in another order
    row = ids["pools.layer_3"][80]  # the query at position 77 sees 19 pools and takes 8
    left = next(pool for pool in range(19) if pool not in row.tolist())
    row[0] = left
    row.copy_(row.sort().values)
    flipped = glm_reference.run_documents(model, documents, torch.float64, choices=ids, gradients=False)
    assert torch.equal(again.logits[:80], flipped.logits[:80])
    assert (again.logits[80] - flipped.logits[80]).abs().max() > 1e-6
    assert flipped.choices["pools.layer_3"].margins[80] < 0
