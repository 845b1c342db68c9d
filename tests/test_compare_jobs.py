"""Jobs done: every arm from its own run, killed ones gone on with, several processes, what failed and what needs it."""

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file

from finetune.__main__ import run as command
from finetune.begun import held
from finetune.compare.items import COLUMNS, UNTRAINED
from finetune.compare.plan import is_done, plan_of
from finetune.compare.run import compare
from finetune.compare.settings import compare_of
from finetune.errors import BusyError, ConfigError, TrainingError
from probe import load_model
from tests.comparisons import Counted, comparison, sentence_nats
from tests.finished import PAIRS
from tests.test_finetune_faults import small_files

ROOT = Path(__file__).resolve().parents[1]
ARMS = ["base", "gloss", "lora", "lora-attention", "lora-random", "lora-more-text"]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return comparison(tmp_path_factory.mktemp("given") / "files", arms=ARMS)


@pytest.fixture(scope="module")
def compared(given, tmp_path_factory):
    """All arms with one seed."""
    folder = tmp_path_factory.mktemp("compared") / "out"
    return compare(compare_of(given), folder=folder, measure=sentence_nats, device="cpu")


def again(given, folder, tmp_path, **more):
    """The same call once more: which jobs it measured, and what it found."""
    counted = Counted(tmp_path / "measured.txt")
    found = compare(compare_of(given), folder=folder, measure=counted, device="cpu", **more)
    return counted.names, found


def copied(compared, tmp_path):
    return Path(shutil.copytree(compared.folder, tmp_path / "copy"))


def manifest(folder, run):
    return json.loads((folder / "runs" / run / "manifest.json").read_text("utf-8"))


def adapter(folder, run):
    return load_file(folder / "runs" / run / "adapter_model.safetensors")


def same_tensors(one, other):
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


# ---- what every arm gives --------------------------------------------------------------------------------------


def test_every_arm_gives_the_same_items_and_they_stand_in_one_table(compared):
    assert compared.missing == {} and [one.state for one in compared.jobs] == ["done"] * 6
    table = pd.read_parquet(compared.folder / "tables" / "items.parquet")
    pd.testing.assert_frame_equal(table, compared.items)
    assert list(table.columns) == list(COLUMNS)
    named = {arm: list(rows.item) for arm, rows in table.groupby("arm")}
    assert set(named) == set(ARMS) and all(items == named["base"] for items in named.values())
    assert set(table.seed[table.arm.isin(["base", "gloss"])]) == {UNTRAINED}
    assert set(table.seed[table.arm.str.startswith("lora")]) == {0}


def test_each_arms_numbers_are_those_of_its_own_weights(given, compared):
    values = compared.items.pivot(index="item", columns="arm", values="value")
    base = load_model(given["model"], head="lm", device="cpu", dtype="float32")
    wanted = {one.item: one.value for one in sentence_nats(types.SimpleNamespace(loaded=base, model=base.model)).items}
    assert values.base.to_dict() == wanted
    assert (values.gloss == values.base).all()  # the stand-in puts no prompt, and the weights are the base's
    trained = values[["lora", "lora-attention", "lora-random", "lora-more-text"]]
    assert trained.sub(values.base, axis=0).abs().to_numpy().min() > 1e-6
    assert trained.T.drop_duplicates().shape[0] == 4  # no two alike


def test_the_control_has_the_heads_and_the_weight_of_the_supervised_arm_and_other_words(compared):
    true, control = (manifest(compared.folder, f"lora-{name}-0") for name in ("attention", "random"))
    assert true["config"]["attention"]["heads"] == "auto" and true["config"]["attention"]["weight"] == "auto"
    assert control["attention"]["heads"] == true["attention"]["heads"]
    assert control["attention"]["weight"] == true["attention"]["weight"] > 0
    assert control["attention"]["control"]["pairs"] > 0 and true["attention"]["control"] is None
    assert {**control["config"], "attention": None} == {**true["config"], "attention": None}
    assert manifest(compared.folder, "lora-0")["attention"] is None


def test_more_text_is_read_in_as_many_steps_as_the_text_alone(compared):
    plain, more = (manifest(compared.folder, name) for name in ("lora-0", "lora-more-text-0"))
    assert more["steps"] == plain["steps"] == more["planned_steps"]
    assert more["records"]["train"] > plain["records"]["train"]
    assert len(more["config"]["data"]["train"]) == 2


def test_a_job_says_what_decided_it_and_what_it_cost(given, compared):
    job = plan_of(compare_of(given)).job("lora-0")
    told = json.loads((compared.folder / "jobs" / "lora-0" / "job.json").read_text("utf-8"))
    assert told["hash"] == job.hash and told["decided_by"] == json.loads(json.dumps(job.measured_by))
    assert set(told["files"]) == {"items.parquet", "maps.parquet", "written.parquet", "cost.json"}
    costs = compared.costs.set_index("arm")
    trained = sum(tensor.numel() for tensor in adapter(compared.folder, "lora-0").values())
    assert costs.trainable.to_dict() == {name: trained if name.startswith("lora") else 0 for name in ARMS}
    assert set(costs.prompt_tokens) == {3.5} and (costs.memory_mb > 50).all()
    cost = json.loads((compared.folder / "jobs" / "lora-0" / "cost.json").read_text("utf-8"))
    assert cost["seconds"] == pytest.approx(cost["training"]["wall_seconds"] + cost["measuring"]["wall_seconds"])
    assert cost["training"]["sessions"] == 1 and 0 < cost["training"]["cpu_seconds"] < 100
    assert json.loads((compared.folder / "jobs" / "base" / "cost.json").read_text())["training"]["wall_seconds"] == 0


# ---- what is done stays ----------------------------------------------------------------------------------------


def test_the_same_call_again_does_nothing(given, compared, tmp_path):
    stamps = {path: path.stat().st_mtime_ns for path in compared.folder.glob("*/*/*.*")}
    assert len(stamps) > 40
    names, found = again(given, compared.folder, tmp_path)
    assert names == [] and stamps == {path: path.stat().st_mtime_ns for path in stamps}
    pd.testing.assert_frame_equal(found.items, compared.items)


def test_other_pairs_train_the_arms_that_read_them_anew_and_leave_the_other_runs(given, compared, tmp_path):
    """All are measured again, for attention on the pairs is an item of every arm."""
    folder = copied(compared, tmp_path)
    pairs = tmp_path / "pairs.yaml"
    pairs.write_text(PAIRS + "  - {query: 公司, key: 发布}\n", encoding="utf-8")
    before = {run: adapter(folder, run) for run in ("lora-0", "lora-attention-0", "lora-more-text-0")}
    kept = {run: (folder / "runs" / run / "manifest.json").stat().st_mtime_ns for run in before}
    names, found = again({**given, "pairs": {"file": str(pairs), "direction": "either"}}, folder, tmp_path)
    assert len(names) == 6 and found.missing == {}
    for run in before:
        reads_pairs = run == "lora-attention-0"
        assert same_tensors(adapter(folder, run), before[run]) is not reads_pairs
        assert ((folder / "runs" / run / "manifest.json").stat().st_mtime_ns == kept[run]) is not reads_pairs
    control, true = (manifest(folder, f"lora-{name}-0")["attention"] for name in ("random", "attention"))
    assert control["weight"] == true["weight"] and control["heads"] == true["heads"]


def test_a_changed_setting_of_one_arm_redoes_that_arm_alone(given, compared, tmp_path):
    folder = copied(compared, tmp_path)
    lines = Path(given["glosses"]).read_text("utf-8")
    other = tmp_path / "glosses.jsonl"
    other.write_text(lines + "\n", encoding="utf-8")
    names, _ = again({**given, "glosses": str(other)}, folder, tmp_path)
    assert names == ["gloss:-1"]
    names, found = again({**given, "arms": ["base", "lora"]}, folder, tmp_path)
    assert names == [] and set(found.items.arm) == {"base", "lora"}  # what was left out stays, and is not told of


def test_numbers_that_somebody_touched_are_made_anew_and_removed_runs_leave_theirs(given, compared, tmp_path):
    folder = copied(compared, tmp_path)
    items = folder / "jobs" / "lora-0" / "items.parquet"
    items.write_bytes(items.read_bytes()[:-1] + b"\0")
    (folder / "jobs" / "gloss" / "job.json").write_text("{", encoding="utf-8")
    shutil.rmtree(folder / "runs" / "lora-random-0")  # to save room
    names, found = again(given, folder, tmp_path)
    assert names == ["gloss:-1", "lora:0"]
    pd.testing.assert_frame_equal(found.items, compared.items)


def test_a_run_that_was_made_anew_makes_those_that_follow_it_anew(given, compared, tmp_path):
    """Where the supervised arm comes to another weight, its control has to have that one too."""
    folder = copied(compared, tmp_path)
    file = folder / "runs" / "lora-attention-0" / "manifest.json"
    told = json.loads(file.read_text("utf-8"))
    told["attention"]["weight"] *= 2
    file.write_text(json.dumps(told), encoding="utf-8")
    names, _ = again(given, folder, tmp_path)
    assert names == ["lora-attention:0", "lora-random:0"]
    assert manifest(folder, "lora-random-0")["attention"]["weight"] == told["attention"]["weight"]


# ---- killed ----------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """What no part of the program catches."""


def killed_at(stage, done):
    """A progress that kills the comparison when it comes there."""

    def tell(what, now, total):
        if stage in what and now == done:
            raise Killed

    return tell


@pytest.mark.parametrize(
    ("stage", "done"),
    [("(lora-0), training: training", 1), ("(lora-0), training: training", 3), ("(lora-0), sentences", 4)],
)
def test_a_comparison_killed_in_a_job_goes_on_to_the_same_numbers(given, compared, tmp_path, stage, done):
    """Before the first checkpoint, behind it, and when the run is made and its numbers are not yet."""
    often = {**given["training"], "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    mine, folder = {**given, "arms": ["base", "lora"], "training": often}, tmp_path / "out"
    whole = compare(compare_of(mine), folder=tmp_path / "whole", measure=sentence_nats, device="cpu")
    with pytest.raises(Killed):
        compare(compare_of(mine), folder=folder, measure=sentence_nats, device="cpu", progress=killed_at(stage, done))
    state = {one["name"]: one["state"] for one in json.loads((folder / "plan.json").read_text("utf-8"))["jobs"]}
    assert state == {"base": "left", "lora-0": "left"}  # as it was when the call began
    names, found = again(mine, folder, tmp_path)
    assert names == ["lora:0"]
    assert same_tensors(adapter(folder, "lora-0"), adapter(tmp_path / "whole", "lora-0"))
    pd.testing.assert_frame_equal(found.items, whole.items)
    cost = json.loads((folder / "jobs" / "lora-0" / "cost.json").read_text("utf-8"))
    assert cost["training"]["sessions"] == (2 if done == 3 else 1)  # what had no checkpoint has no part in the run


# ---- several processes -----------------------------------------------------------------------------------------


def test_two_processes_share_the_jobs_and_none_is_done_twice(given, compared, tmp_path):
    """Both are told to do all; at the end the table is the one that a single process makes."""
    mine, log, folder = {**given, "arms": ARMS[2:] + ["base"]}, tmp_path / "measured.txt", tmp_path / "out"
    (tmp_path / "given.json").write_text(json.dumps(mine), encoding="utf-8")
    code = (
        "import json, sys; from pathlib import Path\n"
        "from finetune.compare.run import compare; from finetune.compare.settings import compare_of\n"
        "from tests.comparisons import Counted\n"
        "compare(compare_of(json.loads(Path(sys.argv[1]).read_text())), folder=Path(sys.argv[2]), device='cpu',\n"
        "        measure=Counted(Path(sys.argv[3])))"
    )
    asked = [sys.executable, "-c", code, *map(str, (tmp_path / "given.json", folder, log))]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    both = [subprocess.Popen(asked, env=settings, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(one.communicate()[1], one.returncode)[1] for one in both] == [0, 0]
    assert sorted(log.read_text("utf-8").split()) == sorted(
        ["base:-1", "lora:0", "lora-attention:0", "lora-random:0", "lora-more-text:0"]
    )
    log.unlink()
    names, found = again(mine, folder, tmp_path)
    assert names == [] and found.missing == {}
    wanted = compared.items[compared.items.arm != "gloss"].reset_index(drop=True)
    pd.testing.assert_frame_equal(found.items, wanted)


def test_a_job_that_another_process_holds_is_left_to_it_and_the_others_are_done(given, tmp_path):
    folder = tmp_path / "out"
    with held(folder / "jobs" / "lora-0", "worked on"):
        (folder / "plan.json").write_text("{}", encoding="utf-8")
        names, found = again({**given, "arms": ["base", "gloss", "lora"]}, folder, tmp_path)
    assert names == ["base:-1", "gloss:-1"] and found.missing == {"lora-0": "another process is at work on it"}
    assert set(found.items.arm) == {"base", "gloss"}


def test_a_run_that_another_process_makes_is_waited_for(given, compared, tmp_path):
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
                shutil.copytree(compared.folder / name, folder / name, dirs_exist_ok=True)
            shutil.rmtree(folder / "runs" / "lora-more-text-0")
            other.__exit__(None, None, None)

    mine = {**given, "arms": ["base", "lora", "lora-more-text"]}
    names, found = again(mine, folder, tmp_path, only=["lora-more-text:0"], progress=tell)
    assert heard == ["waiting for another process: lora-0"] and names == ["lora-more-text:0"]
    assert is_done(plan_of(compare_of(mine)).job("lora-0"), folder)
    assert found.missing == {"base": "not done yet"} and not (folder / "tables").exists()


def test_only_one_job_is_done_with_the_run_that_it_needs_and_a_last_call_gathers(given, compared, tmp_path):
    folder = tmp_path / "out"
    mine = {**given, "arms": ["base", "lora-random"]}
    names, found = again(mine, folder, tmp_path, only=["lora-random:0"])
    assert names == ["lora-random:0"] and not (folder / "tables").exists()
    assert sorted(path.name for path in (folder / "runs").iterdir() if path.is_dir()) == [
        "lora-attention-0",
        "lora-random-0",
    ]
    names, found = again(mine, folder, tmp_path)
    assert names == ["base:-1"] and set(found.items.arm) == {"base", "lora-random"}
    wanted = compared.items[compared.items.arm.isin(["base", "lora-random"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(found.items, wanted)


# ---- what fails ------------------------------------------------------------------------------------------------


def test_a_job_that_fails_is_told_with_those_that_need_it_and_the_others_go_on(given, compared, tmp_path):
    folder = tmp_path / "out"
    mine = {
        **given,
        "arms": ["base", "lora-attention", "lora-random", "lora"],
        "attention": {"layers": [7], "norms_every": 0},
    }
    names, found = again(mine, folder, tmp_path)
    assert names == ["base:-1", "lora:0"]
    why = found.missing["lora-attention-0"]
    assert "attention.layers [7]: this model has layers 0 to 2" in why
    assert found.missing["lora-random-0"] == f"needs the run of lora-attention-0: {why}"
    states = {one.job.name: (one.state, one.reason) for one in found.jobs}
    assert states["lora-attention-0"] == ("failed", why) and states["lora-random-0"][0] == "left"
    names, found = again({**given, "arms": mine["arms"]}, folder, tmp_path)  # mended
    assert names == ["lora-attention:0", "lora-random:0"] and found.missing == {}


def test_a_number_that_is_none_fails_its_job_by_the_items_name(given, tmp_path):
    def spoilt(opened, /, *, progress=None):
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
        found = compare(mine, folder=folder, measure=sentence_nats, device="cpu")
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
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_run_that_no_comparison_made_is_not_taken_nor_removed(given, tmp_path):
    folder = tmp_path / "out"
    (folder / "runs" / "lora-0").mkdir(parents=True)
    (folder / "runs" / "lora-0" / "mine.txt").write_text("keep")
    (folder / "plan.json").write_text("{}")
    found = compare(compare_of({**given, "arms": ["base", "lora"]}), folder=folder, measure=sentence_nats, device="cpu")
    assert "lora-0 is no run of this comparison: remove it" in found.missing["lora-0"]
    assert (folder / "runs" / "lora-0" / "mine.txt").read_text() == "keep"


def test_several_processes_of_one_run_are_refused(given, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="start it without torchrun"):
        compare(compare_of(given), folder=tmp_path / "out", measure=sentence_nats)


def test_a_held_folder_is_an_error_of_its_own(tmp_path):
    with held(tmp_path / "a", "worked on"), pytest.raises(BusyError, match="being trained by another"):
        with held(tmp_path / "a", "trained"):
            pass


# ---- the command -----------------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch):
    """The command measures with the stand-in."""
    module = types.ModuleType("stand_in")
    module.measurer = lambda config, folder, device: sentence_nats
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
    assert "missing" not in said.err and said.out.rstrip().endswith(str(out))
    assert len(pd.read_parquet(out / "tables" / "items.parquet")) == 12
    for wrong, why in (
        (["--only", "lra"], "--only lra: no such job"),
        (["--set", "lora.rank=3"], "lora.rank: unknown key"),
        (["--set", "seeds=[1, 1]"], "seeds: 1 is named 2 times"),
    ):
        assert command([*asked, *wrong]) == 2
        assert why in capsys.readouterr().err
    assert command([*asked, "--set", "attention.layers=[7]", "--set", "arms=[base, lora-attention]"]) == 2
    said = capsys.readouterr().err
    assert "this model has layers 0 to 2" in said and "1 jobs failed (lora-attention-0)" in said
