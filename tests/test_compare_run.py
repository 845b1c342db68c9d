"""A comparison run: several processes, chosen jobs, what failed and what needs it, the command."""

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pandas as pd
import pytest
import yaml

from finetune.__main__ import run as command
from finetune.begun import held
from finetune.compare.plan import is_done, plan_of
from finetune.compare.run import compare
from finetune.compare.settings import compare_of
from finetune.errors import BusyError, ConfigError, TrainingError
from probe import CijingError
from tests.comparisons import Counted, comparison, sentence_nats
from tests.test_finetune_faults import small_files
from tests.tiny import tiny_bert

ROOT = Path(__file__).resolve().parents[1]
ARMS = ["base", "lora", "lora-attention", "lora-random"]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return comparison(tmp_path_factory.mktemp("given") / "files", arms=ARMS)


def again(given, folder, tmp_path, **more):
    """The same call once more: which jobs it measured, and what it found."""
    counted = Counted(tmp_path / "measured.txt")
    found = compare(compare_of(given), folder=folder, measure=counted, device="cpu", **more)
    return counted.names, found


# ---- several processes -----------------------------------------------------------------------------------------

OTHER = """
import json, sys
from pathlib import Path
from finetune.compare.run import compare
from finetune.compare.settings import compare_of
from tests.comparisons import Counted
import peft, datasets
given = compare_of(json.loads(Path(sys.argv[1]).read_text("utf-8")))
print("ready", flush=True)
compare(given, folder=Path(sys.argv[2]), measure=Counted(Path(sys.argv[3])), device="cpu")
"""


@pytest.fixture(scope="module")
def shared(given, tmp_path_factory):
    """A comparison of which two processes were told to do all; its folder, and what they measured."""
    place = tmp_path_factory.mktemp("shared")
    log, folder = place / "measured.txt", place / "out"
    (place / "given.json").write_text(json.dumps(given), encoding="utf-8")
    asked = [sys.executable, "-c", OTHER, *map(str, (place / "given.json", folder, log))]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(asked, env=settings, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "ready\n"
        compare(compare_of(given), folder=folder, measure=Counted(log), device="cpu")
        other.communicate()
    assert other.returncode == 0
    return folder, Counted(log).names


def test_two_processes_share_the_jobs_and_none_is_done_twice(given, shared, tmp_path):
    folder, measured = shared
    assert sorted(measured) == ["base:-1", "lora-attention:0", "lora-random:0", "lora:0"]
    names, found = again(given, folder, tmp_path)
    assert names == [] and found.missing == {} and set(found.items.arm) == set(ARMS)


def test_a_job_that_another_process_holds_is_left_to_it_and_the_others_are_done(given, tmp_path):
    folder = tmp_path / "out"
    with held(folder / "jobs" / "lora-0", "worked on"):
        (folder / "plan.json").write_text("{}", encoding="utf-8")
        names, found = again({**given, "arms": ["base", "gloss", "lora"]}, folder, tmp_path)
    assert names == ["base:-1", "gloss:-1"] and found.missing == {"lora-0": "another process is at work on it"}
    assert set(found.items.arm) == {"base", "gloss"}


def test_a_run_that_another_process_makes_is_waited_for(given, shared, tmp_path):
    """The other process ends while this one waits: its lock goes, its run is there."""
    folder, heard = tmp_path / "out", []
    folder.mkdir()
    (folder / "plan.json").write_text("{}", encoding="utf-8")
    other = held(folder / "jobs" / "lora-0", "worked on")
    other.__enter__()

    def tell(stage, done, total):
        if stage.startswith("waiting"):
            heard.append(stage)
            for name in ("runs", "jobs/lora-0"):
                shutil.copytree(shared[0] / name, folder / name, dirs_exist_ok=True)
            other.__exit__(None, None, None)

    mine = {**given, "arms": ["base", "lora", "lora-rag"]}
    names, found = again(mine, folder, tmp_path, only=["lora-rag:0"], progress=tell)
    assert heard == ["waiting for another process: lora-0"] and names == ["lora-rag:0"]
    assert is_done(plan_of(compare_of(mine)).job("lora-0"), folder)
    assert found.missing == {"base": "not done yet"} and not (folder / "report").exists()


def test_only_one_job_is_done_with_the_run_that_it_needs_and_a_last_call_gathers(given, shared, tmp_path):
    folder = tmp_path / "out"
    mine = {**given, "arms": ["base", "lora-random"]}
    names, found = again(mine, folder, tmp_path, only=["lora-random:0"])
    assert names == ["lora-random:0"] and not (folder / "report").exists()
    assert sorted(path.name for path in (folder / "runs").iterdir() if path.is_dir()) == [
        "lora-attention-0",
        "lora-random-0",
    ]
    names, found = again(mine, folder, tmp_path)
    assert names == ["base:-1"] and set(found.items.arm) == {"base", "lora-random"}
    _, by_two = again(given, shared[0], tmp_path)  # the numbers are those of two processes
    wanted = by_two.items[by_two.items.arm.isin(["base", "lora-random"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(found.items, wanted)


# ---- what fails ------------------------------------------------------------------------------------------------


def test_a_job_that_fails_is_told_with_those_that_need_it_and_the_others_go_on(given, tmp_path):
    """A folder that no comparison made stands where a run is to be: it is not taken, and not removed."""
    folder = tmp_path / "out"
    (folder / "runs" / "lora-0").mkdir(parents=True)
    (folder / "runs" / "lora-0" / "mine.txt").write_text("keep")
    (folder / "plan.json").write_text("{}")
    mine = {**given, "arms": ["base", "lora", "lora-attention", "lora-rag"]}
    names, found = again(mine, folder, tmp_path)
    assert names == ["base:-1", "lora-attention:0"]
    why = found.missing["lora-0"]
    assert why.endswith("lora-0 is no run of this comparison: remove it, or give another --out")
    assert found.missing == {"lora-0": why, "lora-rag-0": f"needs the run of lora-0: {why}"}
    states = {one.job.name: (one.state, one.reason) for one in found.jobs}
    assert states["lora-0"] == ("failed", why) and states["lora-rag-0"] == ("left", "")
    assert (folder / "runs" / "lora-0" / "mine.txt").read_text() == "keep"
    shutil.rmtree(folder / "runs" / "lora-0")
    names, found = again(mine, folder, tmp_path)
    assert names == ["lora:0", "lora-rag:0"] and found.missing == {}
    assert {one.state for one in found.jobs} == {"done"}


def test_a_number_that_is_none_fails_its_job_by_the_items_name(given, tmp_path):
    def spoilt(opened, /, *, known=(), progress=None):
        found = sentence_nats(opened)
        wrong = [type(one)(**{**vars(one), "value": float("nan")}) for one in found.items[:1]]
        return types.SimpleNamespace(**{**vars(found), "items": [*wrong, *found.items[1:]]})

    mine = compare_of({**given, "arms": ["base", "gloss"]})
    found = compare(mine, folder=tmp_path / "out", measure=spoilt, device="cpu")
    assert "base: perplexity, test, of 我喜欢苹果 is nan, no number" in found.missing["base"]
    assert not (tmp_path / "out" / "jobs" / "base" / "job.json").exists() and len(found.items) == 0


def test_a_full_disk_leaves_no_half_job(given, tmp_path):
    mine, folder = compare_of({**given, "arms": ["base", "lora"]}), tmp_path / "out"
    with small_files(20_000):
        found = compare(mine, folder=folder, measure=sentence_nats, only=["base", "lora"], device="cpu")
    assert "cannot be written" in found.missing["lora-0"]
    names, found = again({**given, "arms": ["base", "lora"]}, folder, tmp_path)
    assert names == ["lora:0"] and found.missing == {}


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(given, tmp_path):
    config = compare_of(given)
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(TrainingError, match="is not empty and holds no comparison"):
        compare(config, folder=tmp_path, measure=sentence_nats)
    with pytest.raises(TrainingError, match="is a file: give another --out"):
        compare(config, folder=tmp_path / "mine.txt", measure=sentence_nats)
    with pytest.raises(TrainingError, match="cannot be written"):
        compare(config, folder=tmp_path / "mine.txt" / "out", measure=sentence_nats)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_model_that_no_job_could_do_with_is_told_before_any_is_begun(given, tmp_path):
    tiny_bert(tmp_path)
    for model, why in ((str(tmp_path / "none"), "none"), (str(tmp_path / "bert"), "causal-lm")):
        with pytest.raises(CijingError, match=why):
            compare(compare_of({**given, "model": model}), folder=tmp_path / "out", measure=sentence_nats)
    assert not (tmp_path / "out").exists()


def test_several_processes_of_one_run_are_refused(given, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="start it without torchrun"):
        compare(compare_of(given), folder=tmp_path / "out", measure=sentence_nats)


def test_a_held_folder_is_an_error_of_its_own(tmp_path):
    other = held(tmp_path / "a", "trained")
    with held(tmp_path / "a", "worked on"), pytest.raises(BusyError, match="being trained by another"):
        other.__enter__()


# ---- the command -----------------------------------------------------------------------------------------------


class Asks:
    """The stand-in with nothing to ask."""

    questions, passages = (), {}

    def __call__(self, opened, /, *, known, progress):
        return sentence_nats(opened, known=known, progress=progress)


@pytest.fixture
def measured(monkeypatch):
    """The command measures with the stand-in."""
    module = types.ModuleType("stand_in")
    module.measurer = lambda config, folder, device: Asks()
    monkeypatch.setitem(sys.modules, "finetune.compare.materials", module)


def test_the_command_plans_does_one_job_does_all_and_says_what_is_missing(given, tmp_path, capsys, measured):
    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump({**given, "arms": ["base", "gloss", "lora"]}, allow_unicode=True), encoding="utf-8")
    asked = ["compare", str(file), "--out", str(out), "--device", "cpu"]
    assert command([*asked, "--plan"]) == 0
    said = capsys.readouterr().out
    assert (
        "run and numbers" in said and said.count("left") == 3 and [path.name for path in out.iterdir()] == ["plan.json"]
    )
    assert command([*asked, "--only", "gloss", "--only", "base"]) == 0
    said = capsys.readouterr()
    assert "missing: lora-0: not done yet" in said.err and said.out.count("done") == 2
    assert command(["compare", str(out / "plan.json"), "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "missing" not in said.err and said.out.rstrip().endswith(str(out / "report" / "report.html"))
    assert "困惑度（测试）：LoRA与原模型，差值" in said.out  # four sentences are too few for an interval
    assert len(pd.read_parquet(out / "report" / "tables" / "items.parquet")) == 12
    page = (out / "report" / "report.html").read_text("utf-8")
    assert "glosses glosses.jsonl" in page and str(Path(given["model"]).parent) not in page
    for wrong, why in (
        (["--only", "lra"], "--only lra: no such job"),
        (["--set", "lora.rank=3"], "lora.rank: unknown key"),
        (["--set", "seeds=[1, 1]"], "seeds: 1 is named 2 times"),
    ):
        assert command([*asked, *wrong]) == 2
        assert why in capsys.readouterr().err
    assert command([*asked, "--set", "attention.layers=[7]", "--set", "arms=[base, lora-attention]"]) == 2
    said = capsys.readouterr().err
    assert "this model has layers 0 to 2" in said and "1 job failed (lora-attention-0)" in said
