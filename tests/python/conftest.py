"""What all tests here share: the folder of the built programs."""
import os
import pathlib
import subprocess

import pytest


@pytest.fixture(scope="session")
def bin_dir():
    folder = os.environ.get("LONGSPAN_BIN_DIR")
    if not folder:
        pytest.fail("LONGSPAN_BIN_DIR is not set: run these tests with ctest, or set it to the build folder")
    return pathlib.Path(folder)


@pytest.fixture(scope="session")
def run_program(bin_dir):
    """run_program(name, *arguments): the text a built program prints; the test fails if it does."""

    def run(name, *arguments):
        command = [str(bin_dir / name), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def run(tmp_path):
    """A small run that has not begun: four steps, a checkpoint every two, one rank."""
    from small_runs import SmallRun  # needs LONGSPAN_BIN_DIR
    return SmallRun(tmp_path, steps=4, save_every=2, ranks=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run with the checkpoints step-2 and step-4; tests copy its output."""
    from small_runs import SmallRun
    run = SmallRun(tmp_path_factory.mktemp("trained"), steps=4, save_every=2)
    run.train()
    return run
