"""Small training runs for the end-to-end tests: documents, a model folder, a configuration, and what a run leaves behind.

    run = SmallRun(tmp_path)                       # writes documents, model and run.toml below tmp_path
    run.train("--layout.ranks=2")                  # fails the test if the program does
    run.steps()[3]["loss"]
"""
import atexit
import json
import os
import pathlib
import random
import re
import select
import signal
import subprocess
import tempfile
import time

BIN_DIR = pathlib.Path(os.environ["LONGSPAN_BIN_DIR"])
LONGSPAN = BIN_DIR / "longspan"
TIMEOUT_S = 120

MODEL = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=257, hidden_size=32,
             intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
             max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False,
             initializer_range=0.1, hidden_act="silu", attention_bias=False, mlp_bias=False, torch_dtype="float32")
# Ragged on purpose: a byte, a block of 128 and its neighbours, one document that outweighs all others in attention.
LENGTHS = [1, 1, 2, 3, *6 * [100], 126, 127, 128, 129, *6 * [200], *4 * [300], 400, 400, 500, 500, 600, 700, 900, 3000]

CONFIG = """
[model]
path = "{folder}/model"
init = "random"
seed = 3

[data]
train = ["{folder}/documents/*.txt"]
tokenizer = "byte"
seed = 5

[batch]
micro_batch_tokens = 3072

[layout]
ranks = {ranks}
chunks = 2
threads_per_rank = 1

[optimizer]
steps = {steps}
lr = 1e-3
warmup_steps = 1

[output]
folder = "{folder}/out"
save_every = {save_every}

[run]
stall_timeout_s = 60
"""


def write_documents(folder, lengths=tuple(LENGTHS), seed=1):
    """Words from a small seeded alphabet, so that a few steps learn something."""
    generator = random.Random(seed)
    folder.mkdir(parents=True)
    for index, length in enumerate(lengths):
        text = "".join(generator.choice("abcde \n") for _ in range(length))
        (folder / f"document_{index:02}.txt").write_text(text)


def write_model(folder, **changes):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**MODEL, **changes}, indent=1))


class Server:
    """longspan_server, which forks a process for each command: libtorch is loaded once for all of them."""

    def __init__(self):
        self.outputs = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen([str(BIN_DIR / "longspan_server")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        start_new_session=True)
        atexit.register(self.end)

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # a command that hangs, too
            self.process.wait()

    def run(self, arguments, folder, environment, largest_file_bytes):
        paths = [pathlib.Path(self.outputs.name) / name for name in ("stdout", "stderr")]
        bytes_of = lambda word: os.fsencode(str(word)).decode("latin-1")
        request = dict(arguments=[bytes_of(word) for word in arguments], folder=bytes_of(folder), environment=environment,
                       largest_file_bytes=largest_file_bytes, stdout=str(paths[0]), stderr=str(paths[1]))
        self.process.stdin.write(json.dumps(request, ensure_ascii=False).encode() + b"\n")
        self.process.stdin.flush()
        answered, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_S)
        if not answered:
            self.end()
            raise subprocess.TimeoutExpired(arguments, TIMEOUT_S)
        code = int(self.process.stdout.readline())
        texts = [path.read_text(errors="surrogateescape") if path.exists() else "" for path in paths]
        return subprocess.CompletedProcess(arguments, code, *texts)


def longspan(*arguments, environment=None, cwd=".", largest_file_bytes=0):
    """Runs a command to its end: CompletedProcess with text output, whatever the exit code."""
    if not servers or servers[-1].process.poll() is not None:
        servers.append(Server())
    return servers[-1].run(arguments, os.path.abspath(cwd), environment or {}, largest_file_bytes)


servers = []  # the last one runs, unless a command hung


class SmallRun:
    def __init__(self, folder, steps=6, save_every=0, ranks=2):
        self.folder = folder
        self.output = folder / "out"
        self.config = folder / "run.toml"
        write_documents(folder / "documents")
        write_model(folder / "model")
        self.config.write_text(CONFIG.format(folder=folder, steps=steps, save_every=save_every, ranks=ranks))

    def command(self, *overrides):
        return [str(LONGSPAN), "train", str(self.config), *overrides]

    def try_train(self, *overrides, **options):
        return longspan("train", self.config, *overrides, **options)

    def train(self, *overrides):
        done = self.try_train(*overrides)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *overrides):
        return subprocess.Popen(self.command(*overrides), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def lines(self):
        return read_log(self.output)

    def steps(self):
        return {line["step"]: line for line in self.lines() if line["kind"] == "step"}


def read_log(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def last_logged_step(folder):
    try:
        return max(map(int, re.findall(r'"kind":"step","step":(\d+)', (folder / "log.jsonl").read_text())), default=0)
    except FileNotFoundError:
        return 0


def wait_until(process, condition, timeout_s=60):
    """Polls until the condition holds; fails the test if the process ends first."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, f"ended with {process.returncode} before: {process.stdout.read()}"
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.0005)


def catches(process, caught):
    """Whether the process has a handler for the signal by now."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return bool(int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (caught - 1) & 1)


def cpu_s(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def kill_when(process, condition):
    wait_until(process, condition)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL


# What must be alike in two runs of the same seed and layout, and in two runs of any layouts.
SAME_BITS = ["loss", "grad_norm", "lr", "epoch", "tokens/step", "tokens/weighted", "tokens/seen", "docs/seen",
             "docs/longest", "plan/imbalance_max_over_mean"]
SAME_DATA = ["lr", "epoch", "tokens/step", "tokens/weighted", "tokens/seen", "docs/seen", "docs/longest"]


def chosen(steps, names):
    return {step: {name: line[name] for name in names} for step, line in steps.items()}


def state_files(step_folder):
    files = {path.name: path.read_bytes() for path in sorted(step_folder.glob("rank-*.safetensors"))}
    assert files, f"no state in {step_folder}"
    return files


def complete_steps(folder):
    return sorted(int(path.parent.name.removeprefix("step-")) for path in folder.glob("step-*/COMPLETE"))


def snapshot(folder):
    """Every file below a folder with its content: equal before and after if nothing was written."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in sorted(folder.rglob("*"))}
