"""Configurations, command lines and launchers that cannot be: exit code 2, a message with the words that help, nothing half-written."""
import pytest

from refusals import USER_ERROR, expect_refusal, refuse
from small_runs import longspan, snapshot


CONFIGURATIONS = {
    "unknown_key": ("[data.fasta]\nmask_n_weigth = 0.5\n",
                    ["run.toml:", "data.fasta.mask_n_weigth", "nearest: data.fasta.mask_n_weight (float, default 0)"]),
    "unknown_section": ("[optimiser]\nlr = 1.0\n", ["run.toml:", "optimiser.lr", "optimizer.lr"]),
    "wrong_type": ("[attention]\ndedicated = \"two\"\n", ["run.toml:", "attention.dedicated", "'two'", "integer"]),
    "wrong_word": ("[attention]\nservers = \"everywhere\"\n", ["attention.servers", "in-place", "dedicated"]),
    "out_of_range": ("[attention]\nepsilon = 2.0\n", ["attention.epsilon", "1"]),
    "bad_toml": ("[attention\n", ["run.toml:31", "not valid TOML", "']'"]),
    "key_twice": ("[attention]\nepsilon = 0.1\nepsilon = 0.2\n", ["run.toml", "epsilon"]),
}


@pytest.mark.parametrize("addition,words", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_configuration_file(run, addition, words):
    run.config.write_text(run.config.read_text() + addition)
    refuse(run, *words)


OVERRIDES = {
    "unknown": (["--layout.rank=2"], ["--layout.rank=2", "unknown key", "layout.ranks"]),
    "name_elsewhere": (["--optimizer.learning_rate=3"], ["optimizer.learning_rate", "nearest: optimizer.lr (float"]),
    "near_to_none": (["--optimizer.frobnicate=3"], ["optimizer.frobnicate", "[optimizer] holds steps, lr, "]),
    "wrong_type": (["--optimizer.steps=many"], ["optimizer.steps", "many", "integer"]),
    "beyond_64_bits": (["--optimizer.steps=99999999999999999999"], ["optimizer.steps takes: integer", "64 bits"]),
    "given_twice": (["--optimizer.steps=3", "--optimizer.steps=4"], ["optimizer.steps is given twice", "--optimizer.steps=3"]),
    "given_as_option_too": (["--ranks=1", "--layout.ranks=2"], ["layout.ranks is given twice", "--layout.ranks=1"]),
    "no_value": (["--optimizer.steps"], ["--optimizer.steps", "--section.key=value"]),
    "no_key": (["epochs=3"], ["epochs=3", "--section.key=value"]),
    "shard_group": (["--layout.ranks=4", "--layout.shard_group=3"], ["layout.shard_group", "divide", "layout.ranks"]),
    "all_dedicated": (["--layout.ranks=2", "--attention.dedicated=2"], ["attention.dedicated", "layout.ranks"]),
    "band": (["--layout.band=3"], ["layout.band", "layout.chunks"]),
    "two_models": (["--model.preset=llama_tiny"], ["model.path", "model.preset"]),
    "no_output": (["--output.folder="], ["output.folder"]),
    "eval_of_nothing": (["--output.eval_every=1"], ["output.eval_every", "data.eval"]),
    "too_many_ranks": (["--layout.ranks=1000000000"], ["layout.ranks", "65536"]),
    "too_many_ranks_here": (["--layout.ranks=1025"], ["layout.ranks", "1024", "mpirun -n 1025"]),
    "too_many_threads": (["--layout.threads_per_rank=1000000"], ["layout.threads_per_rank", "hardware threads", "auto"]),
    "too_many_threads_of_all": (["--layout.ranks=1024", "--layout.threads_per_rank=1000"], ["threads_per_rank", "1024 ranks"]),
    "too_many_batches": (["--batch.micro_batches_per_step=1000000000"], ["micro_batches_per_step", "16384"]),
    "too_many_chunks": (["--batch.micro_batch_tokens=10000000", "--layout.chunks=1000000"], ["layout.chunks", "65536"]),
    "rate_beyond_float": (["--optimizer.lr=1e308"], ["optimizer.lr", "1000"]),
    "decay_beyond_float": (["--optimizer.weight_decay=1e300"], ["optimizer.weight_decay", "1000"]),
    "eps_below_float": (["--optimizer.eps=1e-300"], ["optimizer.eps", "1e-30"]),
}


@pytest.mark.parametrize("overrides,words", OVERRIDES.values(), ids=OVERRIDES)
def test_override(run, overrides, words):
    refuse(run, *words, overrides=overrides)


def test_missing_configuration(run):
    before = snapshot(run.folder)
    expect_refusal(run, longspan("train", run.folder / "runs.toml"), before, "runs.toml", "no such file")


def test_an_empty_configuration(run):
    """Somebody who gives documents where the configuration belongs is told which file was read as one."""
    (run.folder / "empty.txt").write_text("")
    (run.folder / "comment.txt").write_text("# nothing\n")
    before = snapshot(run.folder)
    expect_refusal(run, longspan("train", run.folder / "empty.txt"), before, "empty.txt: it is empty", "TOML")
    expect_refusal(run, longspan("train", run.folder / "comment.txt"), before, "no model in", "comment.txt")


@pytest.mark.parametrize("verb", ["train", "eval", "plan"])
def test_a_folder_in_place_of_the_configuration(trained, verb):
    """The message names the file to give."""
    config = f"{trained.output}/config.toml"
    for folder, words in {trained.output: ["folder of a run", config], trained.output / "step-4": ["checkpoint", config],
                          trained.folder / "model": ["model folder", "model.path"],
                          trained.folder / "documents": ["folder", "TOML file"]}.items():
        done = longspan(verb, folder)
        assert done.returncode == USER_ERROR, done.stdout + done.stderr
        for word in [str(folder), *words]:
            assert word in done.stderr, f"no '{word}' in: {done.stderr}"


USAGE = {
    "no_command": ([], ["no command given", "train, plan, eval", "longspan --help"]),
    "wrong_command": (["trian", "run.toml"], ['unknown command "trian"', "nearest: train", "longspan --help"]),
    "wrong_data_command": (["data", "pakc"], ['unknown command "pakc"', "nearest: pack", "longspan data --help"]),
    "no_data_command": (["data"], ["no command given", "pack, inspect", "longspan data --help"]),
    "no_configuration": (["train"], ["longspan train: missing: config", "longspan train --help"]),
    "no_place": (["export", "somewhere"], ["longspan export: missing: --to", "longspan export --help"]),
    "unknown_option": (["data", "pack", "x", "--out", "y", "--frobnicate"],
                       ["longspan data pack: not understood: --frobnicate", "longspan data pack --help"]),
    "option_before_command": (["--frobnicate", "train"], ["--frobnicate", "command belongs", "longspan --help"]),
}


@pytest.mark.parametrize("arguments,words", USAGE.values(), ids=USAGE)
def test_wrong_usage(arguments, words):
    done = longspan(*arguments)
    assert done.returncode == USER_ERROR
    assert done.stderr.startswith("longspan: error: ") and done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr, f"no '{word}' in: {done.stderr}"


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["data", "--help"], ["data", "pack", "--help"],
                                       ["--version"]])
def test_help_is_no_error(arguments):
    done = longspan(*arguments)
    assert done.returncode == 0 and done.stdout and not done.stderr


OPTIONS = {
    "no_servers": (["plan", "--servers", "0"], ["--servers", "at least 1"]),
    "minus_servers": (["plan", "--servers", "-3"], ["--servers", "-3"]),
    "too_many_servers": (["plan", "--stream=hist:64K", "--servers=100000000", "--tokens-per-rank=1"], ["--servers", "at most"]),
    "no_batches": (["plan", "--batches", "0"], ["--batches", "at least 1"]),
    "too_many_batches": (["plan", "--stream=hist:64K", "--servers=2", "--tokens-per-rank=64K", "--batches=1000000000"],
                         ["--batches", "at most"]),
    "seed_below_0": (["plan", "--seed", "-1"], ["--seed", "-1"]),
    "word_for_a_number": (["plan", "--seed", "1.5"], ["--seed", "1.5"]),
    "empty_path": (["plan", "--json", ""], ["--json", "empty"]),
    "empty_path_of_eval": (["eval", "run.toml", "--json="], ["--json"]),
    "one_file_twice": (["plan", "--json", "x/../both", "--svg", "both"], ["--json", "--svg", "one file"]),
    "no_ranks": (["train", "run.toml", "--ranks", "0"], ["--ranks", "at least 1"]),
    "no_bins": (["eval", "run.toml", "--by-position", "0"], ["--by-position", "at least 1"]),
    "no_threads": (["profile", "--threads", "0"], ["--threads"]),
    "tokens_below_0": (["data", "inspect", "x.txt", "--micro-batch-tokens", "-1"], ["--micro-batch-tokens", "-1"]),
}


@pytest.mark.parametrize("arguments,words", OPTIONS.values(), ids=OPTIONS)
def test_options(tmp_path, arguments, words):
    done = longspan(*arguments, cwd=tmp_path)
    assert done.returncode == USER_ERROR, done.stdout + done.stderr
    assert done.stderr.startswith("longspan: error: "), done.stderr
    for word in words:
        assert word in done.stderr, f"no '{word}' in: {done.stderr}"
    assert not list(tmp_path.iterdir())


def test_preset_names_are_listed(run):
    text = run.config.read_text().replace(f'path = "{run.folder}/model"', 'preset = "lama_tiny"')
    run.config.write_text(text)
    refuse(run, "model.preset", "lama_tiny", "llama_tiny")


TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500"}
LAUNCHERS = {
    "port": ({**TORCHRUN, "MASTER_PORT": "0"}, ["MASTER_PORT=0", "1 to 65535"]),
    "address": ({**TORCHRUN, "MASTER_ADDR": "no.such.host.invalid"}, ["MASTER_ADDR", "no.such.host.invalid"]),
    "incomplete": ({"RANK": "0", "WORLD_SIZE": "2"}, ["RANK=0", "MASTER_ADDR"]),
    "contradiction": ({**TORCHRUN, "RANK": "2"}, ["RANK=2", "WORLD_SIZE=2"]),
    "slurm": ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, ["Slurm", "srun --mpi=pmix"]),
}


@pytest.mark.parametrize("environment,words", LAUNCHERS.values(), ids=LAUNCHERS)
def test_launcher(run, environment, words):
    before = snapshot(run.folder)
    expect_refusal(run, longspan("train", run.config, environment=environment), before, *words)


def test_one_process_under_torchrun_is_fine(run):
    done = longspan("train", run.config, "--optimizer.steps=1",
                    environment={**TORCHRUN, "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"})
    assert done.returncode == 0, done.stderr
