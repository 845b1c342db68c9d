"""One job's items against evaluate's numbers, and against models that must give the very same."""

import copy
import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from finetune.compare.asking import Put, cut, score_endings, silenced
from finetune.compare.items import MEASURES, OF_MODEL, items_frame, items_of
from finetune.compare.measuring import ArmModel, JobMaterial, measure_job
from finetune.compare.prompts import Before, prompt_for
from finetune.domains import load_questions
from finetune.errors import DataError
from finetune.evaluate import evaluate
from finetune.learner import make_learner
from finetune.material import general_texts, texts_of
from finetune.runfolder import open_run_folder
from finetune.scoring import class_scores
from probe import EdgeEdit, RowRequest, load_model, model_from_parts, part_shares, tap
from tests.finished import classifier, language_model, lines, sense_reader
from tests.test_compare_prompts import hit
from tests.test_compare_states import CASES

QUESTIONS = [
    {"id": name, "group": group, "prompt": prompt, "right": right, "wrong": wrong, "pair": pair}
    for name, group, prompt, right, wrong, pair in (
        ("q0", "train fact 0", "他讨厌菠菜，我喜欢苹果，我们热爱", "和平", "苹果手机", ("苹果", "菠菜")),
        ("q1", "test fact 1", "苹果公司发布了", "新品", "菠菜", ("苹果", "新品")),
        ("q2", "of nobody", "苹果公司发布了", "新品", "菠菜", None),
        ("q3", "train fact 0", "他喜欢和平，他讨厌", "菠菜", "新品", ("菠菜", "和平")),
    )
]
PARTS = {"q0": "seen facts", "q1": "held-out facts", "q2": "other facts", "q3": "seen facts"}
KEY = ["measure", "part", "item", "unit", "weight"]


@dataclass(frozen=True)
class Plain:
    prompt: str = "plain"
    edge_bias: bool = False


def given(loaded, model=None, run=None, **arm):
    return ArmModel(arm=Plain(**arm), seed=0, loaded=loaded, model=model or loaded.model, run=run)


def table(measured):
    return items_frame(measured.items, arm="x", seed=0).set_index(KEY[:3])


def values(measured, measure, part=None):
    return {
        one.item: one.value for one in measured.items if one.measure == measure and (part is None or one.part == part)
    }


def material_for(run, loaded, **changes):
    texts = texts_of(run.config, loaded, data=run.config.data, seed=0, tell=lambda *_: None)
    return JobMaterial(texts=texts, **changes)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("compared")


@pytest.fixture(scope="module")
def run(root):
    return open_run_folder(language_model(root / "lm"), device="cpu")


@pytest.fixture(scope="module")
def base(run):
    return load_model(run.config.model, device="cpu", dtype="float32", head="lm")


@pytest.fixture(scope="module")
def material(run, base, root):
    questions = load_questions(lines(root / "questions.jsonl", QUESTIONS))
    general = [{"id": f"g{number}", "text": f"牛顿被苹果砸中{number}"} for number in range(3)]
    whole = material_for(
        run, base, questions=questions, cases=CASES, max_new_tokens=4, maps=2,
        before=Before(
            passages={one.id: [hit("他讨厌苹果", 1), hit("和平", 2)] for one in questions}, glosses={"苹果": "一种果"}
        ),
    )  # fmt: skip
    found = general_texts(whole.texts, lines(root / "general.jsonl", general), limit=9, seed=0)
    return replace(whole, general=found[:2])


@pytest.fixture(scope="module")
def of_base(base, material):
    return measure_job(given(base), material)


@pytest.fixture(scope="module")
def of_run(run, material):
    return measure_job(given(run.learner.loaded, run.model, run), material)


# ---- models that are the same ----------------------------------------------------------------------------------


def same(one, other):
    assert one.items == other.items and one.context_tokens == other.context_tokens
    assert one.maps.equals(other.maps) and one.written.equals(other.written)


def test_an_adapter_that_starts_at_zero_is_exactly_the_base(run, material, of_base):
    learner = make_learner(run.config, labels=(), device="cpu")
    same(measure_job(given(learner.loaded, learner.model.eval()), material), of_base)


def test_a_run_whose_adapter_is_off_is_exactly_the_base(run, material, of_base):
    with run.base():
        same(measure_job(given(run.learner.loaded, run.model), material), of_base)


def test_a_merged_model_is_the_tuned_one(run, material, of_run):
    merged = copy.deepcopy(run.model).merge_and_unload()
    found = measure_job(given(model_from_parts(merged, run.tokenizer, name="merged")), material)
    ours, theirs = table(found), table(of_run).drop("ablated", level="measure")  # the merged one names no taught heads
    assert ours.index.equals(theirs.index)
    assert ours.value.to_numpy() == pytest.approx(theirs.value.to_numpy(), abs=1e-5)
    assert found.maps.value.to_numpy() == pytest.approx(of_run.maps.value.to_numpy(), abs=1e-5)
    assert found.written.equals(of_run.written)


def test_what_was_taught_shows(of_base, of_run):
    for measure in ("margin", "perplexity", "general_perplexity", "mass", "sink", "cut"):
        assert values(of_base, measure) != values(of_run, measure), measure
    assert not of_base.maps.value.equals(of_run.maps.value)


def test_the_items_of_all_arms_pair(base, material, of_base, of_run):
    arms = [of_run, *(measure_job(given(base, **arm), material) for arm in ({"prompt": "gloss"}, {"edge_bias": True}))]
    own = items_frame(of_base.items, arm="base", seed=-1)
    assert not own[["measure", "part", "item"]].duplicated().any() and set(own.measure) <= set(MEASURES)
    assert not own.value.isna().any() and (own.weight > 0).all()
    for other in arms:
        frame = items_frame(other.items, arm="other", seed=0)
        frame = frame[~frame.measure.isin(["ablated", "passage_share"])]
        assert frame[KEY].equals(own[KEY].set_index(frame.index))


# ---- as evaluate -----------------------------------------------------------------------------------------------


def test_numbers_are_those_of_evaluate(run, of_base, of_run, root):
    found = evaluate(run, questions=str(root / "questions.jsonl"), general=root / "general.jsonl")
    results = found.results.set_index(["measure", "part", "arm"]).estimate
    for arm, measured in (("base", of_base), ("tuned", of_run)):
        for name, part, theirs in (("perplexity", "test", "test"), ("general_perplexity", "general", "general text")):
            own = [one for one in measured.items if one.measure == name and one.part == part]
            mean = np.average([one.value for one in own], weights=[one.weight for one in own])
            assert math.exp(mean) == pytest.approx(results["perplexity", theirs, arm], rel=1e-6)
        pairs = found.tables["pairs"]
        pairs = pairs[pairs["heads"] == "all heads"]
        for part in ("train pairs", "held-out pairs"):
            theirs = pairs[pairs.part == part].set_index("pair")[arm].to_dict()
            assert theirs and values(measured, "mass", part) == pytest.approx(theirs, abs=1e-6)
        questions = found.tables["questions"].set_index("id")
        assert values(measured, "margin") == pytest.approx(questions[f"margin_{arm}"].to_dict(), abs=1e-5)
        moved = questions[f"moved_{arm}"].dropna().to_dict()
        assert values(measured, "cut") == pytest.approx(moved, abs=1e-5) and len(moved) == 3


def test_questions_are_told_apart_by_whether_their_fact_was_seen(of_run):
    own = {one.item: (one.part, one.unit) for one in of_run.items if one.measure == "accuracy"}
    assert {name: part for name, (part, _) in own.items()} == PARTS
    assert own["q0"][1] == own["q3"][1] == "train fact 0"
    margins = values(of_run, "margin")
    assert values(of_run, "accuracy") == {name: float(margin > 0) for name, margin in margins.items()}


def test_what_is_written_is_scored_against_the_right_ending(base, material):
    answers = ["和平", "新手", "", "大菠菜"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("finetune.compare.measuring.write_answers", lambda *_, **__: answers)
        found = measure_job(given(base), replace(material, cases=()))
    assert values(found, "exact") == {"q0": 1.0, "q1": 0.0, "q2": 0.0, "q3": 0.0}
    assert values(found, "f1") == pytest.approx({"q0": 1.0, "q1": 0.5, "q2": 0.0, "q3": 0.8})
    assert found.written.text.tolist() == ["和平", "新手", "", "大菠菜"]
    assert found.written.answer.tolist() == ["和平", "新品", "新品", "菠菜"]


# ---- what stands before, and edits -----------------------------------------------------------------------------


def test_passages_change_what_is_answered_and_nothing_else(base, material, of_base):
    found = measure_job(given(base, prompt="passages"), material)
    ours, theirs = table(found), table(of_base)
    changed = {name for name in theirs.index if ours.value[name] != theirs.value[name]}
    assert {measure for measure, _, _ in changed} >= {"margin", "cut"}
    assert {measure for measure, _, _ in changed} <= {"margin", "accuracy", "exact", "f1", "cut"}
    assert found.context_tokens > of_base.context_tokens
    put = [Put(question=one, prompt=prompt_for(base.tokenizer, one, "passages", material.before))
           for one in material.questions]  # fmt: skip
    assert found.context_tokens == np.mean([len(one.prompt.tokens.ids) for one in put])
    summary = part_shares(base, put[0].prompt, answer="和平").summary()
    assert values(found, "passage_share")["q0"] == pytest.approx(summary[summary.kind == "passage"].share.sum())
    assert values(of_base, "passage_share") == {} and len(values(found, "passage_share")) == 4
    assert found.maps[["item", "role", "layer", "head"]].equals(of_base.maps[["item", "role", "layer", "head"]])


@pytest.mark.parametrize("arm", [{"prompt": "gloss"}, {"edge_bias": True}])
def test_what_another_arm_of_the_same_weights_measured_is_taken_and_gives_the_same(base, material, of_base, arm):
    known, stages = items_of(items_frame(of_base.items, arm="base", seed=-1), OF_MODEL), set()
    found = measure_job(given(base, **arm), material, known=known, progress=lambda stage, *_: stages.add(stage))
    whole = measure_job(given(base, **arm), material)
    assert {one.measure for one in known} == set(OF_MODEL) and set(known) <= set(of_base.items)
    assert sorted(found.items, key=str) == sorted(whole.items, key=str) and found.written.equals(whole.written)
    assert not stages & {"test texts", "general texts", "word senses", "attention on pairs"} and "questions" in stages


def test_a_bias_of_nothing_is_exactly_the_base_and_one_of_minus_infinity_the_cut(base, material, of_base):
    nothing = measure_job(given(base, edge_bias=True), replace(material, edge_bias=0.0))
    same(nothing, of_base)
    hidden = measure_job(given(base, edge_bias=True), replace(material, edge_bias=-math.inf, cases=()))
    plain, without = values(of_base, "margin"), values(hidden, "margin")
    for name, lost in values(of_base, "cut").items():
        assert plain[name] - without[name] == pytest.approx(lost, abs=1e-6) and lost
    assert values(hidden, "cut") == pytest.approx(dict.fromkeys(values(of_base, "cut"), 0.0), abs=1e-6)
    assert without["q2"] == plain["q2"]  # no pair, nothing to bias


def test_a_bias_acts_on_questions_alone(base, material, of_base):
    found = measure_job(given(base, edge_bias=True), replace(material, edge_bias=4.0))
    ours, theirs = table(found).value, table(of_base).value
    changed = {name[0] for name in theirs.index if ours[name] != theirs[name]}
    assert "margin" in changed and changed <= {"margin", "accuracy", "exact", "f1", "cut"}
    # Whatever is added to an edge, the margin without it is the same.
    for name, lost in values(found, "cut").items():
        left = values(found, "margin")[name] - lost
        assert left == pytest.approx(values(of_base, "margin")[name] - values(of_base, "cut")[name], abs=1e-5)


def test_the_taught_heads_are_silenced_and_only_where_some_were_taught(run, material, of_run, of_base):
    assert values(of_base, "ablated") == {} and run.heads
    loaded = replace(run.learner.loaded, model=run.model)
    put = [
        Put(question=one, prompt=prompt_for(run.tokenizer, one, "plain", material.before)) for one in material.questions
    ]
    silent = score_endings(loaded, put, edits=[silenced(run.heads)])
    wanted = {one.question.id: score.margin for one, score in zip(put, silent, strict=True)}
    margins = values(of_run, "margin")
    assert values(of_run, "ablated") == {name: margins[name] - wanted[name] for name in margins}
    with_edge = [one for one in put if one.keys]
    cuts = score_endings(loaded, with_edge, edits=[cut()])
    left = {
        one.question.id: margins[one.question.id] - score.margin for one, score in zip(with_edge, cuts, strict=True)
    }
    assert values(of_run, "cut") == left


def test_as_many_questions_as_asked_for_have_maps(of_base, base, material):
    assert sorted(set(of_base.maps.item)) == ["q0", "q1"]
    assert len(measure_job(given(base), replace(material, maps=0, cases=())).maps) == 0


def test_how_far_it_is_is_told_of_each_stage(base, material):
    told = {}
    measure_job(given(base, prompt="gloss"), material, progress=lambda stage, done, total: told.update({stage: total}))
    assert told["written answers"] == 4 and told["questions"] == 4 and told["cut edges"] == 3
    assert told["word senses"] == len(CASES) and told["attention maps"] == 2 and told["test texts"] == 24


# ---- tasks of classes ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader(root):
    return open_run_folder(sense_reader(root / "sense", count=40, training__max_steps=30), device="cpu")


def test_a_reader_is_measured_as_evaluate_does(reader):
    material = material_for(reader, reader.learner.loaded, cases=CASES)
    tuned = measure_job(given(reader.learner.loaded, reader.model, reader), material)
    with reader.base():
        base = measure_job(given(reader.learner.loaded, reader.model), material)
    found = evaluate(reader)
    predicted = found.tables["predictions"].set_index("id")
    for arm, measured in (("base", base), ("tuned", tuned)):
        right = (predicted[arm] == predicted.label).astype(float).to_dict()
        assert values(measured, "accuracy") == right
        cuts = found.tables["cuts"].set_index("id")
        lost = (cuts[f"whole_{arm}"] - cuts[f"cut_{arm}"]).to_dict()
        assert values(measured, "cut", "pairs of the data") == pytest.approx(lost, abs=1e-9) and len(lost) == 20
        pairs = found.tables["pairs"]
        theirs = pairs[pairs["heads"] == "all heads"].set_index("pair")[arm].to_dict()
        assert values(measured, "mass") == pytest.approx(theirs, abs=1e-9)
    assert values(tuned, "sense_accuracy").keys() == values(base, "sense_accuracy").keys()
    assert len(tuned.written) == 0
    assert tuned.context_tokens == np.mean([document.length for document in material.texts.documents])


def test_without_questions_the_first_pairs_of_the_test_texts_have_maps(reader):
    material = material_for(reader, reader.learner.loaded, maps=3)
    found = measure_job(given(reader.learner.loaded, reader.model), material)
    assert found.maps.item.drop_duplicates().tolist() == ["test-0 1", "test-1 1", "test-2 1"]
    assert set(found.maps.role) == {"query → key"} and len(found.maps) == 3 * 3 * 4
    means = found.maps.groupby("item").value.mean()
    mass = values(found, "mass", "pairs of the data")
    assert means.tolist() == pytest.approx([mass[f"group test {number}"] for number in range(3)], abs=1e-6)


@pytest.mark.parametrize("bias", [-math.inf, 9.0])
def test_a_bias_acts_between_a_target_and_its_cue(reader, bias):
    material = material_for(reader, reader.learner.loaded)
    with reader.base():  # whose answers hang by a thread
        plain, nothing, biased = (
            measure_job(given(reader.learner.loaded, reader.model, edge_bias=on), replace(material, edge_bias=by))
            for on, by in ((False, bias), (True, 0.0), (True, bias))
        )
        wanted = {}
        for one in material.texts.documents:
            places = {place for pair in one.pairs for place in (*pair.queries, *pair.keys)} - set(one.target)
            edit = EdgeEdit(query=one.target, key=tuple(places), factor=math.exp(bias))
            with tap(reader.model, RowRequest([[0]], layers=(), edits=[edit])):
                (logs,) = class_scores(reader.model, [one], collator=material.texts.collator)
            wanted[one.id] = float(logs.argmax() == one.label)
    assert nothing.items == plain.items
    assert values(biased, "accuracy") == wanted and values(plain, "accuracy") != wanted
    assert values(biased, "mass") == values(plain, "mass")
    if bias < 0:
        assert values(biased, "cut") == pytest.approx(dict.fromkeys(values(plain, "cut"), 0.0), abs=1e-6)
    else:
        assert values(biased, "cut") != values(plain, "cut")


@pytest.fixture(scope="module")
def taught_for(root):
    return cache(lambda task: open_run_folder(classifier(root / task, task=task), device="cpu"))


@pytest.mark.parametrize("task", ["classification", "masked-lm"])
def test_other_tasks_are_measured_as_evaluate_does(taught_for, task):
    taught = taught_for(task)
    material = material_for(taught, taught.learner.loaded)
    found, theirs = measure_job(given(taught.learner.loaded, taught.model, taught), material), evaluate(taught)
    if task == "classification":
        predicted = theirs.tables["predictions"].set_index("id")
        assert values(found, "accuracy") == (predicted.tuned == predicted.label).astype(float).to_dict()
    else:
        texts = theirs.tables["texts"].set_index("id")
        nats = (texts.nats_tuned / texts.tokens).to_dict()
        assert values(found, "perplexity") == pytest.approx(nats, rel=1e-6)
    assert values(found, "cut") == {} and values(found, "margin") == {}


# ---- what cannot be --------------------------------------------------------------------------------------------


def test_what_cannot_be_measured_is_refused_in_one_line(base, material, reader, taught_for):
    twice = replace(material, questions=[*material.questions, material.questions[0]])
    with pytest.raises(DataError, match="question q0 is given twice"):
        measure_job(given(base), twice)
    with pytest.raises(DataError, match="an arm with gloss before its questions: there are no questions"):
        measure_job(given(base, prompt="gloss"), replace(material, questions=()))
    of_senses = material_for(reader, reader.learner.loaded)
    with pytest.raises(DataError, match="task sense: questions are put to causal language models only"):
        measure_job(given(reader.learner.loaded, reader.model), replace(of_senses, questions=material.questions))
    taught = taught_for("classification")
    of_classes = material_for(taught, taught.learner.loaded)
    with pytest.raises(DataError, match="task classification: it has no answer or target whose edge"):
        measure_job(given(taught.learner.loaded, taught.model, edge_bias=True), of_classes)
