"""`longspan profile` measures this machine; a run plans with what it wrote."""
import copy
import json
import time

import pytest

from small_runs import SmallRun, longspan

# A small part of the grid: seconds, not minutes.
SMALL = ["--repeats", "3", "--max-queries", "128", "--max-keys", "512",
         "--query-heads", "2", "--key-heads", "1", "--head-width", "32"]
MINUTES = 3


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The profile, what was printed, and how long it took."""
    path = tmp_path_factory.mktemp("profile") / "machine.json"
    start = time.monotonic()
    done = longspan("profile", "--out", path, *SMALL)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text()), done, time.monotonic() - start


def predicted_s(run, folder, profile):
    machine, figures = folder / "machine.json", folder / "plan.json"
    machine.write_text(json.dumps(profile))
    done = longspan("plan", run.config, f"--attention.profile={machine}", "--batches", "1", "--json", figures)
    assert done.returncode == 0, done.stderr
    return json.loads(figures.read_text())["makespan_s"]


def test_a_run_plans_with_it(measured, tmp_path):
    run = SmallRun(tmp_path, steps=1)
    profile = copy.deepcopy(measured[0])
    as_measured_s = predicted_s(run, tmp_path, profile)
    for kind in ["causal", "full"]:
        rows = profile["forward"][kind]["flops_per_s"]
        profile["forward"][kind]["flops_per_s"] = [[rate / 10 for rate in row] for row in rows]
    assert predicted_s(run, tmp_path, profile) > 3 * as_measured_s


def test_ranks_need_a_link_and_a_single_rank_does_not(measured, tmp_path):
    run, machine = SmallRun(tmp_path, steps=1, ranks=1), tmp_path / "machine.json"
    machine.write_text(json.dumps({key: value for key, value in measured[0].items() if key != "link"}))
    run.train(f"--attention.profile={machine}")
    done = longspan("train", run.config, f"--attention.profile={machine}", "--ranks", "2", "--output.folder=other", cwd=tmp_path)
    assert done.returncode == 2
    for words in ["attention.profile", "links between ranks", "two of them are visible"]:
        assert words in done.stderr, done.stderr


def test_the_file_names_machine_versions_and_spread(measured):
    profile, _, _ = measured
    assert profile["format"].startswith("longspan device profile")
    assert profile["name"] and "measured" in profile["source"] and "3 repeats" in profile["source"]
    assert {"longspan", "libtorch", "system"} <= profile["versions"].keys()
    assert 0 <= profile["spread"] < 10
    assert profile["shape"]["query_heads"] == 2 and profile["shape"]["key_width"] == 32
    assert profile["matrix_flops_per_s"] > 0
    assert profile["link"]["bytes_per_s"] > 0 and profile["link"]["latency_s"] > 0


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_grids_hold_a_rate_for_every_shape(measured, direction):
    rates = measured[0][direction]
    for kind in ["causal", "full"]:
        grid = rates[kind]
        for axis, most in [("query_rows", 128), ("key_rows", 512)]:
            points = grid[axis]
            assert points == sorted(set(points)) and points[0] >= 1 and points[-1] == most
        assert len(grid["flops_per_s"]) == len(grid["query_rows"])
        for row in grid["flops_per_s"]:
            assert len(row) == len(grid["key_rows"]) and all(rate > 0 for rate in row)
    assert rates["task_overhead_s"] >= 0 and rates["launch_overhead_s"] >= 0


def test_it_tells_how_far_to_trust_it_in_time(measured):
    _, done, seconds = measured
    assert "interpolation of each inner point" in done.stdout
    assert "written to" in done.stdout
    assert seconds < 60 * MINUTES


@pytest.mark.parametrize("arguments,words", [
    (["--device", "cuda"], ["--device cuda", "--device cpu"]),
    (["--device", "gpu"], ["--device", "gpu"]),
    (["--deterministic"], ["--deterministic", "--device cuda"]),
], ids=["no_gpu", "no_device", "deterministic_cpu"])
def test_devices_that_are_not_there(tmp_path, arguments, words):
    done = longspan("profile", "--out", tmp_path / "machine.json", *arguments, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2 and not (tmp_path / "machine.json").exists()
    for word in words:
        assert word in done.stderr, done.stderr


def test_a_place_that_cannot_be_written_is_found_before_measuring(tmp_path):
    start = time.monotonic()
    done = longspan("profile", "--out", tmp_path / "no" / "such" / "machine.json")
    assert done.returncode == 2 and "machine.json" in done.stderr
    assert time.monotonic() - start < 10
