"""Training as processes that torchrun started: the same numbers as ranks in one process, and an end with a name when a
process dies or stands still. On CPU, over TCP; test_gpu.py has the same on GPUs, over NCCL."""
import signal

import pytest

from small_runs import SAME_DATA, SmallRun, chosen, last_logged_step, snapshot, state_files, wait_until
from torchrun_job import Processes

STEPS = 6
ON_CPU = "--layout.device=cpu"


@pytest.mark.parametrize("ranks", [2, 3])
def test_processes_compute_what_threads_compute(tmp_path, ranks):
    threads = SmallRun(tmp_path / "threads", steps=STEPS, save_every=3)
    processes = SmallRun(tmp_path / "processes", steps=STEPS, save_every=3)
    threads.train(ON_CPU, f"--layout.ranks={ranks}")
    with Processes(processes, ranks, ON_CPU) as job:
        ends = [job.end(rank) for rank in range(ranks)]
    assert [code for code, _, _ in ends] == [0] * ranks, ends
    assert f"step {STEPS}/{STEPS}" in ends[0][1] and ends[1][1] == "", "one process prints"
    assert chosen(processes.steps(), SAME_DATA) == chosen(threads.steps(), SAME_DATA)
    for step, line in processes.steps().items():
        assert line["loss"] == pytest.approx(threads.steps()[step]["loss"], rel=1e-6), step
    assert len(state_files(processes.output / f"step-{STEPS}")) == ranks


def test_killed_process_ends_the_others(tmp_path):
    run = SmallRun(tmp_path, steps=100_000)
    with Processes(run, 3, ON_CPU, "--run.stall_timeout_s=20") as job:
        wait_until(job.all[0], lambda: last_logged_step(run.output) >= 3)
        job.all[1].send_signal(signal.SIGKILL)
        for rank in (0, 2):
            code, out, err = job.end(rank, seconds=30)
            assert code == 3, out + err
            assert "rank 1 is gone" in err


def test_stopped_process_is_named(tmp_path):
    run = SmallRun(tmp_path, steps=100_000)
    with Processes(run, 2, ON_CPU, "--run.stall_timeout_s=3") as job:
        wait_until(job.all[0], lambda: last_logged_step(run.output) >= 3)
        job.all[1].send_signal(signal.SIGSTOP)
        code, out, err = job.end(0, seconds=30)
        assert code == 3, out + err
        assert "rank 1 does not answer" in err


def test_error_of_all_is_printed_once(tmp_path):
    run = SmallRun(tmp_path)
    before = snapshot(tmp_path)
    with Processes(run, 2, ON_CPU, "--data.train=nothing.txt") as job:
        ends = [job.end(rank) for rank in range(2)]
    assert [code for code, _, _ in ends] == [2, 2], ends
    assert "nothing.txt" in ends[0][2] and ends[1][2] == ""
    assert snapshot(tmp_path) == before


def test_gpu_that_is_not_there_is_refused(tmp_path):
    run = SmallRun(tmp_path)
    with Processes(run, 2, "--layout.device=cuda", CUDA_VISIBLE_DEVICES="") as job:
        ends = [job.end(rank) for rank in range(2)]
    assert [code for code, _, _ in ends] == [2, 2], ends
    assert "layout.device" in ends[0][2]
