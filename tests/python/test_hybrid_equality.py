"""The hybrid families equal transformers: choices, logits, loss and every gradient, on tiny random models, for any layout.

How longspan_probe is called (beside what test_hf_equality.py says of it):

    longspan_probe MODEL DOCUMENTS.json OUT.safetensors --dtype=float64 [--ranks=3 --chunks=2 --band=1 --stored-mode=...
        --inner-mode=... --expert-group=3 --expert-chunks=2] [--choices=CHOICES.safetensors]

OUT holds, beside `loss` [1], `logits` [tokens, vocabulary] and `gradient.<name on disk>` (of parameters that are not trained none,
or zeros), what was chosen in the forward pass of training, rows in the order of the documents:

    pools.layer_<i>     i32 [tokens, index_topk / index_kpool]    pools of the token's document, any order, -1 where there are fewer
    experts.layer_<i>   i32 [tokens, num_experts_per_tok]         experts, any order

CHOICES holds tensors of the same names and shapes, pools and experts ascending: these choices are made instead of the program's
own, in all layers that it names. It is what a recompute does with the choices of its first forward.

Bounds: in float64 1e-9 for logits, loss and each gradient, and choices equal wherever the oracle's margin is above 1e-12; in
float32 1e-4 for logits and loss, and choices equal above 1e-4. Gradients are judged in float64 only: a clamp at its border and
sums that cancel make float32's own error a matter of luck. Where a choice within the margin differs, both sides are given the
oracle's.
"""

import json
import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

import glm_reference

PROBE = os.path.join(os.environ["LONGSPAN_BIN_DIR"], "longspan_probe")
# Shorter than a pool, around one, around the 32 keys that an index selects, around a chunk of linear attention, longer.
LENGTHS = [1, 3, 4, 5, 2, 31, 32, 35, 36, 63, 64, 65, 1, 130, 201]
CASES = {
    "glm": ("glm5_next", 1, {}),
    "glm_9_layers": ("glm5_next", 2, dict(num_hidden_layers=9, num_dense_layers=3)),
    "glm_pool_2_two_shared": ("glm5_next", 3, dict(index_kpool=2, n_shared_experts=2, num_experts_per_tok=3)),
    "glm_softplus": ("glm5_next", 4, dict(linear_lower_bound=None)),
    "glm_one_favourite": ("glm5_next", 7, dict(n_routed_experts=9, favourite=True)),
    "kimi": ("kimi_linear", 5, {}),
    "kimi_query_latents": ("kimi_linear", 6, dict(q_lora_rank=20, v_head_dim=16, num_dense_layers=2)),
}
LAYOUTS = {
    "one_rank": [],
    "three_ranks": ["--ranks=3", "--chunks=2", "--band=1", "--stored-mode=context_only", "--inner-mode=layer_inputs",
                    "--expert-group=3", "--expert-chunks=2"],
    "two_ranks": ["--ranks=2", "--chunks=3", "--band=2", "--stored-mode=layer_inputs", "--expert-chunks=3"],
}
NAMES = {torch.float64: "float64", torch.float32: "float32"}


class Case:
    """One model with its documents, on disk, and what the oracle says of it (once for all tests of the case)."""

    def __init__(self, folder, family, seed, changes):
        self.folder = folder
        favourite = changes.get("favourite", False)
        self.model = glm_reference.make_model(family, seed, **{k: v for k, v in changes.items() if k != "favourite"})
        if favourite:
            self.favour_one_expert()
        glm_reference.save(self.model, folder / "model")
        generator = torch.Generator().manual_seed(seed)
        self.documents = [torch.randint(0, 97, (length,), generator=generator).tolist() for length in LENGTHS]
        (folder / "documents.json").write_text(json.dumps(self.documents))
        self.oracle = glm_reference.run_documents(self.model, self.documents, torch.float64)
        self.calls = 0
        self.found = {}  # of the program's own choices, by dtype and layout

    def favour_one_expert(self):
        """Every token chooses expert 4 of each layer, and none of them expert 1, 3 or 8."""
        for name, buffer in self.model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer[4] += 10
                buffer[[1, 3, 8]] -= 10

    def run(self, dtype, layout, choices=None):
        key = (dtype, *layout)
        if choices is None and key in self.found:
            return self.found[key]
        self.calls += 1
        output, extra = self.folder / f"out_{self.calls}.safetensors", []
        if choices is not None:
            save_file(choices, self.folder / "choices.safetensors")
            extra = [f"--choices={self.folder / 'choices.safetensors'}"]
        command = [PROBE, self.folder / "model", self.folder / "documents.json", output, f"--dtype={NAMES[dtype]}", *layout, *extra]
        subprocess.run(list(map(str, command)), check=True, timeout=600)
        found = load_file(output)
        if choices is None:
            self.found[key] = found
        return found

    def oracle_ids(self):
        return {place: choice.ids for place, choice in self.oracle.choices.items()}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    return Case(tmp_path_factory.mktemp(request.param), *CASES[request.param])


def compare_choices(oracle, found, margin):
    """(all equal, share of judged tokens among those that leave something out and are no exact ties); fails on a wrong one."""
    all_equal, judged, undecided = True, 0, 0
    for place, choice in oracle.choices.items():
        equal = same_rows(choice.ids, found[place])
        sure = choice.margins > margin
        wrong = sure & ~equal
        assert not wrong.any(), (f"{place}: token {int(wrong.nonzero()[0])} chose {found[place][wrong][0].tolist()}, "
                                 f"not {choice.ids[wrong][0].tolist()}, margin {choice.margins[wrong][0]:.2e}")
        all_equal = all_equal and bool(equal.all())
        leaves_out = choice.margins.isfinite() & (choice.margins != 0)
        judged += int((sure & leaves_out).sum())
        undecided += int((leaves_out & ~sure).sum())
    return all_equal, judged / max(1, judged + undecided)


def same_rows(ids, other):
    """The same sets: both sorted, -1 and all."""
    return (ids.int().sort(-1).values == other.int().sort(-1).values).all(-1)


def relative_errors(oracle, found, with_gradients):
    errors = {"logits": glm_reference.relative_error(found["logits"], oracle.logits),
              "loss": abs(found["loss"].item() - oracle.loss) / oracle.loss}
    for name, gradient in oracle.gradients.items() if with_gradients else ():
        key = f"gradient.{name}"
        if gradient is None:  # not trained
            errors[name] = 0.0 if key not in found or not found[key].any() else float("inf")
        else:
            errors[name] = glm_reference.relative_error(found[key].view_as(gradient), gradient)
    return errors


def judge(case, dtype, layout, margin, bound):
    found = case.run(dtype, layout)
    all_equal, share = compare_choices(case.oracle, found, margin)
    print(f"judged {share:.4f} of the choices")
    if not all_equal:
        found = case.run(dtype, layout, choices=case.oracle_ids())
        assert all(same_rows(ids, found[place]).all() for place, ids in case.oracle_ids().items())
    errors = relative_errors(case.oracle, found, with_gradients=dtype == torch.float64)
    worst = max(errors, key=errors.get)
    print(f"worst {worst} {errors[worst]:.2e}")
    assert errors[worst] <= bound, {name: error for name, error in errors.items() if error > bound}
    return share


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_equals_transformers_in_float64(case, layout):
    assert judge(case, torch.float64, layout, margin=1e-12, bound=1e-9) >= 0.95


def test_equals_transformers_in_float32(case):
    """On the layout that has everything in it: that layouts agree is a matter of float64."""
    judge(case, torch.float32, LAYOUTS["three_ranks"], margin=1e-4, bound=1e-4)


def test_every_gradient_is_there(case):
    """Names on disk, one for one; only the index has none, and only experts without tokens have zeros."""
    found = case.run(torch.float64, [])
    names = {key.removeprefix("gradient.") for key in found if key.startswith("gradient.")}
    trained = {name for name, gradient in case.oracle.gradients.items() if gradient is not None}
    frozen = {name for name, gradient in case.oracle.gradients.items() if gradient is None}
    assert trained <= names
    assert names - trained <= frozen | {name for name in names if name.endswith("e_score_correction_bias")}
    assert all("indexer" in name for name in frozen)
    for name in trained:
        assert case.oracle.gradients[name].any() or ".experts." in name, name


def test_a_flipped_pool_is_seen(case):
    """One pool of one query taken for another: the choice is called wrong, and logits leave the bound."""
    place = next((place for place in case.oracle.choices if place.startswith("pools")), None)
    if place is None:
        pytest.skip("this family selects no pools")
    choice = case.oracle.choices[place]
    token = int(choice.margins.isfinite().nonzero()[-1])  # of the longest document, with a pool to spare
    ids = case.oracle_ids()
    flipped = ids[place].clone()
    row = flipped[token]
    row[0] = next(pool for pool in range(len(row) + 1) if pool not in row.tolist())
    row.copy_(row.sort().values)
    found = case.run(torch.float64, [], choices={**ids, place: flipped})
    with pytest.raises(AssertionError, match="token"):
        compare_choices(case.oracle, found, margin=1e-12)
    assert relative_errors(case.oracle, found, with_gradients=False)["logits"] > 1e-9


def test_one_changed_weight_is_seen(case):
    with torch.no_grad():
        case.model.to(torch.float32)
        weight = glm_reference.text_body(case.model).layers[1].self_attn.k_proj.weight
        kept = weight[3, 5].clone()
        weight[3, 5] *= 1.01
        changed = glm_reference.run_documents(case.model, case.documents, torch.float64, choices=case.oracle_ids(),
                                              gradients=False)
        case.model.to(torch.float32)
        glm_reference.text_body(case.model).layers[1].self_attn.k_proj.weight[3, 5] = kept
    found = case.run(torch.float64, [], choices=case.oracle_ids())
    assert relative_errors(changed, found, with_gradients=False)["logits"] > 1e-9
