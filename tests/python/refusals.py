"""What all tests of errors share: a refusal has exit code 2 and the words that help, and nothing is half-written."""
from small_runs import snapshot

USER_ERROR = 2


def expect_refusal(run, done, before, *words):
    assert done.returncode == USER_ERROR, done.stdout + done.stderr
    assert done.stderr.startswith("longspan: error: ") or "\nlongspan: error: " in done.stderr, done.stderr
    for word in words:
        assert word in done.stderr, f"no '{word}' in: {done.stderr}"
    after = snapshot(run.folder)
    assert sorted(after) == sorted(before), "files appeared or went"
    assert after == before


def refuse(run, *words, overrides=()):
    """Training is refused with these words, and nothing below the folder changes."""
    before = snapshot(run.folder)
    expect_refusal(run, run.try_train(*overrides), before, *words)
