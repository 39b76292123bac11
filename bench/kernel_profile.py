"""Where the time of training steps goes, kernel by kernel, without a profiler around the program.

    run(command, env=surroundings(binary, table)); print_profile(table, warm_up_steps=4)

The program loads liblongspan_kernel_times.so, which stands beside it (bench/kernel_times.cpp) and writes the table.
"""
import collections
import os
import pathlib
import statistics

STEP_END_KERNEL = "update_kernel"  # AdamW
SHOWN_NAMES = 40
NAME_WIDTH = 130


def surroundings(binary, table):
    library = pathlib.Path(binary).resolve().parent / "liblongspan_kernel_times.so"
    if not library.exists():
        raise SystemExit(f"{library} is not there: build the target longspan_kernel_times")
    return os.environ | {"CUDA_INJECTION64_PATH": str(library), "LONGSPAN_KERNEL_TIMES": str(table)}


def read_launches(table):
    """(begin, end, name) of each kernel, copy and fill of the first GPU, in order of time; the file may end in mid-line."""
    lines = [line.split(",", 4) for line in table.read_text().split("\n")[:-1]]
    return sorted((int(begin), int(end), name) for begin, end, gpu, _, name in lines if gpu == "0")


def whole_steps(launches, warm_up_steps):
    """Launches of each step: it ends with the last of a row of update kernels."""
    steps = [[]]
    for index, launch in enumerate(launches):
        steps[-1].append(launch)
        following = launches[index + 1][2] if index + 1 < len(launches) else STEP_END_KERNEL
        if STEP_END_KERNEL in launch[2] and STEP_END_KERNEL not in following:
            steps.append([])
    return steps[warm_up_steps:-1]


def busy_ns(launches):
    """Time in which at least one launch ran."""
    total, until = 0, 0
    for begin, end, _ in launches:
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total


def print_profile(table, warm_up_steps):
    steps = whole_steps(read_launches(table), warm_up_steps)
    if not steps:
        raise SystemExit(f"no step after the warm-up in {table}: give --seconds more")
    times = collections.defaultdict(lambda: [0, 0.0])
    for begin, end, name in (launch for step in steps for launch in step):
        times[name[:NAME_WIDTH]][0] += 1
        times[name[:NAME_WIDTH]][1] += end - begin
    total = sum(time for _, time in times.values())
    for name, (count, time) in sorted(times.items(), key=lambda item: -item[1][1])[:SHOWN_NAMES]:
        print(f"{1e-6 * time / len(steps):9.2f} ms {100 * time / total:5.1f} %  {count / len(steps):7.1f}  {name}")
    spans = [step[-1][1] - previous[-1][1] for previous, step in zip(steps, steps[1:])] or [steps[0][-1][1] - steps[0][0][0]]
    print(f"{1e-6 * total / len(steps):9.2f} ms of kernels a step (mean of {len(steps)}); the GPU is busy "
          f"{1e-6 * statistics.median(map(busy_ns, steps)):.2f} ms of a step's {1e-6 * statistics.median(spans):.2f}")
