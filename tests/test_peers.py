"""The comparison with other tools, in the parts that need none of them."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers.__main__ import NAMES, header, main, shown, size
from benchmarks.peers.environments import TOOLS, interpreter, requirements
from benchmarks.peers.running import LIMIT, OURS, Result, long_text, median, one, reason, run_script

RESULT = Result(model="e5-small", tokens=500, tool="bertviz", seconds=1.5, increase=146_000_000, weights=36_000_000)
JOB = {"name": "builtin:e5-small", "tokens": "5", "model": "none", "text": "我喜欢苹果"}


def test_a_missing_environment_is_one_line_that_says_how_to_make_it(tmp_path):
    with pytest.raises(SystemExit) as said:
        main(["run", "--folder", str(tmp_path)])
    line = str(said.value)
    assert line == f"{tmp_path} has no environment for bertviz: python -m benchmarks.peers setup --folder {tmp_path}"


def test_an_environment_of_other_versions_is_refused(tmp_path):
    python = tmp_path / "inseq" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    ready = tmp_path / "inseq" / ".ready"
    ready.write_text(requirements("inseq").read_text("utf-8"), "utf-8")
    assert interpreter("inseq", tmp_path) == python
    ready.write_text("inseq==0.6.0\n", "utf-8")
    with pytest.raises(SystemExit, match=r"other versions than requirements-inseq\.txt names: python -m"):
        interpreter("inseq", tmp_path)


@pytest.mark.parametrize("tool", TOOLS)
def test_every_environment_is_pinned_exactly_and_has_the_version_that_the_table_names(tool):
    lines = requirements(tool).read_text("utf-8").splitlines()
    assert all(line.count("==") == 1 for line in lines) and "torch==2.13.0" in lines
    name, version = NAMES[tool].lower().split()
    assert f"{name.replace('transformerlens', 'transformer-lens')}=={version}" in lines


def test_an_unknown_tool_is_refused_with_what_is_allowed(capsys):
    with pytest.raises(SystemExit):
        main(["setup", "--tools", "captum"])
    assert "invalid choice: 'captum' (choose from" in capsys.readouterr().err


def test_the_table_shows_numbers_or_the_tools_own_words():
    assert header().splitlines()[0].count("|") == shown(RESULT).count("|")
    assert shown(RESULT).startswith("| e5-small | 500 | BertViz 1.4.1 | all maps | 36,000,000 | 1.50 s | 146 MB | – |")
    assert "| 727 MB |" in shown(replace(RESULT, page=727_000_000))
    assert shown(replace(RESULT, error="MemoryError")).endswith("| 1.50 s | 146 MB | cannot: `MemoryError` |")
    failed = shown(replace(RESULT, seconds=None, error="ValueError: a | b"))
    assert "cannot: `ValueError: a / b`" in failed and failed.count("|") == shown(RESULT).count("|")


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (188_711, "189 kB"),
        (1_623, "1.62 kB"),
        (999_700, "1.00 MB"),
        (9_994_000, "9.99 MB"),
        (12_345_678, "12.3 MB"),
        (1.5e9, "1,500 MB"),
    ],
)
def test_sizes_have_three_digits(count, words):
    assert size(count) == words


def test_the_long_text_is_whole_sentences_and_then_as_much_as_fits():
    assert long_text(["苹果好吃", "我买苹果"], len, tokens=13) == "苹果好吃。我买苹果。苹果好"
    assert long_text(["苹果"], len, tokens=3) == "苹果。"


def test_medians_are_taken_of_several_runs_and_an_error_stands_for_all():
    runs = [replace(RESULT, seconds=seconds) for seconds in (3.0, 1.0, 2.0)]
    assert median(runs).seconds == 2.0 and median(runs).page_seconds is None
    assert median([*runs, replace(RESULT, error="no")]).error == "no"


def test_a_reason_is_the_last_line_of_an_error_or_how_the_process_ended():
    assert reason("Traceback\n  x\nValueError: no such model\n\n", 1) == "ValueError: no such model"
    assert len(reason("word " * 100, 1)) <= 120 and reason("", 2) == "exit code 2"
    assert reason("Killed", -9) == "killed by signal 9"


def test_a_script_that_fails_gives_a_line_with_its_reason_and_no_numbers():
    found = one("bertviz", Path(sys.executable), JOB)  # our interpreter has no bertviz
    assert found.error == "ModuleNotFoundError: No module named 'bertviz'"
    assert found.seconds is None and found.model == "e5-small"


def test_the_peers_scripts_load_nothing_of_ours_but_the_meter():
    told = (
        "import sys, benchmarks.peers.job; print([m for m in sys.modules if m.split('.')[0] in ('probe', 'finetune')])"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.real
def test_ours_is_measured_in_a_process_of_its_own():
    from probe.embedded import checkpoint

    job = {**JOB, "model": str(checkpoint("builtin:e5-small").folder), "target": "苹果", "occurrence": "1"}
    done = run_script(Path(sys.executable), f"{OURS}_run", job)
    assert done.returncode == 0, done.stderr
    said = {**json.loads(done.stdout.splitlines()[0]), **json.loads(done.stdout.splitlines()[-1])}
    assert said["weights"] == 12 * 12 * 1 * 5 and 0 < said["seconds"] < LIMIT and 10_000 < said["page"] < 5_000_000
