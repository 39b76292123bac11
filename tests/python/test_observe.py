"""Other programs read what longspan writes: TensorBoard its events, JSON and HTML parsers the rest."""
import html.parser
import json
import tomllib

import pytest
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

STEPS = 200
KILLED, RESUMED = 120, 80


@pytest.fixture(scope="module")
def run_folder(run_program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run_program("write_sample_logs", folder)
    return folder


def read_log(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_tensorboard_reads_every_step_once(run_folder):
    events = event_accumulator.EventAccumulator(str(run_folder / "tensorboard"))
    events.Reload()
    tags = events.Tags()["scalars"]
    for tag in ["loss", "loss_metrics/global_avg_loss", "grad_norm", "lr", "throughput(tps)",
                "time_metrics/end_to_end(s)", "memory/max_active(GiB)", "validation_metrics/loss",
                "eval_loss", "learning_rate", "plan/imbalance_max_over_mean", "pack/fill(%)",
                "docs/longest", "tokens/weighted"]:
        assert tag in tags
    loss = events.Scalars("loss")
    # The steps that the killed run wrote after the resumed one are gone.
    assert [point.step for point in loss] == list(range(1, STEPS + 1))
    log = {line["step"]: line for line in read_log(run_folder) if line["kind"] == "step"}
    for point in loss:
        assert point.value == pytest.approx(log[point.step]["loss"], rel=1e-6)
        assert abs(point.wall_time - log[point.step]["time"]) < 60


def test_tensorboard_finds_no_damaged_record(run_folder):
    files = sorted((run_folder / "tensorboard").iterdir())
    assert len(files) == 2 and all(f.name.startswith("events.out.tfevents.") for f in files)
    counts = [len(list(LegacyEventFileLoader(str(f)).Load())) for f in files]
    # A version record each, and the start of the resumed session.
    assert counts == [1 + KILLED, 2 + (STEPS - RESUMED) + 1]


def test_log_holds_one_object_a_line(run_folder):
    lines = read_log(run_folder)
    header, *rest = lines
    assert header["kind"] == "header"
    assert tomllib.loads(header["config"])["model"]["preset"] == "llama_tiny"
    assert header["machine"]["threads"] >= 1
    steps = [line["step"] for line in rest if line["kind"] == "step"]
    assert steps == list(range(1, STEPS + 1))
    assert [line["step"] for line in rest if line["kind"] == "resume"] == [RESUMED]
    assert [line["eval_loss"] for line in rest if line["kind"] == "eval"] == [1.5]


class TagChecker(html.parser.HTMLParser):
    """Every opened tag is closed in order."""

    def __init__(self):
        super().__init__()
        self.open_tags, self.counts, self.links = [], {}, []

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.links += [value for name, value in attributes if name in ("src", "href")]
        self.open_tags.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open_tags.pop()

    def handle_endtag(self, tag):
        assert self.open_tags and self.open_tags.pop() == tag


def test_report_is_well_formed_and_needs_no_network(run_folder):
    checker = TagChecker()
    checker.feed((run_folder / "report.html").read_text())
    checker.close()
    assert checker.open_tags == []
    assert checker.links == []
    assert checker.counts["svg"] == 4
    assert "script" not in checker.counts
