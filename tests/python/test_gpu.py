"""The program on a GPU, from the outside: exit codes, a run that was killed goes on with the same bits, evaluation and
export agree with the CPU and with transformers. Without a GPU these tests are skipped; where LONGSPAN_REQUIRE_GPU=1 is
set they fail instead."""
import json
import os

import pytest
import torch
from transformers import AutoModelForCausalLM

from small_runs import (SAME_BITS, SmallRun, chosen, kill_when, last_logged_step, longspan, state_files,
                        write_documents)
from torchrun_job import Processes

STEPS = 40
SAVE_EVERY = 5
KILLED_AFTER = 17  # between two checkpoints
ON_GPU = "--layout.device=cuda"
# Losses near ln 257 = 5.5 of a model of two layers whose activations are rounded to bfloat16 (8 bits).
BFLOAT16_LOSS = 2e-2


@pytest.fixture(autouse=True)
def gpu():
    if not torch.cuda.is_available():
        (pytest.fail if os.environ.get("LONGSPAN_REQUIRE_GPU") == "1" else pytest.skip)("no GPU is visible")


@pytest.mark.parametrize("ranks", [1, 4])
def test_killed_run_goes_on_with_the_same_bits(tmp_path, ranks):
    whole, killed = (SmallRun(tmp_path / name, steps=STEPS, save_every=SAVE_EVERY, ranks=ranks) for name in ("whole", "killed"))
    whole.train(ON_GPU)
    kill_when(killed.start(ON_GPU), lambda: last_logged_step(killed.output) >= KILLED_AFTER)
    assert last_logged_step(killed.output) < STEPS
    assert "resum" in killed.train(ON_GPU)
    assert chosen(killed.steps(), SAME_BITS) == chosen(whole.steps(), SAME_BITS)
    assert state_files(killed.output / f"step-{STEPS}") == state_files(whole.output / f"step-{STEPS}")


@pytest.fixture
def two_gpus():
    if torch.cuda.device_count() < 2:
        pytest.skip("fewer than two GPUs are visible")


def test_processes_over_nccl_compute_what_threads_compute(tmp_path, two_gpus):
    threads, processes = (SmallRun(tmp_path / name, steps=6, save_every=3, ranks=2) for name in ("threads", "processes"))
    threads.train(ON_GPU)
    with Processes(processes, 2, ON_GPU) as job:
        ends = [job.end(rank) for rank in range(2)]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert chosen(processes.steps(), SAME_BITS) == chosen(threads.steps(), SAME_BITS)
    assert state_files(processes.output / "step-6") == state_files(threads.output / "step-6")


def test_gpu_number_that_is_not_there_is_named(tmp_path, two_gpus):
    gpus = torch.cuda.device_count()
    with Processes(SmallRun(tmp_path, ranks=gpus + 1), gpus + 1, ON_GPU) as job:
        ends = [job.end(rank) for rank in range(gpus + 1)]
    assert [code for code, _, _ in ends] == [2] * (gpus + 1), ends
    assert f"LOCAL_RANK={gpus}" in ends[0][2]


def evaluated(run, *overrides):
    """The evaluation of other documents than those of the training."""
    result, documents = run.folder / "evaluation.json", run.folder / "held_out"
    if not documents.exists():
        write_documents(documents, seed=2)
    done = longspan("eval", run.config, f"--data.eval={documents}/*.txt", "--json", result, *overrides)
    assert done.returncode == 0, done.stderr
    return json.loads(result.read_text())


def test_evaluation_equals_that_on_cpu(tmp_path):
    run = SmallRun(tmp_path, ranks=1)
    run.train(ON_GPU)
    gpu_result, cpu_result = evaluated(run, ON_GPU), evaluated(run, "--layout.device=cpu")
    assert gpu_result["loss"] == pytest.approx(cpu_result["loss"], abs=BFLOAT16_LOSS)
    float32 = evaluated(run, ON_GPU, "--model.dtype=float32", "--layout.allow_slow=attention")
    assert float32["loss"] == pytest.approx(cpu_result["loss"], rel=1e-5)


def test_export_holds_the_trained_master_weights(tmp_path):
    run = SmallRun(tmp_path, ranks=1)
    run.train(ON_GPU)
    done = longspan("export", run.output, "--to", tmp_path / "hf")
    assert done.returncode == 0, done.stderr
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    from_export = evaluated(run, "--layout.device=cpu", f"--model.path={tmp_path}/hf", "--model.init=weights",
                            f"--output.folder={tmp_path}/nothing")
    assert from_export["loss"] == evaluated(run, "--layout.device=cpu")["loss"]


@pytest.mark.parametrize("overrides, code", [
    (["--model.dtype=float32"], 2),  # attention without a fast kernel
    (["--batch.micro_batch_tokens=10"], 2),  # a document is longer
])
def test_refusals_end_with_their_exit_code(tmp_path, overrides, code):
    done = SmallRun(tmp_path, ranks=1).try_train(ON_GPU, *overrides)
    assert done.returncode == code, done.stderr
    assert "error" in done.stderr


def test_program_ends_with_success_after_using_the_gpu(tmp_path):
    for arguments in (["doctor"], ["--version"]):
        done = longspan(*arguments)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
