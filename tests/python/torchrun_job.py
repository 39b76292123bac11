"""A job as torchrun starts it, for tests: a process for each rank, with its variables.

    with Processes(run, 2, "--layout.device=cpu") as job:
        code, out, err = job.end(rank=0)
"""
import os
import socket
import subprocess


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Processes:
    """What torchrun does: a process for each rank with its variables. None outlives the test."""

    def __init__(self, run, ranks, *overrides, local_ranks=None, **changes):
        job = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(free_port()), **changes}
        self.all = []
        for rank, local_rank in enumerate(local_ranks or range(ranks)):
            own = {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}
            self.all.append(subprocess.Popen(run.command("--layout.ranks=auto", *overrides), stdout=subprocess.PIPE,
                                             stderr=subprocess.PIPE, text=True, env={**os.environ, **job, **own}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.all:
            process.kill()
            process.communicate()

    def end(self, rank, seconds=60):
        """Exit code, stdout and stderr of a rank."""
        out, err = self.all[rank].communicate(timeout=seconds)
        return self.all[rank].returncode, out, err
