"""The trainer's step: equal to eager attention, to one large batch, to a step without pairs where there are none."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from finetune.errors import TrainingError
from finetune.supervise import batch_pairs, taken
from finetune.trainer import WeightPlan
from tests.teaching import collate, equal_weights, examples, hear, supervision, tiny_llama, trainer, with_lora


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}


def step_of(folder, *, data=None, supervised=None, **arguments):
    """What one step of plain descent changed: the gradient, negative."""
    model = with_lora(tiny_llama())
    before = weights_of(model)
    trainer(model, folder, data=data or examples(), supervised=supervised, **arguments).train()
    return {name: weight - before[name] for name, weight in weights_of(model).items()}


def largest_gap(one, other):
    scale = max(float(weight.abs().max()) for weight in one.values())
    return max(float((one[name] - other[name]).abs().max()) for name in one) / scale


def eager_gradient(data, supervised, weight):
    """The same loss by eager attention and a loop over pairs: no tap, no batching of spans, no Trainer."""
    model = with_lora(tiny_llama())
    model.base_model.model.set_attn_implementation("eager")
    model.train()
    batch = collate(data)
    out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], output_attentions=True)
    labels = batch["labels"][:, 1:]
    task = (
        torch.nn.functional.cross_entropy(
            out.logits[:, :-1].flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
        )
        / (labels != -100).sum()
    )
    total, pairs = torch.tensor(0.0), 0.0
    for row, item in enumerate(data):
        for queries, keys in item["pairs"]:
            layers = []
            for layer, heads in supervised.heads.items():
                found = [
                    -torch.stack([out.attentions[layer][row, head, q, keys].sum() for q in queries]).mean().log()
                    for head in heads
                ]
                layers.append(torch.stack(found).mean())
            total = total + (1.0 + row) * torch.stack(layers).mean()
            pairs += 1.0 + row
    (task + weight * total / pairs).backward()
    return {name: -parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_the_step_is_that_of_eager_attention(tmp_path):
    data = examples()[:4]
    ours = step_of(tmp_path, data=data, supervised=supervision())
    order = list(data)  # one batch: its order changes pair weights, so take the one that the trainer takes
    seen = trainer(with_lora(tiny_llama()), tmp_path / "o", data=order, supervised=supervision()).get_train_dataloader()
    wanted = [data[number] for number in next(iter(seen))["index"].tolist()]
    assert largest_gap(eager_gradient(wanted, supervision(), 0.5), ours) < 1e-6


def test_the_attention_loss_changes_the_step(tmp_path):
    assert largest_gap(step_of(tmp_path), step_of(tmp_path, supervised=supervision())) > 0.01


def same_weights(items):
    """Pair weights that do not depend on the place in a batch."""
    batch = collate(items)
    batch["pair_weights"] = torch.ones_like(batch["pair_weights"])
    return batch


@pytest.mark.parametrize("size", [1, 2, 4])
def test_accumulation_takes_the_step_of_the_whole_batch(tmp_path, monkeypatch, size):
    monkeypatch.setattr("tests.teaching.collate", same_weights)
    whole = step_of(tmp_path / "a", supervised=supervision(), per_device_train_batch_size=8)
    parts = step_of(
        tmp_path / "b", supervised=supervision(), per_device_train_batch_size=size,
        gradient_accumulation_steps=8 // size,
    )  # fmt: skip
    assert largest_gap(whole, parts) < 1e-5


def test_a_batch_without_pairs_takes_the_plain_step(tmp_path):
    data = [{**item, "pairs": []} for item in examples()]
    assert largest_gap(step_of(tmp_path, data=data), step_of(tmp_path, data=data, supervised=supervision())) < 1e-6


def test_a_weight_of_nearly_nothing_takes_the_plain_step(tmp_path):
    tiny = step_of(tmp_path, supervised=supervision(), plan=WeightPlan(weight=1e-12))
    assert largest_gap(step_of(tmp_path), tiny) < 1e-6


def test_the_weight_rises_and_falls_as_planned():
    plan = WeightPlan(weight=2.0, warmup=0.5, decay=0.25)
    assert [plan.at(done) for done in (0.0, 0.25, 0.5, 0.75, 0.875, 1.0)] == [0.0, 1.0, 2.0, 2.0, 1.0, 0.0]


def test_a_model_whose_queries_and_keys_are_not_trained_is_stopped_at_the_first_step(tmp_path):
    model = with_lora(tiny_llama(), target_modules=["o_proj"], layers_to_transform=[1])
    learner = trainer(model, tmp_path, data=examples(), supervised=supervision())
    learner.supervision = type(learner.supervision)(settings=learner.supervision.settings, heads={0: (0,)})
    with pytest.raises(TrainingError, match="no gradient"):
        learner.train()


def test_training_raises_the_mass_on_the_pairs(tmp_path):
    model = with_lora(tiny_llama())
    lines = []
    learner = trainer(
        model, tmp_path, data=examples(), supervised=supervision(), max_steps=30, learning_rate=0.05,
        optim="adamw_torch", logging_strategy="steps", logging_steps=10, plan=WeightPlan(weight=1.0), norms_every=10,
    )  # fmt: skip
    hear(learner, lines.append)
    learner.train()
    told = [line for line in lines if "pair_mass" in line]
    assert len(told) == 3
    assert told[-1]["pair_mass"] > 1.5 * told[0]["pair_mass"]
    for line in told:
        assert {"task_loss", "attention_loss", "sink_mass", "pairs_met", "attention_weight"} <= set(line)
        assert line["task_gradient"] > 0 and line["attention_gradient"] > 0
        assert line["loss"] == pytest.approx(
            line["task_loss"] + line["attention_weight"] * line["attention_loss"], rel=1e-3
        )


def test_gradient_norms_are_those_of_each_loss_alone(tmp_path):
    data = examples()[:4]
    learner = trainer(with_lora(tiny_llama()), tmp_path, data=data, supervised=supervision())
    task, attention = learner.gradient_norms([collate(data)])
    plain = step_of(tmp_path / "p", data=data)
    assert task == pytest.approx(math.sqrt(sum(float(w.square().sum()) for w in plain.values())), rel=1e-5)
    assert attention > 0
    whole = learner.gradient_norms([equal_weights(data)])
    halves = learner.gradient_norms([equal_weights(data[:2]), equal_weights(data[2:])])
    assert halves == pytest.approx(whole, rel=1e-5)


def test_a_micro_batch_without_pairs_counts_in_the_task_gradient(tmp_path):
    """The first example has no pair: left out, the norm would be that of the other three."""
    data = examples()[:4]
    learner = trainer(with_lora(tiny_llama()), tmp_path, data=data, supervised=supervision())
    whole, _ = learner.gradient_norms([collate(data)])
    parts, _ = learner.gradient_norms([collate([one]) for one in data])
    assert parts == pytest.approx(whole, rel=1e-5)


def test_evaluation_adds_the_mass_and_does_not_gather_rows(tmp_path):
    learner = trainer(
        with_lora(tiny_llama()), tmp_path, data=examples(), supervised=supervision(), eval_dataset=examples(seed=5)
    )
    found = learner.evaluate()
    assert 0 < found["eval_pair_mass"] < 1 and found["eval_pairs"] == 12
    assert math.isfinite(found["eval_loss"])


@pytest.mark.parametrize("order", ["random", "sequential", "group_by_length"])
def test_dev_is_read_in_its_order_whatever_the_order_of_training(tmp_path, order):
    learner = trainer(
        with_lora(tiny_llama()), tmp_path, data=examples(), eval_dataset=examples(seed=5),
        train_sampling_strategy=order, per_device_eval_batch_size=2,
    )  # fmt: skip
    read = [batch["index"].tolist() for batch in learner.get_eval_dataloader()]
    assert [index for batch in read for index in batch] == [one["index"] for one in examples()]
    assert math.isfinite(learner.evaluate()["eval_loss"])


def test_a_loss_that_is_no_number_stops_the_run_with_step_and_examples(tmp_path):
    model = with_lora(tiny_llama())
    with torch.no_grad():
        next(weight for name, weight in model.named_parameters() if "lora_B" in name).fill_(float("nan"))
    with pytest.raises(TrainingError, match=r"step 1, examples \d"):
        trainer(model, tmp_path, data=examples(), supervised=supervision()).train()


def test_reentrant_checkpointing_is_refused_and_the_other_kind_takes_the_same_step(tmp_path):
    from probe import CijingError

    plain = step_of(tmp_path / "a", supervised=supervision())
    same = step_of(
        tmp_path / "b", supervised=supervision(), gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
    )  # fmt: skip
    assert largest_gap(plain, same) < 1e-6
    with pytest.raises(CijingError, match="reentrant"):
        step_of(
            tmp_path / "c", supervised=supervision(), gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": True},
        )  # fmt: skip


def test_spans_of_a_batch_ask_for_each_query_position_once():
    batch = collate(examples()[:4])
    pairs = taken(dict(batch))
    queries, spans = batch_pairs(*pairs, tokens=batch["input_ids"].shape[1])
    assert queries == [[], [8], [8, 7], [8, 7, 6]]
    assert spans.pairs == 6 and spans.item.tolist() == [1, 2, 2, 3, 3, 3]
    assert spans.keys.sum(1).tolist() == [2] * 6


# --- two processes: gloo, fp32, no dropout, the same examples in each step ---------------------------------------


def run_processes(count, folder, **settings):
    """Run tests.teaching as a program in that many processes; gives what process 0 wrote."""
    settings = {"folder": str(folder), **settings}
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"] if count > 1 else []
    done = subprocess.run(
        [sys.executable, *command, "-m" if count == 1 else "--module", "tests.teaching", json.dumps(settings)],
        env=environment, capture_output=True, text=True, timeout=300, cwd=root, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(folder / "told.pt", weights_only=True)


@pytest.mark.parametrize(("loss", "steps"), [("mass", 20), ("anchor", 5)])  # the anchor runs the wrapped model twice
def test_two_processes_take_the_steps_of_one(tmp_path, loss, steps):
    found = {}
    for count in (1, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        found[count] = run_processes(count, folder, size=8 // count, loss=loss, steps=steps)
    assert largest_gap(found[1]["first"], found[2]["first"]) < 1e-5
    one, two = (torch.tensor(found[count]["losses"]) for count in (1, 2))
    assert len(one) == steps
    assert ((one - two).abs() / one).max() < 1e-4
    for name in ("pair_mass", "pairs", "attention_loss", "task_loss"):
        assert found[1]["told"][name] == pytest.approx(found[2]["told"][name], rel=1e-3)
