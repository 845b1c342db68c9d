"""Jobs done: every arm from its own run; what is done stays; what was killed goes on to the same numbers."""

import json
import shutil
import types
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from finetune.compare.items import COLUMNS, UNTRAINED
from finetune.compare.plan import plan_of, states_of
from finetune.compare.run import compare
from finetune.compare.settings import compare_of
from finetune.errors import TrainingError
from probe import load_model
from tests.comparisons import Counted, comparison, sentence_nats
from tests.finished import PAIRS

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
    found = compare(compare_of(given), folder=folder, measure=counted, device="cpu", **{"anew": True, **more})
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
    table = pd.read_parquet(compared.folder / "report" / "tables" / "items.parquet")
    wanted = compared.items.astype(table.dtypes.to_dict())  # numbers are kept in four bytes, names as categories
    pd.testing.assert_frame_equal(table, wanted, check_categorical=False)
    assert list(table.columns) == list(COLUMNS)
    named = {arm: list(rows.item) for arm, rows in table.groupby("arm")}
    assert set(named) == set(ARMS) and all(items == named["base"] for items in named.values())
    assert set(table.seed[table.arm.isin(["base", "gloss"])]) == {UNTRAINED}
    assert set(table.seed[table.arm.str.startswith("lora")]) == {0}


def test_an_arm_that_only_asks_otherwise_takes_what_is_known_of_its_weights(given, compared, tmp_path):
    copy, taken = copied(compared, tmp_path), {}

    def measure(opened, *, known, progress):
        taken[opened.arm.name] = len(known)
        return sentence_nats(opened, known=known, progress=progress)

    shutil.rmtree(copy / "jobs" / "gloss")
    shutil.rmtree(copy / "jobs" / "lora-0")
    found = compare(compare_of(given), folder=copy, measure=measure, device="cpu")
    assert taken == {"gloss": 4, "lora": 0} and found.items.equals(compared.items)
    for name in ("gloss", "base"):
        shutil.rmtree(copy / "jobs" / name)
    compare(compare_of(given), folder=copy, measure=measure, device="cpu", only=["gloss"])
    assert taken["gloss"] == 0  # nobody has measured these weights yet


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
    made = [path for kind in ("jobs", "runs") for path in compared.folder.glob(f"{kind}/*/*.*")]
    stamps = {path: path.stat().st_mtime_ns for path in made}
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


def test_what_other_settings_decided_is_not_replaced_by_oversight(given, compared, tmp_path):
    folder = copied(compared, tmp_path)
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    longer = {**given, "training": {**given["training"], "learning_rate": 0.02}}
    told = r"copy: 4 jobs were done with other settings, files or versions \(lora-0: run.training.learning_rate\); give"
    with pytest.raises(TrainingError, match=told):
        again(longer, folder, tmp_path, anew=False)
    with pytest.raises(TrainingError, match=r"2 jobs were done .* --anew to replace them"):
        again(longer, folder, tmp_path, anew=False, only=["lora-random"])
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == kept
    assert again(longer, folder, tmp_path, anew=False, only=["base", "gloss"])[0] == []  # which it does not decide


def test_what_is_trained_and_not_measured_is_told_and_what_changed_is_named(given, compared, tmp_path):
    folder = copied(compared, tmp_path)

    def states(**other):
        return {one.job.name: (one.state, one.reason) for one in states_of(plan_of(compare_of(given | other)), folder)}

    (folder / "jobs" / "lora-0" / "job.json").unlink()
    assert states()["lora-0"] == ("trained", "") and states()["lora-attention-0"] == ("done", "")
    assert states(seeds=[1])["lora-1"] == ("left", "")
    manifests = folder / "runs" / "lora-0" / "manifest.json"
    whole = manifests.read_text("utf-8")
    manifests.write_text("{}", encoding="utf-8")
    assert states()["lora-0"] == ("begun", "")
    manifests.write_text(whole, encoding="utf-8")
    rarer = states(lora={"r": 2, "dropout": 0.2})
    assert rarer["lora-0"] == ("changed", "run.lora.dropout") and rarer["base"] == ("done", "")
    assert states(senses="apple")["base"] == ("changed", "senses")
    shutil.rmtree(folder / "runs")  # as a committed comparison is, whose numbers are kept alone
    assert states(lora={"r": 3})["lora-attention-0"] == ("changed", "run")


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


def test_the_terms_of_the_base_outlive_its_runs(given, compared, tmp_path):
    folder = copied(compared, tmp_path)
    shutil.rmtree(folder / "runs")
    for file in folder.glob("jobs/*/job.json"):
        told = json.loads(file.read_text("utf-8"))
        assert told["origin"]["architecture"]
        file.write_text(json.dumps({**told, "origin": {**told["origin"], "licence": "MIT, say"}}), encoding="utf-8")
    names, _ = again(given, folder, tmp_path)
    terms = pd.read_csv(folder / "report" / "tables" / "terms.csv").query("role == 'base'")
    assert names == [] and terms.licence.tolist() == ["MIT, say"]


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


def test_a_damaged_manifest_of_a_run_is_told_with_what_to_remove(given, compared, tmp_path):
    folder = copied(compared, tmp_path)
    run = folder / "runs" / "lora-attention-0"
    for damaged in ("{", '{"steps": 3}', "[]"):
        (run / "manifest.json").write_text(damaged, encoding="utf-8")
        names, found = again(given, folder, tmp_path)
        reason = found.missing["lora-attention-0"]
        assert names == [] and "manifest.json" in reason and f"remove {run}" in reason
    shutil.rmtree(run)
    _, found = again(given, folder, tmp_path)
    assert not found.missing
    pd.testing.assert_frame_equal(found.items, compared.items)


# ---- killed ----------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """What no part of the program catches."""


def killed_at(stage, done):
    """A progress that kills the comparison when it comes there."""

    def tell(what, now, total):
        if stage in what and now == done:
            raise Killed

    return tell


@pytest.fixture(scope="module")
def often(given):
    """A comparison whose run has a checkpoint every second step."""
    saved = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    return {**given, "arms": ["base", "lora"], "training": {**given["training"], **saved}}


@pytest.fixture(scope="module")
def whole(often, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    return compare(compare_of(often), folder=folder, measure=sentence_nats, device="cpu")


@pytest.mark.parametrize(("stage", "done"), [("training", 1), ("training", 3), ("sentences", 4)])
def test_a_comparison_killed_in_a_job_goes_on_to_the_same_numbers(often, whole, tmp_path, stage, done):
    """Before the first checkpoint, behind it, and when the run is made and its numbers are not yet."""
    folder, place = tmp_path / "out", f"(lora-0), training: {stage}" if stage == "training" else f"(lora-0), {stage}"
    with pytest.raises(Killed):
        compare(compare_of(often), folder=folder, measure=sentence_nats, device="cpu", progress=killed_at(place, done))
    names, found = again(often, folder, tmp_path)
    assert names == ["lora:0"] and found.missing == {}
    assert same_tensors(adapter(folder, "lora-0"), adapter(whole.folder, "lora-0"))
    pd.testing.assert_frame_equal(found.items, whole.items)
    cost = json.loads((folder / "jobs" / "lora-0" / "cost.json").read_text("utf-8"))
    assert cost["training"]["sessions"] == (2 if done == 3 else 1)  # what had no checkpoint has no part in the run
