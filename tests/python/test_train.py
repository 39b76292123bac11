"""Training from a configuration to the last checkpoint: what is written, and that a run which was killed, stopped or
moved to other ranks goes on as if nothing had happened."""
import json
import os
import random
import re
import shutil
import signal
import tomllib

import pytest
from tensorboard.backend.event_processing import event_accumulator

from small_runs import (SAME_BITS, SAME_DATA, SmallRun, chosen, complete_steps, kill_when, last_logged_step, longspan,
                        snapshot, state_files, wait_until, write_model)

STEPS = 12
SAVE_EVERY = 2
TRACED_STEP = 5


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that was never interrupted, and the yardstick of all others. Changed by no test."""
    run = SmallRun(tmp_path_factory.mktemp("whole"), steps=STEPS, save_every=SAVE_EVERY)
    run.console = run.train("--output.keep_latest=100", f"--trace={TRACED_STEP}")
    return run


@pytest.fixture
def again(tmp_path):
    """A run of the same configuration and documents with an output folder of its own."""
    return SmallRun(tmp_path, steps=STEPS, save_every=SAVE_EVERY)


def expect_same_bits(run, whole, step=STEPS):
    assert chosen(run.steps(), SAME_BITS) == chosen(whole.steps(), SAME_BITS)
    assert state_files(run.output / f"step-{step}") == state_files(whole.output / f"step-{step}")


def expect_same_course(steps, whole):
    """Another layout: the same data in the same order, and losses within float32 rounding."""
    reference = {step: whole.steps()[step] for step in steps}
    assert chosen(steps, SAME_DATA) == chosen(reference, SAME_DATA)
    for step, line in steps.items():
        assert line["loss"] == pytest.approx(reference[step]["loss"], rel=1e-5), step


def test_run_leaves_log_config_events_and_report(whole):
    assert list(whole.steps()) == list(range(1, STEPS + 1))
    header = whole.lines()[0]
    saved = tomllib.loads((whole.output / "config.toml").read_text())
    assert header["kind"] == "header" and tomllib.loads(header["config"]) == saved
    assert saved["layout"]["ranks"] == 2 and saved["layout"]["stored_mode"] == "layer_inputs_attention"
    events = event_accumulator.EventAccumulator(str(whole.output / "tensorboard"))
    events.Reload()
    losses = [(event.step, event.value) for event in events.Scalars("loss")]
    assert losses == [(step, pytest.approx(line["loss"], rel=1e-6)) for step, line in whole.steps().items()]
    assert all(0 < line["mfu(%)"] <= 100 for line in whole.steps().values()), "busy or not while the peak was measured"
    report = (whole.output / "report.html").read_text()
    assert report.lstrip().startswith("<!DOCTYPE html>") and "</html>" in report and "<svg" in report
    assert f"step {STEPS}/{STEPS}" in whole.console
    assert "step-12" in whole.console and "report.html" in whole.console


def test_balance_with_dedicated_servers_is_that_of_the_servers(tmp_path):
    run = SmallRun(tmp_path, steps=1, ranks=4)
    console = run.train("--attention.dedicated=1", "--layout.chunks=1")
    planned = re.search(r"if every rank kept its own, ([0-9.]+) as planned", console)
    assert planned and float(planned[1]) == 1, console  # one server runs all of it


def test_without_shuffling_no_seed_changes_the_order(tmp_path):
    courses = {}
    for shuffle in ("true", "false"):
        for seed in (1, 2):
            run = SmallRun(tmp_path / f"{shuffle}-{seed}", steps=2)
            run.train(f"--data.shuffle={shuffle}", f"--data.seed={seed}")
            courses[shuffle, seed] = [line["loss"] for line in run.steps().values()]
    assert courses["false", 1] == courses["false", 2]
    assert courses["true", 1] != courses["true", 2]


def test_trace_shows_all_operations_and_who_waited_for_whom(whole):
    """That it changes no bits is what the other tests show: their runs have no trace."""
    events = json.loads((whole.output / "trace.json").read_text())["traceEvents"]
    assert f"trace of step {TRACED_STEP}: " in whole.console
    slices = {rank: sorted((event["ts"], event["ts"] + event["dur"], event["name"])
                           for event in events if event["ph"] == "X" and event["pid"] == rank) for rank in (0, 1)}
    for of_rank in slices.values():
        names = {name for _, _, name in of_rank}
        assert {"pre segment L0", "attention tasks L1"} <= names, names
        assert all(first[1] <= second[0] + 1e-3 for first, second in zip(of_rank, of_rank[1:])), "operations overlap"
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts and starts.keys() == ends.keys()
    for name, end in ends.items():
        assert {starts[name]["pid"], end["pid"]} == {0, 1}, name


def test_training_learns_and_uses_every_document(whole):
    steps = whole.steps()
    assert steps[STEPS]["loss"] < 0.9 * steps[1]["loss"]
    assert complete_steps(whole.output) == list(range(SAVE_EVERY, STEPS + 1, SAVE_EVERY))
    # The end mark makes each document one token longer than its file.
    files = list((whole.folder / "documents").iterdir())
    epoch_tokens = sum(path.stat().st_size + 1 for path in files)
    first_epoch = [line for line in steps.values() if line["tokens/seen"] <= epoch_tokens]
    assert first_epoch[-1]["tokens/seen"] == epoch_tokens
    assert first_epoch[-1]["docs/seen"] == len(files)


def test_the_end_says_what_was_left_out_and_balanced(again):
    """Both as the run said it before: at its start, and in the line of its last step."""
    console = again.train("--batch.micro_batch_tokens=2500", "--data.overlong=skip", "--optimizer.steps=3")
    total = sum(path.stat().st_size + 1 for path in (again.folder / "documents").iterdir())
    left_out = f"1 of 32 documents, 3001 tokens ({100 * 3001 / total:.1f} % of all): longer than a micro-batch of 2500"
    assert f", left out {left_out}\n" in console and f"\nleft out     {left_out}\n" in console, console
    last = again.steps()[3]
    shown = re.search(r"step 3/3 .*  imb ([0-9.]+) ", console)[1]
    at_home, planned = re.search(r"balance .* ([0-9.]+) if every rank kept its own, ([0-9.]+) as planned", console).groups()
    assert planned == shown == f"{last['plan/imbalance_max_over_mean']:.2f}"
    assert at_home == f"{last['plan/home_imbalance_max_over_mean']:.2f}"


def test_same_seed_same_bits(whole, again):
    again.train("--output.keep_latest=1")
    expect_same_bits(again, whole)
    other = SmallRun(again.folder / "other", steps=STEPS)
    other.train("--model.seed=4")
    assert other.steps()[1]["loss"] != whole.steps()[1]["loss"]


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_steps_goes_on_with_the_same_bits(whole, again, seed):
    for kill_at in sorted(random.Random(seed).sample(range(1, STEPS - 3), 2)):
        kill_when(again.start(), lambda: last_logged_step(again.output) >= kill_at)
    again.train()
    expect_same_bits(again, whole)


def test_killed_while_saving_goes_on_with_the_same_bits(whole, again):
    for step in (4, 8):
        kill_when(again.start(), lambda: any(
            (again.output / f"step-{step}{suffix}").exists() for suffix in (".partial", "")))
    again.train()
    expect_same_bits(again, whole)
    assert not list(again.output.glob("*.partial"))


def test_leftovers_of_a_killed_save_are_no_checkpoint(whole, again):
    """The two states that a kill can leave: a folder under its temporary name, and one without its mark."""
    shutil.copytree(whole.output, again.output)
    for step in (6, 8, 10, 12):
        shutil.rmtree(again.output / f"step-{step}")
    shutil.copytree(again.output / "step-4", again.output / "step-6.partial")
    (again.output / "step-6.partial" / "manifest.json").unlink()
    (again.output / "step-6.partial" / "COMPLETE").unlink()
    shutil.copytree(again.output / "step-4", again.output / "step-8")
    (again.output / "step-8" / "COMPLETE").unlink()
    console = again.train()
    assert f"resuming     {again.output}/step-4" in console
    expect_same_bits(again, whole)


# ranks, shard group, further keys
LAYOUTS = [(1, 1, []), (2, 1, ["--layout.chunks=1"]), (3, 3, ["--layout.stored_mode=context_only", "--layout.band=1"]),
           (4, 2, ["--attention.dedicated=1", "--layout.chunks=3"])]


@pytest.mark.parametrize("ranks,shard_group,keys", LAYOUTS, ids=[f"{ranks}_ranks" for ranks, _, _ in LAYOUTS])
def test_goes_on_with_other_ranks(whole, again, ranks, shard_group, keys):
    shutil.copytree(whole.output, again.output)
    for step in (8, 10, 12):
        shutil.rmtree(again.output / f"step-{step}")
    again.train(f"--layout.ranks={ranks}", f"--layout.shard_group={shard_group}", *keys)
    steps = again.steps()
    assert list(steps) == list(range(1, STEPS + 1))
    expect_same_course({step: steps[step] for step in range(7, STEPS + 1)}, whole)
    assert len(state_files(again.output / f"step-{STEPS}")) == ranks
    assert [line["step"] for line in again.lines() if line["kind"] == "resume"] == [6]


def test_other_ranks_from_the_start(whole, again):
    again.train("--layout.ranks=4", "--layout.chunks=3")
    expect_same_course(again.steps(), whole)


def test_one_run_at_a_time_in_a_folder(again):
    process = again.start("--optimizer.steps=100000")
    try:
        wait_until(process, lambda: last_logged_step(again.output) >= 1)
        second = again.try_train("--optimizer.steps=100000")
        assert second.returncode == 2 and f"another run works in {again.output}" in second.stderr, second.stderr
        assert f"process {process.pid} on" in second.stderr and "output.folder" in second.stderr
    finally:
        process.kill()
        process.communicate()
    # A killed run holds nothing, and a run that ended leaves no lock behind.
    again.train(f"--optimizer.steps={last_logged_step(again.output) + 1}")
    assert not (again.output / "run.lock").exists()


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1],
                         ids=["SIGTERM", "SIGINT", "SIGUSR1"])
def test_asked_to_stop_saves_the_step_in_work(whole, again, stop_signal):
    process = again.start("--output.save_every=0")
    wait_until(process, lambda: last_logged_step(again.output) >= 3)
    process.send_signal(stop_signal)
    console, _ = process.communicate(timeout=60)
    assert process.returncode == 0, console
    last = last_logged_step(again.output)
    assert 3 <= last < STEPS
    assert complete_steps(again.output) == [last]
    assert f"stopped on request after step {last}" in console
    again.train("--output.save_every=0")
    expect_same_bits(again, whole)


def test_keeps_the_latest_checkpoints(again):
    again.train("--output.save_every=1", "--output.keep_latest=3", "--optimizer.steps=5")
    assert complete_steps(again.output) == [3, 4, 5]
    assert sorted(path.name for path in again.output.glob("step-*")) == ["step-3", "step-4", "step-5"]


def test_a_finished_run_does_nothing_more(whole, again):
    shutil.copytree(whole.output, again.output)
    console = again.train()
    assert "nothing was trained" in console
    assert chosen(again.steps(), SAME_BITS) == chosen(whole.steps(), SAME_BITS)
    again.train("--optimizer.steps=13")
    assert list(again.steps()) == list(range(1, STEPS + 2))


REFUSED = [
    ("data.seed", ["--data.seed=6"]),
    ("batch.micro_batch_tokens", ["--batch.micro_batch_tokens=3073"]),
    ("data.append_end_of_document", ["--data.append_end_of_document=false"]),
    ("model.dtype", ["--model.dtype=float64"]),
    ("output.resume", ["--output.resume=never"]),
    ("model.seed", ["--model.seed=4"]),
    ("optimizer.steps", [f"--optimizer.steps={STEPS - 1}"]),
]


@pytest.mark.parametrize("key,overrides", REFUSED, ids=[key for key, _ in REFUSED])
def test_does_not_go_on_with_other_data(whole, key, overrides):
    before = snapshot(whole.output)
    steps = [] if key == "optimizer.steps" else ["--optimizer.steps=20"]
    done = whole.try_train(*steps, *overrides)
    assert done.returncode == 2, done.stdout + done.stderr
    assert key in done.stderr and "output.folder" in done.stderr
    assert snapshot(whole.output) == before


@pytest.mark.parametrize("change", ["longer", "other_byte", "gone", "added"])
def test_does_not_go_on_with_changed_documents(whole, again, change):
    shutil.copytree(whole.output, again.output)
    document = again.folder / "documents" / "document_09.txt"
    text = document.read_text()
    if change == "longer":
        document.write_text(text + "a")
    elif change == "other_byte":
        document.write_text(text[:-1] + "Z")
    elif change == "gone":
        document.unlink()
    else:
        (again.folder / "documents" / "document_99.txt").write_text("new")
    before = snapshot(again.output)
    done = again.try_train("--optimizer.steps=20")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "data.train" in done.stderr
    assert snapshot(again.output) == before


@pytest.mark.parametrize("key,value", [("rope_theta", 20000.0), ("rms_norm_eps", 1e-6), ("head_dim", 8)])
def test_does_not_go_on_with_another_model(whole, again, key, value):
    """The weights would fit, and mean something else."""
    shutil.copytree(whole.output, again.output)
    heads = dict(num_attention_heads=4, num_key_value_heads=2) if key == "head_dim" else {}
    shutil.rmtree(again.folder / "model")
    write_model(again.folder / "model", **{key: value}, **heads)
    before = snapshot(again.output)
    for done in (again.try_train("--optimizer.steps=20"),
                 longspan("eval", again.config, f"--data.eval={again.folder}/documents/*.txt", "--data.train=[]")):
        assert done.returncode == 2, done.stdout + done.stderr
        assert ("num_attention_heads" if heads else key) in done.stderr and "step-12" in done.stderr
    assert snapshot(again.output) == before


def test_strands_of_a_genome_go_on_with_the_same_bits(tmp_path):
    """Seeded choices of strand and rotation differ from epoch to epoch; a resumed run makes the same ones."""
    generator = random.Random(3)
    records = [(f"record_{index}", "".join(generator.choice("ACGTacgtN") for _ in range(length)))
               for index, length in enumerate([1, 2, 127, 128, 129, 700, 900, 1500])]
    (tmp_path / "genome.fa").write_text("".join(f">{name} of a test\n{bases}\n" for name, bases in records))
    keys = [f"--data.train={tmp_path}/genome.fa", "--data.tokenizer=nucleotide", "--data.fasta.circular=record_5",
            "--data.fasta.reverse_complement=random", "--data.fasta.soft_mask_weight=0.25", "--data.fasta.max_n_run=2",
            '--data.fasta.hold_out=["record_3"]', "--batch.micro_batches_per_step=2"]
    whole, again = SmallRun(tmp_path / "whole", save_every=3), SmallRun(tmp_path / "again", save_every=3)
    whole.train(*keys)
    assert whole.steps()[6]["epoch"] >= 3
    shutil.copytree(whole.output, again.output)
    shutil.rmtree(again.output / "step-6")
    again.train(*keys)
    expect_same_bits(again, whole, step=6)


def test_documents_may_move(whole, again):
    """Paths are not part of what a run depends on."""
    shutil.copytree(whole.output, again.output)
    shutil.rmtree(again.output / "step-12")
    os.rename(again.folder / "documents", again.folder / "moved")
    again.train(f"--data.train={again.folder}/moved/*.txt")
    expect_same_bits(again, whole)


def test_console_is_short(tmp_path):
    """It begins with what was chosen, or with all if asked, and has a line a step, however many epochs a step goes through."""
    run = SmallRun(tmp_path, steps=3, ranks=1)
    console = run.train("--batch.micro_batches_per_step=9")
    assert run.steps()[3]["epoch"] >= 3
    assert "\nsteps = 3 " in console and f"{run.output}/config.toml" in console
    assert "weight_decay" not in console and "# default" not in console
    assert len(re.findall("^step ", console, re.MULTILINE)) == 3
    assert len(re.findall("^epoch ", console, re.MULTILINE)) == 1
    whole = run.train("--batch.micro_batches_per_step=9", "--optimizer.steps=4", "--verbose")
    assert "\nweight_decay = 0.1 " in whole and "# default" in whole
