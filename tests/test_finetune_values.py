"""Values of a run's file: those that do what they say, and those that are refused in one line."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from finetune.arguments import arguments_of
from finetune.begun import nothing_begun
from finetune.choosing import more_is_better, steps_told
from finetune.config import config_of, load_config
from finetune.errors import CijingError, ConfigError, PairError, TrainingError
from finetune.tasks import TaskLoss
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


@pytest.mark.skipif(torch.accelerator.is_available(), reason="a machine without an accelerator is meant")
def test_bf16_needs_no_word_about_the_processor(tmp_path):
    arguments = arguments_of(config_of(given(training={"bf16": True})), tmp_path, has_dev=False)
    assert arguments.bf16 and arguments.device.type == "cpu"


# ---- results that would not be what they say -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["save_only_model", "ignore_data_skip", "fp16_full_eval", "bf16_full_eval"])
def test_what_would_change_a_result_in_silence_is_refused_with_the_reason(name):
    assert f"training: {name} true: allowed is false, for " in refusal(training={name: True})
    assert config_of(given(training={name: False}))


def test_an_order_of_examples_that_is_not_done_here_is_refused():
    told = refusal(training={"train_sampling_strategy": "batch_rebalance"})
    assert "train_sampling_strategy 'batch_rebalance': allowed is random, sequential or group_by_length" in told


def test_weights_that_are_no_numbers_are_not_written_as_a_finished_run(tmp_path):
    with pytest.raises(TrainingError, match="are no numbers after step 1"):
        language_model(
            tmp_path, training__learning_rate=1e38, training__max_steps=1, training__warmup_steps=0, data__dev_share=0,
            training__save_strategy="no",
        )  # fmt: skip
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_weights_that_are_no_numbers_are_not_written_as_a_checkpoint(tmp_path):
    with pytest.raises(TrainingError, match="are no numbers after step 1; the last good checkpoint is none"):
        language_model(
            tmp_path, training__learning_rate=1e38, training__max_steps=1, training__warmup_steps=0, data__dev_share=0,
        )  # fmt: skip
    assert not list((tmp_path / "run" / "checkpoints").glob("checkpoint-*"))


# ---- runs that teach nothing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gradient_accumulation_steps", 0),
        ("gradient_accumulation_steps", -1),
        ("max_steps", 0),
        ("max_steps", -3),
        ("num_train_epochs", 0),
        ("num_train_epochs", -1),
        ("learning_rate", -1e-4),
        ("learning_rate", float("nan")),
        ("learning_rate", "nan"),
        ("learning_rate", float("inf")),
        ("learning_rate", True),
        ("learning_rate", "fast"),
        ("learning_rate", None),
        ("per_device_train_batch_size", 0),
        ("per_device_train_batch_size", 2.5),
        ("per_device_train_batch_size", "8"),
        ("per_device_eval_batch_size", True),
        ("weight_decay", 1.0),
        ("label_smoothing_factor", 1.0),
        ("adam_beta1", 1.0),
        ("adam_epsilon", 0),
        ("max_grad_norm", -1),
        ("warmup_steps", -1),
        ("logging_steps", 0),
        ("eval_steps", 0),
        ("save_steps", -5),
        ("save_total_limit", 0),
        ("dataloader_num_workers", -1),
        ("bf16", "yes"),
        ("optim", 3),
        ("report_to", 1),
        ("metric_for_best_model", True),
    ],
)
def test_a_value_of_training_that_means_nothing_is_refused_with_key_value_and_what_is_allowed(name, value):
    told = refusal(training={name: value})
    assert f"training: {name} " in told and "allowed is" in told


def test_values_that_mean_something_are_taken_as_they_are():
    training = {
        "learning_rate": "1e-4", "max_steps": -1, "num_train_epochs": 0.5, "warmup_steps": 0.1, "eval_steps": None,
        "report_to": ["tensorboard"], "save_strategy": False, "lr_scheduler_kwargs": {"a": 1}, "weight_decay": 0,
    }  # fmt: skip
    told = config_of(given(training=training, data={"train": "t.jsonl", "dev_share": 0})).training
    assert told == {**training, "learning_rate": 1e-4, "save_strategy": "no"}


@pytest.mark.parametrize(
    "training",
    [
        {"optim": "lomo"},  # its package is not one of ours
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {}},
        {"lr_scheduler_kwargs": {"no_such": 1}},
        {"dataloader_prefetch_factor": 2, "dataloader_num_workers": 0},
    ],
)
def test_what_the_parts_of_a_trainer_refuse_is_told_in_one_line(tmp_path, training):
    with pytest.raises(ConfigError, match=r"^training: ") as caught:
        language_model(tmp_path, **{f"training__{name}": value for name, value in training.items()})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists() or nothing_begun(
        tmp_path / "run"
    )  # the mended file may start in the same folder


def test_a_run_that_took_no_step_is_no_finished_run():
    with pytest.raises(TrainingError, match="no step was taken"):
        steps_told(SimpleNamespace(state=SimpleNamespace(global_step=0, max_steps=3), eval_dataset=None))


def test_the_margin_loss_without_negatives_teaches_nothing_and_is_refused(tmp_path):
    with pytest.raises(PairError, match="no pair in the texts has negatives"):
        language_model(tmp_path, attention__loss="margin")


# ---- other values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "more"),
    [
        ("lora.r", {"lora": {"r": True}}),
        ("seed", {"seed": True}),
        ("attention.weight", {"attention": {"weight": True}}),
        ("attention.weight", {"attention": {"weight": float("inf")}}),
        ("lora.alpha", {"lora": {"alpha": float("inf")}}),
        ("lora.layers", {"lora": {"layers": [True]}}),
        ("lora.dropout", {"lora": {"dropout": 1.0}}),
        ("out", {"out": ""}),
        ("out", {"out": "a\0b"}),
        ("out", {"out": "a\ud800"}),
        ("out", {"out": "x" * 300}),
        ("out", {"out": "x/" * 3000}),
        ("pairs.file", {"pairs": {"file": "a\0b"}}),
        ("attention", {"attention": {"heads": [[0, 1]], "layers": "all"}}),
    ],
)
def test_a_value_that_no_run_can_have_is_refused_with_its_key(key, more):
    assert f"{key}: " in refusal(**more) or f"{key}." in refusal(**more)


@pytest.mark.parametrize(
    "line", ["out: 2024-01-02", "training: {run_name: 2024-01-02}", "lora: !!set {a}", "seed: !!binary aGk="]
)
def test_what_yaml_can_say_and_no_key_can_hold_is_refused_with_the_key(tmp_path, line):
    file = tmp_path / "run.yaml"
    file.write_text(f"model: m\ntask: causal-lm\ndata: {{train: t.jsonl}}\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=line.split(":")[0]):
        load_config(file)


def test_no_targets_are_refused_in_one_line(tmp_path):
    with pytest.raises(CijingError, match=r"lora\.targets is empty: allowed are attention, all-linear"):
        language_model(tmp_path, lora={"targets": []})
