"""Output folders, checkpoints, requests to stop, disks without room: exit code 2, a message with the words that help, nothing half-written."""
import json
import shutil
import signal
import struct
import subprocess
import time

import pytest

from refusals import USER_ERROR, expect_refusal, refuse
from small_runs import (MODEL, SAME_BITS, SmallRun, catches, chosen, complete_steps, cpu_s, longspan, snapshot, state_files,
                        wait_until)


def test_output_folder_below_a_file(run):
    (run.folder / "file").write_text("")
    refuse(run, "output.folder = ", f"{run.folder}/file/out", "another folder", overrides=[f"--output.folder={run.folder}/file/out"])
    refuse(run, f"{run.folder}/file", overrides=[f"--output.folder={run.folder}/file"])


def test_output_folder_of_something_else(run):
    """A run replaces and removes files by their names, so it wants none of these names to be taken."""
    refuse(run, "output.folder", "root", overrides=["--output.folder=/"])
    run.output.mkdir()
    (run.output / "config.toml").write_text("mine = true\n")
    refuse(run, "output.folder", "config.toml", "not the folder of a run")
    (run.output / "config.toml").rename(run.output / "notes.toml")
    (run.output / "step-7").mkdir()
    refuse(run, "output.folder", "step-7")
    (run.output / "step-7").rmdir()
    console = run.train()
    assert f"{run.output} holds 1 other" in console and "notes.toml" in console
    assert (run.output / "notes.toml").read_text() == "mine = true\n"
    assert "other" not in run.train("--optimizer.steps=6")


def test_half_written_files_of_a_killed_run_go(trained, run):
    shutil.copytree(trained.output, run.output)
    (run.output / "log.jsonl.tmp-99999").write_text("{")
    (run.output / "log.jsonl.tmp-mine").write_text("{")
    run.train("--layout.ranks=2", "--optimizer.steps=5")
    assert not (run.output / "log.jsonl.tmp-99999").exists()
    assert (run.output / "log.jsonl.tmp-mine").exists()


def test_damaged_log(trained, run):
    shutil.copytree(trained.output, run.output)
    log = run.output / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:2]) + "damaged\n" + "".join(lines[2:]))
    refuse(run, "log.jsonl:3", "not valid JSON", "remove this line", overrides=["--layout.ranks=2", "--optimizer.steps=5"])
    log.write_text("".join(lines))
    run.train("--layout.ranks=2", "--optimizer.steps=5")


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1],
                         ids=["SIGTERM", "SIGINT", "SIGUSR1"])
def test_asked_to_stop_while_it_starts(run, stop_signal):
    """From the first hundredths of a second on: constructors of libtorch take a third of a second before main."""
    for delay_s in (0, 0.2, 0.4):
        process = run.start("--optimizer.steps=100000")
        wait_until(process, lambda: catches(process, stop_signal))
        assert cpu_s(process) < 0.2
        time.sleep(delay_s)
        process.send_signal(stop_signal)
        console, _ = process.communicate(timeout=60)
        assert process.returncode == 0, console
        assert "stopped on request" in console
        assert not list(run.output.glob("*.partial")) and not list(run.output.glob("*.tmp-*"))
    run.train(f"--optimizer.steps={1 + max(complete_steps(run.output), default=0)}")


def test_a_second_interrupt_ends_at_once(run):
    process = run.start("--optimizer.steps=100000")
    wait_until(process, lambda: catches(process, signal.SIGINT))
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    console, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "Ctrl-C again ends at once" in console


def test_export_to_an_existing_folder(trained):
    (trained.folder / "there").mkdir(exist_ok=True)
    (trained.folder / "there" / "file").write_text("mine")
    before = snapshot(trained.folder)
    expect_refusal(trained, longspan("export", trained.output, "--to", trained.folder / "there"), before,
                   "there", "already")
    expect_refusal(trained, longspan("export", trained.output, "--to", trained.folder / "there" / "file" / "below"),
                   before, "below")


def test_export_of_nothing(trained, run):
    before = snapshot(run.folder)
    for source in ("nowhere", "documents"):
        expect_refusal(run, longspan("export", run.folder / source, "--to", run.folder / "to"), before,
                       source, "no checkpoint")
    expect_refusal(run, longspan("export", run.config, "--to", run.folder / "to"), before, "run.toml", "is a file",
                   "output.folder")
    expect_refusal(run, longspan("export", trained.output, "--to", run.folder / "to", "--dtype=int8"), before,
                   "int8", "bfloat16")


def flip_weight(path):
    content = bytearray(path.read_bytes())
    header_bytes = struct.unpack("<Q", content[:8])[0]
    begin = json.loads(content[8:8 + header_bytes])["unit-0001.weights"]["data_offsets"][0]
    content[8 + header_bytes + begin] ^= 1
    path.write_bytes(content)


def cut_half(path):
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


CHECKPOINTS = {
    "flipped": (lambda folder: flip_weight(folder / "rank-00001-of-00002.safetensors"),
                ["step-4/rank-00001-of-00002.safetensors", "checksum"]),
    "cut": (lambda folder: cut_half(folder / "rank-00000-of-00002.safetensors"),
            ["step-4/rank-00000-of-00002.safetensors", "truncated"]),
    "gone": (lambda folder: (folder / "rank-00000-of-00002.safetensors").unlink(),
             ["step-4/rank-00000-of-00002.safetensors", "No such file"]),
    "manifest_cut": (lambda folder: cut_half(folder / "manifest.json"), ["step-4/manifest.json", "JSON"]),
    "manifest_gone": (lambda folder: (folder / "manifest.json").unlink(), ["step-4/manifest.json", "No such file"]),
}


@pytest.mark.parametrize("damage,words", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_corrupt_checkpoint(trained, run, damage, words):
    shutil.copytree(trained.output, run.output)
    damage(run.output / "step-4")
    refuse(run, *words, overrides=["--optimizer.steps=6", "--layout.ranks=3"])
    before = snapshot(run.folder)
    expect_refusal(run, longspan("export", run.output, "--to", run.folder / "to"), before, *words)


def test_the_checkpoint_before_a_corrupt_one_is_good(trained, run):
    """The way out that the message names: remove the corrupt one."""
    shutil.copytree(trained.output, run.output)
    flip_weight(run.output / "step-4" / "rank-00000-of-00002.safetensors")
    before = snapshot(run.folder)
    expect_refusal(run, longspan("eval", run.config, f"--data.eval={run.folder}/documents/*.txt", "--data.train=[]"),
                   before, "step-4/rank-00000-of-00002.safetensors", "checksum", f"remove {run.output}/step-4")
    shutil.rmtree(run.output / "step-4")
    run.train("--layout.ranks=2")
    assert state_files(run.output / "step-4") == state_files(trained.output / "step-4")


def test_checkpoint_of_another_model(trained, run):
    shutil.copytree(trained.output, run.output)
    (run.folder / "model" / "config.json").write_text(json.dumps({**MODEL, "intermediate_size": 64}))
    refuse(run, "step-4", "another model", overrides=["--optimizer.steps=6"])


def expect_intact(run, reference):
    """Checkpoints are those of before, and the run goes on from them as if the disk had always been large enough."""
    assert complete_steps(run.output) == [2, 4]
    assert not list(run.output.glob("*.partial")) and not list(run.output.glob("step-6*"))
    run.train("--layout.ranks=2", "--optimizer.steps=6")
    assert chosen(run.steps(), SAME_BITS) == chosen(reference.steps(), SAME_BITS)
    assert state_files(run.output / "step-6") == state_files(reference.output / "step-6")


@pytest.fixture(scope="module")
def longer(trained):
    run = SmallRun(trained.folder / "longer", steps=4, save_every=2)
    shutil.copytree(trained.output, run.output)
    run.train("--optimizer.steps=6")
    return run


@pytest.mark.parametrize("limit,file", [(50_000, "step-6"), (7_000, "log.jsonl")])
def test_no_room_for_a_file(trained, longer, run, limit, file):
    """Files may not grow beyond a limit: those of the checkpoint, or the log."""
    shutil.copytree(trained.output, run.output)
    done = run.try_train("--layout.ranks=2", "--optimizer.steps=6", largest_file_bytes=limit)
    assert done.returncode == USER_ERROR, done.stdout + done.stderr
    assert file in done.stderr and "File too large" in done.stderr
    expect_intact(run, longer)


def test_disk_full(trained, longer, run):
    run.output.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(run.output)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        shutil.copytree(trained.output, run.output, dirs_exist_ok=True)
        filler = run.output / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(run.output).free - 100_000))
        done = run.try_train("--layout.ranks=2", "--optimizer.steps=6")
        assert done.returncode == USER_ERROR, done.stdout + done.stderr
        assert "step-6" in done.stderr and "No space left" in done.stderr
        filler.unlink()
        expect_intact(run, longer)
    finally:
        subprocess.run(["umount", str(run.output)], check=True)


def test_export_without_room(trained, run):
    before = snapshot(run.folder)
    done = longspan("export", trained.output, "--to", run.folder / "to", largest_file_bytes=20_000)
    expect_refusal(run, done, before, "model.safetensors", "File too large")
    done = longspan("data", "pack", f"{run.folder}/documents/*.txt", "--out", run.folder / "shard",
                    largest_file_bytes=2_000)
    expect_refusal(run, done, before, "shard", "File too large")
