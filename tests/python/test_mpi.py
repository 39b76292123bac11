"""Training as processes of an MPI job: the same numbers as ranks in one process, and an end with a name when a process
dies or stands still."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

from small_runs import (LONGSPAN, SAME_DATA, SmallRun, chosen, complete_steps, last_logged_step, longspan, snapshot,
                        state_files)

STEPS = 6
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1"}
MPIRUN = shutil.which("mpirun")


def missing():
    if MPIRUN is None:
        return "mpirun is not installed"
    if "mpirun" not in longspan("doctor").stdout:
        return "longspan was built without MPI"
    return None


MISSING = missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


def command(run, ranks, *overrides):
    return [MPIRUN, "--bind-to", "none", "-n", str(ranks), *run.command(*overrides)]


def mpirun(run, ranks, *overrides):
    return subprocess.run(command(run, ranks, *overrides), capture_output=True, text=True, timeout=120,
                          env={**os.environ, **ENVIRONMENT})


class Job:
    """A job that runs while the test does something to its processes; none of them outlives it."""

    def __init__(self, run, ranks, *overrides):
        self.run = run
        self.process = subprocess.Popen(command(run, ranks, *overrides), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, env={**os.environ, **ENVIRONMENT})
        self.ids = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process_id in [*self.ids.values(), self.process.pid]:
            if pathlib.Path(f"/proc/{process_id}").exists():
                os.kill(process_id, signal.SIGKILL)
        self.process.communicate()

    def wait_for_step(self, step):
        deadline = time.monotonic() + 60
        while last_logged_step(self.run.output) < step:
            assert self.process.poll() is None, self.process.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self.ids = rank_processes(self.process.pid)

    def expect_end(self, seconds):
        begin = time.monotonic()
        console, _ = self.process.communicate(timeout=seconds)
        print(f"ended after {time.monotonic() - begin:.1f} s")
        return console

    def expect_nobody_left(self):
        deadline = time.monotonic() + 5
        while any(is_running(process_id) for process_id in self.ids.values()):
            assert time.monotonic() < deadline, f"still running: {self.ids}"
            time.sleep(0.05)


def is_running(process_id):
    try:
        return pathlib.Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def rank_processes(parent_id):
    """rank -> process id of mpirun's children."""
    ranks = {}
    children = pathlib.Path(f"/proc/{parent_id}/task/{parent_id}/children").read_text().split()
    for child in map(int, children):
        variables = dict(entry.split("=", 1) for entry in
                         pathlib.Path(f"/proc/{child}/environ").read_text().split("\0") if "=" in entry)
        if "OMPI_COMM_WORLD_RANK" in variables:
            ranks[int(variables["OMPI_COMM_WORLD_RANK"])] = child
    return ranks


def expect_same_course(found, expected):
    assert chosen(found, SAME_DATA) == chosen(expected, SAME_DATA)
    for step, line in found.items():
        assert line["loss"] == pytest.approx(expected[step]["loss"], rel=1e-6), step


@pytest.mark.parametrize("keys", [[], ["--layout.stored_mode=context_only", "--layout.band=1"]], ids=["plain", "bands"])
def test_processes_compute_what_threads_compute(tmp_path, keys):
    threads = SmallRun(tmp_path / "threads", steps=STEPS, save_every=3)
    processes = SmallRun(tmp_path / "processes", steps=STEPS, save_every=3)
    threads.train("--layout.ranks=2", *keys)
    done = mpirun(processes, 2, "--layout.ranks=auto", *keys)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"step {STEPS}/{STEPS}") == 1, "one process prints"
    expect_same_course(processes.steps(), threads.steps())
    # A checkpoint of processes goes on as threads.
    processes.train("--layout.ranks=1", f"--optimizer.steps={STEPS + 1}", *keys)
    assert len(state_files(processes.output / f"step-{STEPS}")) == 2
    assert complete_steps(processes.output) == [STEPS, STEPS + 1]


def test_resumes_as_processes(tmp_path):
    whole = SmallRun(tmp_path / "whole", steps=STEPS, save_every=3)
    whole.train("--layout.ranks=2")
    parts = SmallRun(tmp_path / "parts", steps=STEPS, save_every=3)
    shutil.copytree(whole.output, parts.output)
    shutil.rmtree(parts.output / f"step-{STEPS}")
    done = mpirun(parts, 3, "--layout.ranks=auto")
    assert done.returncode == 0, done.stdout + done.stderr
    steps = parts.steps()
    assert chosen(steps, SAME_DATA) == chosen(whole.steps(), SAME_DATA)
    for step, line in steps.items():
        assert line["loss"] == pytest.approx(whole.steps()[step]["loss"], rel=1e-5), step


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_process_ends_the_job(tmp_path, victim):
    with Job(SmallRun(tmp_path, steps=100_000), 2) as job:
        job.wait_for_step(3)
        os.kill(job.ids[victim], signal.SIGKILL)
        console = job.expect_end(seconds=30)
        assert job.process.returncode != 0, console
        job.expect_nobody_left()


@pytest.mark.parametrize("victim", [0, 1])
def test_stopped_process_is_named(tmp_path, victim):
    with Job(SmallRun(tmp_path, steps=100_000), 2, "--run.stall_timeout_s=3") as job:
        job.wait_for_step(3)
        os.kill(job.ids[victim], signal.SIGSTOP)
        console = job.expect_end(seconds=30)
        assert job.process.returncode not in (0, None), console
        assert f"rank {victim} does not answer" in console
        # The operation is that of the rank that waits; the time counts the question to the other rank, too.
        assert re.search(rf"; rank {1 - victim} waited [3-9]\.\d s for it in '\w+", console), console
        job.expect_nobody_left()


def test_other_number_of_ranks_is_refused(tmp_path):
    run = SmallRun(tmp_path)
    before = snapshot(tmp_path)
    done = mpirun(run, 2, "--layout.ranks=3")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "layout.ranks" in done.stderr and "3" in done.stderr and "2" in done.stderr
    assert done.stderr.count("longspan: error:") == 1, "one process prints"
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("verb,overrides,words", [
    ("train", ["--layout.rank=2"], ["unknown key layout.rank"]),
    ("train", ["--data.train=nothing.txt"], ["nothing.txt", "no such file"]),
    ("train", ["--output.resume=never"], ["holds a checkpoint of step 2", "output.resume"]),
    ("eval", [], ["data.eval names no documents"])])
def test_one_process_prints_what_is_wrong_with_a_run(tmp_path, verb, overrides, words):
    run = SmallRun(tmp_path, steps=2)
    run.train()
    before = snapshot(tmp_path)
    done = subprocess.run([MPIRUN, "--bind-to", "none", "-n", "3", LONGSPAN, verb, run.config, "--layout.ranks=auto",
                           *overrides], capture_output=True, text=True, timeout=120, env={**os.environ, **ENVIRONMENT})
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("longspan: error:") == 1, done.stderr
    for word in words:
        assert word in done.stderr
    assert snapshot(tmp_path) == before


def test_second_run_in_a_folder_is_refused(tmp_path):
    """As processes and as threads; the first run goes on."""
    with Job(SmallRun(tmp_path, steps=100_000), 2) as job:
        job.wait_for_step(3)
        for second in (mpirun(job.run, 2, "--layout.ranks=auto"), job.run.try_train()):
            assert second.returncode == 2, second.stdout + second.stderr
            assert second.stderr.count("longspan: error:") == 1, second.stderr
            assert f"another run works in {job.run.output}" in second.stderr
            assert f"process {job.ids[0]} on" in second.stderr
        step = last_logged_step(job.run.output)
        job.wait_for_step(step + 1)


def test_user_error_on_one_rank_is_code_2(tmp_path):
    run = SmallRun(tmp_path)
    (tmp_path / "file").write_text("")
    before = snapshot(tmp_path)
    done = mpirun(run, 2, f"--output.folder={tmp_path}/file/out")
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"{tmp_path}/file/out" in done.stderr
    assert snapshot(tmp_path) == before


def expect_saved(job):
    console = job.expect_end(seconds=30)
    assert job.process.returncode == 0, console
    assert complete_steps(job.run.output) == [last_logged_step(job.run.output)]


def test_asked_to_stop_saves_and_ends_well(tmp_path):
    with Job(SmallRun(tmp_path, steps=100_000), 2) as job:
        job.wait_for_step(3)
        os.kill(job.ids[1], signal.SIGTERM)  # any rank may be the one that is asked
        expect_saved(job)


def test_sigusr1_to_mpirun_saves_and_ends_well(tmp_path):
    """mpirun hands SIGUSR1 on to the processes, and does nothing else about it."""
    with Job(SmallRun(tmp_path, steps=100_000), 2) as job:
        job.wait_for_step(3)
        job.process.send_signal(signal.SIGUSR1)
        expect_saved(job)
