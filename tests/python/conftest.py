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
