"""A base in a task of classes: its own states, under a head that is the optimum of a known problem."""

import numpy as np
import pytest
import torch

from finetune.compare.jobs import open_arm
from finetune.compare.plan import plan_of
from finetune.compare.readout import base_with_head
from finetune.compare.settings import compare_of
from finetune.prepare import prepare_run
from finetune.scoring import class_scores
from probe import load_model
from tests.finished import lines, sense_texts
from tests.tiny import tiny_bert


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sense")
    tiny_bert(folder)
    return compare_of({
        "model": str(folder / "bert"), "task": "sense", "arms": ["base", "lora"], "training": {"use_cpu": True},
        "data": {
            "train": lines(folder / "train.jsonl", sense_texts("train", 24)),
            "test": lines(folder / "test.jsonl", sense_texts("test", 20)), "max_length": 48, "dev_share": 0.2,
        },
    })  # fmt: skip


@pytest.fixture(scope="module")
def opened(config, tmp_path_factory):
    return open_arm(plan_of(config).jobs[0], config, tmp_path_factory.mktemp("none"), device="cpu")


@pytest.fixture(scope="module")
def prepared(config):
    from finetune.compare.arms import ARMS
    from finetune.compare.settings import run_of

    return prepare_run(run_of(config, ARMS["lora"], seed=0), device="cpu")


def test_the_states_are_the_bases_own(config, opened):
    base = load_model(config.model, head="none", device="cpu", dtype="float32")
    given = base.tokenizer("我喜欢苹果", return_tensors="pt")
    with torch.inference_mode():
        own, found = (model(**given).last_hidden_state for model in (base.model, opened.model))
    assert torch.equal(own, found) and opened.run is None and not opened.model.training


def test_the_head_is_the_one_optimum_of_penalised_logistic_regression(opened, prepared):
    """At it the gradient is nought: the features by hand, each text for itself and without padding."""
    head = opened.model.reading_head
    weight, bias = (one.detach().double().numpy() for one in (head.out.weight, head.out.bias))
    slope, slope_of_bias = weight.copy(), np.zeros_like(bias)
    assert len(prepared.true) > 15 and np.abs(weight).max() > 0.01
    for document in prepared.true:
        with torch.inference_mode():
            states = opened.model(input_ids=torch.tensor(document.input_ids)[None]).last_hidden_state[0]
        read = ((states[list(document.target)].mean(0) - head.centre) / head.scale).double().numpy()
        scores = weight @ read + bias
        wrong = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        wrong[document.label] -= 1.0
        slope += np.outer(wrong, read)
        slope_of_bias += wrong
    assert np.abs(slope).max() < 2e-4 and np.abs(slope_of_bias).max() < 2e-4


def test_it_answers_as_any_run_does_and_the_same_each_time(config, opened, prepared):
    logs = class_scores(opened.model, prepared.true, collator=prepared.collator)
    assert (logs.argmax(1) == [document.label for document in prepared.true]).mean() > 0.9
    again = base_with_head(config, device="cpu", progress=None)
    assert np.array_equal(class_scores(again.model, prepared.true, collator=prepared.collator), logs)
