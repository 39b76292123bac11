"""Model folders: exit code 2, a message with the words that help, nothing half-written."""
import json
import os
import shutil
import struct

import numpy
import pytest
from safetensors.numpy import save_file

from refusals import refuse
from small_runs import MODEL


def weights():
    """All tensors of the model, which the cases damage."""
    hidden, inner, kv = MODEL["hidden_size"], MODEL["intermediate_size"], 16
    shapes = {"model.embed_tokens.weight": [257, hidden], "model.norm.weight": [hidden], "lm_head.weight": [257, hidden]}
    for layer in range(MODEL["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, shape in {"self_attn.q_proj": [hidden, hidden], "self_attn.k_proj": [kv, hidden],
                            "self_attn.v_proj": [kv, hidden], "self_attn.o_proj": [hidden, hidden],
                            "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden],
                            "mlp.down_proj": [hidden, inner], "input_layernorm": [hidden],
                            "post_attention_layernorm": [hidden]}.items():
            shapes[f"{prefix}{name}.weight"] = shape
    generator = numpy.random.default_rng(0)
    return {name: generator.random(shape, dtype=numpy.float32) for name, shape in shapes.items()}


def edit_header(path, edit):
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + size])
    edit(header)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + size:])


def change_tensors(change):
    def damage(path):
        tensors = weights()
        change(tensors)
        save_file(tensors, path)
    return damage


def cut(path):
    path.write_bytes(path.read_bytes()[:-1000])


def overlap(path):
    def edit(header):
        names = [name for name in header if name != "__metadata__"]
        first, second = [name for name in names if header[name]["shape"] == [48, 32]][:2]
        header[second]["data_offsets"] = header[first]["data_offsets"]
    edit_header(path, edit)


def index_without_shard(path):
    os.rename(path, path.with_name("model-00001-of-00002.safetensors"))
    names = {name: "model-00001-of-00002.safetensors" for name in weights()}
    names["lm_head.weight"] = "model-00002-of-00002.safetensors"
    path.with_name("model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


KEY = "model.layers.1.self_attn.k_proj.weight"
WEIGHTS = {
    "truncated": (cut, ["model.safetensors", "truncated"]),
    "header_only": (lambda path: path.write_bytes(path.read_bytes()[:4]), ["model.safetensors", "truncated"]),
    "not_safetensors": (lambda path: path.write_bytes(b"PK\x03\x04" + 1000 * b"z"), ["model.safetensors", "header"]),
    "overlap": (overlap, ["model.safetensors", "overlaps"]),
    "wrong_shape": (change_tensors(lambda tensors: tensors.update({KEY: numpy.zeros((32, 16), numpy.float32)})),
                    [KEY, "[32, 16]", "[16, 32]"]),
    "missing_tensor": (change_tensors(lambda tensors: tensors.pop(KEY)), [KEY, "missing"]),
    "surplus_tensor": (change_tensors(lambda tensors: tensors.update({"model.layers.2.norm": numpy.zeros(2, numpy.float32)})),
                       ["model.layers.2.norm", "no parameter"]),
    "integer_tensor": (change_tensors(lambda tensors: tensors.update({KEY: numpy.zeros((16, 32), numpy.int32)})),
                       [KEY, "I32"]),
    "not_a_number": (change_tensors(lambda tensors: tensors[KEY][11].fill(float("nan"))),
                     ["model.safetensors", KEY, "is nan", "at element 352"]),
    "infinite": (change_tensors(lambda tensors: tensors["lm_head.weight"][-1].fill(float("-inf"))),
                 ["model.safetensors", "lm_head.weight", "is -inf"]),
    "no_file": (lambda path: path.unlink(), ["no weights", "model.safetensors"]),
    "missing_shard": (index_without_shard, ["model-00002-of-00002.safetensors", "missing"]),
}


@pytest.mark.parametrize("damage,words", WEIGHTS.values(), ids=WEIGHTS)
def test_weights(run, damage, words):
    """With three ranks, of which each reads a part of the weights: all end, with one message."""
    path = run.folder / "model" / "model.safetensors"
    save_file(weights(), path)
    damage(path)
    overrides = ["--model.init=weights", "--layout.ranks=3"]
    refuse(run, *words, overrides=overrides)


def test_good_weights_are_taken(run):
    """The table above damages what is good."""
    save_file(weights(), run.folder / "model" / "model.safetensors")
    run.train("--model.init=weights")


MODEL_CONFIGS = {
    "bad_json": ('{"model_type": "llama",', ["model.path", "config.json:1: not valid JSON"]),
    "family": (json.dumps({**MODEL, "model_type": "gpt2"}), ["config.json", "model_type", "gpt2", "llama"]),
    "bias": (json.dumps({**MODEL, "attention_bias": True}), ["config.json", "attention_bias"]),
    "activation": (json.dumps({**MODEL, "hidden_act": "gelu"}), ["config.json", "hidden_act", "gelu"]),
    "rope": (json.dumps({**MODEL, "rope_scaling": {"rope_type": "longrope", "factor": 2.0}}), ["config.json", "longrope"]),
    "unknown_key": (json.dumps({**MODEL, "logit_softcap": 30.0}), ["config.json", "logit_softcap"]),
    "missing_key": (json.dumps({key: value for key, value in MODEL.items() if key != "hidden_size"}),
                    ["config.json", "hidden_size"]),
    "wrong_type": (json.dumps({**MODEL, "hidden_size": "32"}), ["config.json", "hidden_size"]),
    "heads": (json.dumps({**MODEL, "num_key_value_heads": 3}), ["config.json", "num_key_value_heads"]),
}


@pytest.mark.parametrize("content,words", MODEL_CONFIGS.values(), ids=MODEL_CONFIGS)
def test_model_config(run, content, words):
    (run.folder / "model" / "config.json").write_text(content)
    refuse(run, *words)


def test_missing_model_folder(run):
    shutil.rmtree(run.folder / "model")
    refuse(run, "model.path", f"{run.folder}/model", "run.toml:3", "no such file", "config.json")
    (run.folder / "model").mkdir()
    refuse(run, "model.path", "model/config.json", "no such file")
