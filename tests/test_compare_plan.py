"""The plan of a comparison: jobs in an order that works, what decides each of them, what is left in a folder."""

import json
from pathlib import Path

import pytest

from finetune.compare.arms import ARMS
from finetune.compare.deciding import file_hash
from finetune.compare.plan import hash_of, learned_by, plan_of, rows_of, save_plan, selected, states_of, with_needed
from finetune.compare.reporting import facts_of
from finetune.compare.settings import compare_of, load_compare
from finetune.errors import ConfigError, DataError
from tests.comparisons import comparison, more_texts
from tests.finished import PAIRS, lines, texts

ALL_BUT_FULL = [name for name in ARMS if name != "full"]


@pytest.fixture
def given(tmp_path):
    return comparison(tmp_path / "given", arms=ALL_BUT_FULL, seeds=[0, 1])


def hashes(given):
    """What decides each job's run and numbers."""
    return {job.name: (job.run_hash, job.hash) for job in plan_of(compare_of(given)).jobs}


def changed(before, after):
    """Jobs whose run, and jobs whose numbers, other things decide now."""
    assert list(before) == list(after)
    return tuple({name for name in before if before[name][place] != after[name][place]} for place in (0, 1))


def of_arms(*arms):
    return {f"{arm}-{seed}" for arm in arms for seed in (0, 1)}


def test_every_job_stands_behind_those_it_needs_and_an_arm_without_training_has_one(given):
    jobs = plan_of(compare_of(given)).jobs
    names = [job.name for job in jobs]
    assert names[:4] == ["base", "gloss", "edge-bias", "rag"]
    assert len(names) == 4 + 2 * 6 and names.index("lora-rag-0") < names.index("lora-1")
    assert all(names.index(needed) < names.index(job.name) for job in jobs for needed in job.needs)
    needs = {job.name: job.needs for job in jobs if job.seed == 1}
    assert needs == {
        "lora-1": (), "lora-attention-1": (), "lora-random-1": ("lora-attention-1",), "lora-more-text-1": ("lora-1",),
        "lora-rag-1": ("lora-1",), "lora-attention-rag-1": ("lora-attention-1",),
    }  # fmt: skip


def test_a_run_that_only_another_arm_needs_is_planned_and_not_compared(given):
    jobs = {job.name: job for job in plan_of(compare_of({**given, "arms": ["base", "lora-random"], "seeds": 3})).jobs}
    assert list(jobs) == ["base", "lora-attention-3", "lora-random-3"]
    assert [job.compared for job in jobs.values()] == [True, False, True]


# ---- what decides ----------------------------------------------------------------------------------------------


def test_the_same_file_gives_the_same_hashes_wherever_its_results_lie(given):
    assert hashes(given) == hashes({**given, "out": "elsewhere"})


def test_other_pairs_redo_the_runs_that_read_them_and_measure_all_arms_on_them(given):
    before = hashes(given)
    Path(given["pairs"]["file"]).write_text(PAIRS + "  - {query: 牛顿, key: 砸中}\n", encoding="utf-8")
    runs, numbers = changed(before, hashes(given))
    assert runs == of_arms("lora-attention", "lora-random")
    assert numbers == set(before)  # the attention on pairs is an item of every arm


def test_another_loss_on_attention_concerns_the_arms_that_have_one(given):
    before = hashes(given)
    runs, numbers = changed(before, hashes({**given, "attention": {**given["attention"], "threshold": 0.5}}))
    assert runs == of_arms("lora-attention", "lora-random")
    assert numbers == of_arms("lora-attention", "lora-random", "lora-attention-rag")


def test_another_adapter_or_training_concerns_the_trained_arms(given):
    before = hashes(given)
    trained = of_arms("lora", "lora-attention", "lora-random", "lora-more-text")
    for change in ({"lora": {"r": 3}}, {"training": {**given["training"], "learning_rate": 1e-3}}):
        runs, numbers = changed(before, hashes({**given, **change}))
        assert runs == trained and numbers == trained | of_arms("lora-rag", "lora-attention-rag")


def test_files_of_one_name_have_a_row_each(given, tmp_path):
    (tmp_path / "other").mkdir()
    lines(tmp_path / "other" / "test.jsonl", texts("test", 4))
    both = [given["data"]["test"], str(tmp_path / "other" / "test.jsonl")]
    plan = plan_of(compare_of({**given, "data": {**given["data"], "test": both}}))
    told = facts_of(plan, (), tmp_path, done=plan.jobs[:1], language="zh").inputs
    assert [told[f"test.jsonl ({number})"] for number in (1, 2)] == [file_hash(Path(file)) for file in both]
    assert "train.jsonl" in told and "questions questions.jsonl" in told


def test_what_one_arm_is_asked_with_concerns_that_arm_alone(given):
    before = hashes(given)
    assert changed(before, hashes({**given, "edge_bias": 3.0})) == (set(), {"edge-bias"})
    with_passages = {"rag"} | of_arms("lora-rag", "lora-attention-rag")
    assert changed(before, hashes({**given, "passages": {"k": 1}})) == (set(), with_passages)
    assert changed(before, hashes({**given, "documents": [given["more_text"]]})) == (set(), with_passages)
    Path(given["glosses"]).write_text('{"word": "苹果", "gloss": "公司"}\n', encoding="utf-8")
    assert changed(before, hashes(given)) == (set(), {"gloss"})


def test_further_texts_concern_the_arm_that_reads_them(given):
    before = hashes(given)
    lines(Path(given["more_text"]), more_texts(25))
    assert changed(before, hashes(given)) == (of_arms("lora-more-text"),) * 2


def test_other_questions_and_general_texts_are_measured_anew_and_train_nothing(given):
    before = hashes(given)
    for name in ("questions", "general"):
        file = Path(given[name])
        kept = file.read_text("utf-8")
        file.write_text(kept + "\n", encoding="utf-8")
        assert changed(before, hashes(given)) == (set(), set(before))
        file.write_text(kept, encoding="utf-8")
    assert hashes(given) == before


def test_other_weights_of_a_local_model_or_other_texts_redo_everything(given):
    before = hashes(given)
    all_runs = of_arms("lora", "lora-attention", "lora-random", "lora-more-text")
    lines(Path(given["data"]["train"]), texts("train", 20))
    after = hashes(given)
    assert changed(before, after) == (all_runs, set(before))
    weights = Path(given["model"]) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert changed(after, hashes(given)) == (all_runs, set(before))


def test_another_version_of_what_computes_redoes_everything_but_a_builds_mark_does_not(given, monkeypatch):
    import importlib.metadata

    real = importlib.metadata.version
    before = hashes(given)
    marked = {"torch": real("torch").partition("+")[0] + "+cu126"}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: marked.get(name) or real(name))
    assert hashes(given) == before
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9" if name == "peft" else real(name))
    assert changed(before, hashes(given))[1] == set(before)


def test_the_hash_is_of_what_is_said_and_not_of_its_order():
    assert hash_of({"a": 1, "b": [2]}) == hash_of({"b": [2], "a": 1}) != hash_of({"a": 1, "b": [3]})


@pytest.mark.parametrize("name", ["questions", "general", "glosses", "documents", "senses"])
def test_a_file_that_is_not_there_is_named_before_anything_is_done(given, name, tmp_path):
    with pytest.raises(DataError, match=rf"{name}: .*nowhere\.jsonl is not there"):
        plan_of(compare_of({**given, name: str(tmp_path / "nowhere.jsonl")}))


# ---- chosen, saved ---------------------------------------------------------------------------------------------


def test_only_names_arms_or_one_seed_of_an_arm_and_takes_along_the_runs_they_need(given):
    plan = plan_of(compare_of(given))

    def named(*only):
        chosen = selected(plan, only)
        return [job.name for job in chosen], [job.name for job in with_needed(plan, chosen)]

    assert named("lora-random:1") == (["lora-random-1"], ["lora-attention-1", "lora-random-1"])
    assert named("lora", "base")[0] == ["base", "lora-0", "lora-1"]
    assert named("base:1")[0] == ["base"]  # it has one job, for all seeds
    assert named("lora-rag:0", "lora-more-text:0")[1] == ["lora-0", "lora-more-text-0", "lora-rag-0"]
    assert named()[0] == [job.name for job in plan.jobs]
    for wrong in ("lora:7", "lorra", "lora:", "lora:x"):
        with pytest.raises(ConfigError, match=f"--only {wrong}: no such job; allowed are ARM or ARM:SEED of b"):
            selected(plan, [wrong])


def test_the_plan_is_written_whole_and_is_itself_a_file_of_the_comparison(given, tmp_path):
    plan, folder = plan_of(compare_of(given)), tmp_path / "out"
    save_plan(plan, folder)
    assert [path.name for path in folder.iterdir()] == ["plan.json"]
    told = json.loads((folder / "plan.json").read_text("utf-8"))
    assert {one["name"]: (one["state"], one["hash"]) for one in told["jobs"]} == {
        job.name: ("left", job.hash) for job in plan.jobs
    }
    again = load_compare(folder / "plan.json")
    assert again.folder == folder and hashes(
        {**again.model_dump(exclude={"attention"}), "attention": given["attention"]}
    )
    assert [job.hash for job in plan_of(again).jobs] == [job.hash for job in plan.jobs]
    columns, rows = rows_of(states_of(plan, folder))
    assert len(rows) == len(plan.jobs) and len(columns) == 4
    assert rows[0] == ["base", "numbers", "", "left"]
    assert ["lora-random-0", "run and numbers", "lora-attention-0", "left"] in rows


def test_what_a_run_takes_from_another_is_in_the_others_manifest(given, tmp_path):
    plan = plan_of(compare_of(given))
    control, longer = plan.job("lora-random-1"), plan.job("lora-more-text-0")
    assert learned_by(plan.job("lora-0"), tmp_path) == {} and learned_by(control, tmp_path) is None
    for name, told in (
        ("lora-attention-1", {"attention": {"heads": {"1": [0, 2], "2": [3]}, "weight": 0.125}}),
        ("lora-0", {"steps": 17, "labels": []}),
    ):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "manifest.json").write_text(json.dumps(told), encoding="utf-8")
    assert learned_by(control, tmp_path) == {
        "attention.heads": [[1, 0], [1, 2], [2, 3]], "attention.layers": "last_third", "attention.weight": 0.125,
    }  # fmt: skip
    assert learned_by(longer, tmp_path) == {"training.max_steps": 17, "early_stopping": None}
