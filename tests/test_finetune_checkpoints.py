"""Checkpoints: whole or not there, resumed to the same weights, refused when touched; nothing pickled by us."""

import json
import shutil

import pytest
import torch

from finetune.checkpoints import MARK, check_whole, keep_latest, latest_checkpoint, mark_complete, remove_partial
from finetune.errors import TrainingError
from finetune.tasks import SenseHead
from finetune.trainer import AttentionTrainer
from tests.teaching import examples, supervision, tiny_llama, trainer, with_lora


def learner(folder, *, steps=6, model=None, **arguments):
    settings = {
        "max_steps": steps, "learning_rate": 0.01, "optim": "adamw_torch", "save_strategy": "steps", "save_steps": 2,
        "per_device_train_batch_size": 2, "lr_scheduler_type": "linear",
    }  # fmt: skip
    model = model or with_lora(tiny_llama(attention_dropout=0.1), lora_dropout=0.1)
    return trainer(model, folder, data=examples(16), supervised=supervision(), **{**settings, **arguments})


def weights(one):
    return {name: weight.detach().clone() for name, weight in one.model.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize("at", [2, 4])
def test_a_run_resumed_from_any_checkpoint_ends_with_the_weights_of_one_that_was_not_interrupted(tmp_path, at):
    whole = learner(tmp_path / "whole")
    whole.train()
    parts = learner(tmp_path / "parts")
    parts.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{at}"))
    for name, weight in weights(whole).items():
        assert torch.allclose(weight, weights(parts)[name], atol=1e-6), name


def test_a_head_of_our_own_is_saved_and_resumed(tmp_path):
    models = []
    for _ in range(2):
        model = with_lora(tiny_llama())
        torch.manual_seed(len(models))
        model.reading_head = SenseHead(32, 3)
        models.append(model)
    learner(tmp_path / "a", model=models[0], steps=2).train()
    other = learner(tmp_path / "b", model=models[1], steps=2)
    other._load_from_checkpoint(str(tmp_path / "a" / "checkpoint-2"))
    assert torch.equal(models[0].reading_head.out.weight, models[1].reading_head.out.weight)
    (tmp_path / "a" / "checkpoint-2" / "reading_head.safetensors").unlink()
    with pytest.raises(TrainingError, match="reading_head"):
        other._load_from_checkpoint(str(tmp_path / "a" / "checkpoint-2"))


def test_a_checkpoint_has_no_pickled_arguments_and_its_adapter_as_safetensors(tmp_path):
    learner(tmp_path, steps=2).train()
    names = {path.name for path in (tmp_path / "checkpoint-2").iterdir()}
    assert "training_args.bin" not in names
    assert {"adapter_model.safetensors", "adapter_config.json", "optimizer.pt", MARK} <= names


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "optimizer.pt", "trainer_state.json"])
def test_a_file_that_was_changed_or_lost_is_named(tmp_path, name):
    learner(tmp_path, steps=2).train()
    folder = tmp_path / "checkpoint-2"
    assert set(check_whole(folder)) == {"loss_sum"}
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(TrainingError, match=f"{name} is changed"):
        check_whole(folder)
    (folder / name).unlink()
    with pytest.raises(TrainingError, match=f"{name} is missing"):
        check_whole(folder)


@pytest.mark.parametrize("mark", ["", "{", "[]", '{"files": 3}', json.dumps({"files": {}})])
def test_a_damaged_mark_is_no_mark(tmp_path, mark):
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / MARK).write_text(mark)
    with pytest.raises(TrainingError, match="no whole checkpoint"):
        check_whole(folder)


def test_a_checkpoint_cut_short_does_not_count_and_is_removed(tmp_path):
    learner(tmp_path, steps=4).train()
    (tmp_path / "checkpoint-4" / MARK).unlink()
    latest = latest_checkpoint(tmp_path)
    assert latest is not None and latest.name == "checkpoint-2"
    assert remove_partial(tmp_path) == ("checkpoint-4",)
    assert not (tmp_path / "checkpoint-4").exists()


def test_the_newest_is_the_highest_number_and_not_the_last_name(tmp_path):
    for number in (9, 10, 100):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        mark_complete(folder, facts={})
    latest = latest_checkpoint(tmp_path)
    assert latest is not None and latest.name == "checkpoint-100"
    keep_latest(tmp_path, limit=1, best=str(tmp_path / "checkpoint-9"))
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-9", "checkpoint-100"}


def test_a_limit_never_leaves_less_than_one_whole_checkpoint(tmp_path, monkeypatch):
    """Killed between writing a checkpoint and its mark, the older one must still be there."""

    def killed(folder, *, facts):
        if folder.name == "checkpoint-4":
            raise KeyboardInterrupt
        mark_complete(folder, facts=facts)

    monkeypatch.setattr("finetune.trainer.mark_complete", killed)
    with pytest.raises(KeyboardInterrupt):
        learner(tmp_path, save_total_limit=1).train()
    latest = latest_checkpoint(tmp_path)
    assert latest is not None and latest.name == "checkpoint-2"
    monkeypatch.undo()
    remove_partial(tmp_path)
    again = learner(tmp_path, save_total_limit=1)
    again.train(resume_from_checkpoint=str(latest))
    shutil.rmtree(tmp_path / "checkpoint-6", ignore_errors=False)
    assert not (tmp_path / "checkpoint-2").exists()


def test_the_best_checkpoint_is_chosen_on_dev_and_loaded_with_its_head(tmp_path):
    model = with_lora(tiny_llama())
    model.reading_head = SenseHead(32, 3)
    one = learner(
        tmp_path, model=model, steps=4, eval_dataset=examples(4, seed=9), eval_strategy="steps", eval_steps=2,
        load_best_model_at_end=True, metric_for_best_model="eval_pair_mass", greater_is_better=True,
    )  # fmt: skip
    assert isinstance(one, AttentionTrainer)
    one.train()
    assert one.state.best_model_checkpoint is not None
    assert one.state.best_metric is not None
