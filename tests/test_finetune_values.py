"""Values of a run's file: those that do what they say, and those that are refused in one line."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from finetune.arguments import arguments_of
from finetune.choosing import more_is_better
from finetune.config import config_of, load_config
from finetune.errors import CijingError, ConfigError, PairError, TrainingError
from finetune.tasks import TaskLoss
from finetune.train import train
from tests.finished import language_model


def given(**more):
    return {"model": "m", "task": "causal-lm", "data": {"train": "texts.jsonl"}, "pairs": {"file": "p.yaml"}, **more}


def refusal(**more):
    with pytest.raises(ConfigError) as caught:
        config_of(given(**more))
    told = str(caught.value)
    assert "\n" not in told and len(told) < 400
    return told


def steps(folder):
    return json.loads((folder / "manifest.json").read_text("utf-8"))


# ---- labels are smoothed in training ---------------------------------------------------------------------------


class Fixed(nn.Module):
    """A model that gives the same logits whatever it reads."""

    def forward(self, **given):
        return SimpleNamespace(logits=torch.tensor([[[4.0, 0.0, 0.0]] * 3]))


def test_labels_are_smoothed_in_training_and_not_on_dev():
    labels, model = torch.tensor([[0, 0, 0]]), Fixed()
    plain, smooth = (TaskLoss(task="causal-lm", label_smoothing=share) for share in (0.0, 0.5))

    def loss(one):
        return float(one(model, {}, labels, rows=None, items=None)[0])

    expected = 0.5 * loss(plain) + 0.5 * (math.log(math.exp(4) + 2) - 4 / 3)
    assert loss(smooth) == pytest.approx(expected, rel=1e-5)
    model.eval()
    assert loss(smooth) == loss(plain)


def test_label_smoothing_of_the_file_changes_what_is_learnt(tmp_path):
    runs = [
        language_model(tmp_path / str(share), training__label_smoothing_factor=share, training__max_steps=1)
        for share in (0.0, 0.9)
    ]
    plain, smooth = (steps(run)["metrics"]["train_loss"] for run in runs)
    assert abs(plain - smooth) > 1e-3


# ---- the better step is kept -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "loss", "more"),
    [
        ("loss", "mass", False),
        ("eval_accuracy", "mass", True),
        ("eval_sink_mass", "mass", False),
        ("attention_loss", "repel", False),
        ("pair_mass", "mass", True),
        ("eval_pair_mass", "repel", False),
        ("pairs_met", "repel", False),
    ],
)
def test_the_direction_follows_from_the_metric_and_the_loss(metric, loss, more):
    assert more_is_better(metric, loss=loss) is more


def test_a_run_by_sink_mass_keeps_the_step_with_the_least(tmp_path):
    training = {"metric_for_best_model": "eval_sink_mass", "use_cpu": True}
    config = config_of(given(training=training))
    assert arguments_of(config, tmp_path, has_dev=True).greater_is_better is False
    repel = config_of(given(training={**training, "metric_for_best_model": "pair_mass"}, attention={"loss": "repel"}))
    assert arguments_of(repel, tmp_path, has_dev=True).greater_is_better is False


def test_a_direction_that_keeps_the_worst_step_is_refused():
    told = refusal(training={"metric_for_best_model": "eval_sink_mass", "greater_is_better": True})
    assert "training.greater_is_better true would keep the worst step by eval_sink_mass" in told
    assert config_of(given(training={"metric_for_best_model": "pair_mass", "greater_is_better": True}))
