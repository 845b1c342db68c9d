"""The step that is kept is the best on dev; a run stops when dev gets no better, resumed or not."""

import json
import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from finetune.arguments import arguments_of
from finetune.choosing import evaluation_plan, steps_told
from finetune.config import config_of
from finetune.errors import ConfigError, TrainingError
from finetune.train import train
from tests.finished import SENSES, language_model, lines, sense_reader, sense_texts

EVERY, PATIENCE = 2, 2


def misled(folder, **changes):
    """A run whose dev part has the senses swapped: what it learns makes dev worse from the first step on."""
    folder.mkdir(parents=True, exist_ok=True)
    swapped = [{**row, "label": SENSES[row["label"] == SENSES[0]]} for row in sense_texts("test", 12)]
    settings = {
        "data__dev": lines(folder / "dev.jsonl", swapped), "data__test": [], "data__dev_share": 0,
        "training__max_steps": 14, "training__eval_steps": EVERY, "training__save_total_limit": 20,
        "training__lr_scheduler_type": "constant", "training__learning_rate": 2e-2,
    }  # fmt: skip
    return sense_reader(folder, **{**settings, **changes})


def told(folder):
    return json.loads((folder / "manifest.json").read_text("utf-8"))


def weights(folder):
    return {
        **load_file(folder / "adapter_model.safetensors"), **load_file(folder / "reading_head.safetensors"),
    }  # fmt: skip


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    return misled(tmp_path_factory.mktemp("stopped"), early_stopping={"patience": PATIENCE})


def test_a_run_whose_dev_gets_worse_keeps_the_best_step_and_not_the_last(tmp_path):
    folder = misled(tmp_path)
    found = told(folder)
    assert (found["steps"], found["stopped_early"]) == (14, False)
    assert found["kept"]["step"] == EVERY and found["kept"]["metric"] == "eval_loss"
    assert found["metrics"]["eval_loss"] == pytest.approx(found["kept"]["value"])
    assert same(weights(folder), weights(folder / "checkpoints" / f"checkpoint-{EVERY}"))
    assert not same(weights(folder), weights(folder / "checkpoints" / "checkpoint-14"))


def test_a_run_stops_after_so_many_evaluations_without_a_gain_and_says_so(stopped):
    found = told(stopped)
    assert found["stopped_early"] and found["planned_steps"] == 14
    assert found["steps"] == EVERY * (1 + PATIENCE) and found["kept"]["step"] == EVERY
    assert same(weights(stopped), weights(stopped / "checkpoints" / f"checkpoint-{EVERY}"))
    card = (stopped / "README.md").read_text("utf-8")
    assert "Step 2 is kept, the best on dev by eval_loss" in card
    assert "6 steps were taken, stopped early of 14 planned" in card


def test_a_gain_below_the_threshold_counts_as_none(tmp_path):
    given = {"training__max_steps": 12, "training__eval_steps": 2, "training__lr_scheduler_type": "constant"}
    patient = told(language_model(tmp_path / "a", **given, early_stopping={"patience": 1}))
    strict = told(language_model(tmp_path / "b", **given, early_stopping={"patience": 1, "threshold": 50.0}))
    assert not patient["stopped_early"] and strict["stopped_early"] and strict["steps"] == 4


@pytest.mark.parametrize("at", [2, 4, 6])
def test_a_resumed_run_stops_at_the_step_of_one_that_was_not_interrupted(stopped, tmp_path, at):
    """At 6 patience had run out; elsewhere the folder has moved, so the best checkpoint is found by its name."""
    run = shutil.copytree(stopped, tmp_path / "run")
    cut_back(run, at)
    away = stopped.with_name("away")
    stopped.rename(away)
    try:
        done = train(again(run), resume=True, device="cpu")
    finally:
        away.rename(stopped)
    found, whole = told(run), told(stopped)
    assert done.steps == whole["steps"]
    assert [found[key] for key in ("stopped_early", "kept")] == [whole[key] for key in ("stopped_early", "kept")]
    assert same(weights(run), weights(stopped))


def test_a_run_that_was_killed_behind_its_last_checkpoint_takes_no_further_step(tmp_path):
    """Mid-epoch, where the number of epochs does not end the run."""
    whole = sense_reader(
        tmp_path, training__max_steps=4, training__save_steps=2, training__lr_scheduler_type="constant",
        data__dev_share=0, count=64,
    )  # fmt: skip
    before = weights(whole)
    cut_back(whole, 4)
    assert train(again(whole), resume=True, device="cpu").steps == 4
    assert same(weights(whole), before)
    assert told(whole)["kept"] == {"step": 4, "metric": None, "why": "there is no dev part"}


def test_a_best_checkpoint_that_is_gone_is_named_and_the_last_not_taken_for_it(stopped, tmp_path):
    run = shutil.copytree(stopped, tmp_path / "run")
    cut_back(run, 4)
    shutil.rmtree(run / "checkpoints" / "checkpoint-2")
    with pytest.raises(TrainingError, match="checkpoint-2: no whole checkpoint"):
        train(again(run), resume=True, device="cpu")


def cut_back(run, step):
    """The folder as a kill behind the checkpoint of that step leaves it."""
    for name in ("manifest.json", "adapter.json", "adapter_model.safetensors", "reading_head.safetensors"):
        (run / name).unlink()
    for path in (run / "checkpoints").iterdir():
        if int(path.name.removeprefix("checkpoint-")) > step:
            shutil.rmtree(path)


def again(run):
    import yaml

    return config_of({**yaml.safe_load((run / "config.yaml").read_text("utf-8")), "out": str(run)})


def test_a_metric_of_the_pairs_stops_a_run_as_well(tmp_path):
    run = language_model(
        tmp_path, training__max_steps=12, training__eval_steps=2, early_stopping={"patience": 1, "threshold": 1.0},
        training__metric_for_best_model="pair_mass", count=40,
    )  # fmt: skip
    found = told(run)
    assert found["kept"]["metric"] == "eval_pair_mass"
    assert found["stopped_early"] and found["steps"] == 4  # no mass can grow by 1


def test_a_metric_that_this_dev_part_does_not_give_is_one_line(tmp_path):
    with pytest.raises(TrainingError, match="pair_mass: the dev part gives eval_loss alone"):
        language_model(tmp_path, training__eval_steps=1, training__metric_for_best_model="pair_mass", count=8)


def plain(**more):
    return config_of({"model": "m", "task": "sense", "data": {"train": "t.jsonl"}, **more})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"data": {"train": "t", "dev_share": 0}, "early_stopping": {}}, "no dev part"),
        ({"early_stopping": {"patience": 0}}, "early_stopping.patience"),
        ({"early_stopping": {"patients": 2}}, "did you mean patience"),
        ({"early_stopping": {}, "training": {"load_best_model_at_end": False}}, "load_best_model_at_end false goes"),
        ({"early_stopping": {}, "training": {"eval_strategy": "no"}}, "eval_strategy no goes against early_stopping"),
        ({"training": {"save_strategy": False, "load_best_model_at_end": True}}, "save_strategy no goes against"),
        (
            {"training": {"eval_strategy": "steps", "save_strategy": "epoch"}},
            "eval_strategy steps, save_strategy epoch",
        ),
        ({"training": {"eval_steps": 3, "save_steps": 6}}, "eval_steps 3, save_steps 6"),
        ({"training": {"metric_for_best_model": "acuracy"}}, "did you mean eval_accuracy"),
        ({"training": {"metric_for_best_model": "eval_pair_mass"}}, "not measured on dev"),
        ({"task": "causal-lm", "training": {"metric_for_best_model": "accuracy"}}, "allowed: eval_loss"),
    ],
)
def test_what_goes_against_keeping_the_best_step_is_one_line_before_anything_is_loaded(more, said):
    with pytest.raises(ConfigError, match=said) as caught:
        plain(**more)
    assert "\n" not in str(caught.value)


def test_texts_that_give_no_dev_part_are_refused_for_early_stopping(tmp_path):
    with pytest.raises(ConfigError, match="the texts give no dev part"):
        arguments_of(plain(early_stopping={}), tmp_path, has_dev=False)


@pytest.mark.parametrize(
    ("given", "every", "length"),
    [
        ({}, "epoch", None),
        ({"eval_steps": 7}, "steps", 7),
        ({"save_strategy": "steps", "save_steps": 9}, "steps", 9),
        ({"eval_strategy": "steps", "logging_steps": 4}, "steps", 4),
        ({"eval_strategy": "epoch", "logging_steps": 4}, "epoch", None),
    ],
)
def test_evaluations_and_checkpoints_fall_on_the_same_steps(tmp_path, given, every, length):
    plan = evaluation_plan(given)
    assert (plan["eval_strategy"], plan["save_strategy"]) == (every, every)
    assert (plan.get("eval_steps"), plan.get("save_steps")) == (length, length)
    arguments = arguments_of(plain(training=given), tmp_path, has_dev=True)
    assert arguments.load_best_model_at_end and arguments.metric_for_best_model == "loss"


def test_a_metric_that_was_never_a_number_keeps_no_step():
    arguments = SimpleNamespace(load_best_model_at_end=True, metric_for_best_model="loss")
    for best, said in ((math.inf, "no number"), (None, None)):
        state = SimpleNamespace(global_step=4, max_steps=8, best_metric=best, best_global_step=None)
        run = SimpleNamespace(state=state, args=arguments, eval_dataset=[1], patience=None)
        if said:
            with pytest.raises(TrainingError, match=said):
                steps_told(run)
        else:
            assert steps_told(run)["kept"]["why"] == "dev was measured at no step"
