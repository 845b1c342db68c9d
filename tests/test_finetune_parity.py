"""Every loss's gradient against eager attention and plain torch, and what training with each loss moves."""

import pytest
import torch

from benchmarks import gradient_parity
from benchmarks.gradient_parity import (
    BOUND,
    LOSSES,
    REDUCTIONS,
    SHARE,
    eager_gradients,
    losses_of,
    norm,
    relative,
    steps_of,
    trainers_gradient,
)
from finetune.supervise import NEGATIVE, Supervision, batch_pairs, request_for
from finetune.tasks import PairHead, SenseHead
from finetune.trainer import WeightPlan
from probe import attached
from tests.teaching import collate, examples, supervision, tiny_llama, trainer, with_lora

HEADS = {0: (1, 3), 1: (0, 1, 2)}


def with_negatives(batch):
    """The batch, each pair with the first position as one that its query is not to read."""
    pairs = len(batch["pair_weights"])
    rows = {pair: row for row, _, pair, _ in batch["spans"].tolist()}
    more = torch.tensor([(rows[pair], NEGATIVE, pair, 0) for pair in range(pairs)])
    return {**batch, "spans": torch.cat([batch["spans"], more])}


def learner_for(task):
    """A tiny model with LoRA and its batch, for a task."""
    batch = with_negatives(collate(examples()[:4]))
    if task == "causal-lm":
        return with_lora(tiny_llama()), batch
    from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel

    torch.manual_seed(0)
    kind = {"masked-lm": BertForMaskedLM, "classification": BertForSequenceClassification}.get(task, BertModel)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = kind(BertConfig(vocab_size=60, num_labels=3, **sizes, **no_dropout))
    model = with_lora(model, target_modules=["query", "key", "value"])
    if task == "masked-lm":
        return model, batch
    batch["labels"] = torch.tensor([0, 1, 1, 0])
    if task == "classification":
        return model, batch
    batch["target_mask"] = torch.zeros_like(batch["attention_mask"], dtype=torch.bool)
    batch["target_mask"][:, 2:4] = True
    if task == "word-in-context":
        batch["second_mask"] = batch["target_mask"].roll(4, 1)
    model.reading_head = SenseHead(32, 3) if task == "sense" else PairHead(32)
    return model, batch


TASKS = [("causal-lm", REDUCTIONS), ("masked-lm", REDUCTIONS)]  # one decoder, one encoder: all; then the other tasks
TASKS += [("classification", ("each",)), ("sense", ("each",)), ("word-in-context", ("each",))]


@pytest.mark.parametrize(("task", "reductions"), TASKS)
def test_every_loss_and_head_reduction_has_the_gradient_of_eager_maps(task, reductions):
    """The criterion of benchmarks.gradient_parity, on weights of float64: no loss of these learners is excepted."""
    model, batch = learner_for(task)
    model.double()
    for name, value in model.named_buffers():
        assert value.dtype != torch.float32, name
    cases = [Supervision(settings=one, heads=HEADS) for one in losses_of(LOSSES, reductions)]
    gaps = {
        (one.supervision.settings.name, one.supervision.settings.heads): relative(one.ours, one.eager)
        for one in steps_of(model, batch, cases, task=task)
    }
    assert len(gaps) == len(LOSSES) * len(reductions)
    assert {case: gap for case, gap in gaps.items() if not gap <= BOUND} == {}


def test_the_two_sides_differ_where_one_has_another_weight_or_a_head_less():
    """What the bound is worth: a hundred-thousandth more of any loss, or one head of five missing, is beyond it."""
    model, batch = learner_for("masked-lm")
    model.double()
    for case in [Supervision(settings=one, heads=HEADS) for one in losses_of(LOSSES, ("each",))]:
        plain, (attention,) = eager_gradients(model, batch, [case], task="masked-lm")
        weight = SHARE * norm(plain) / norm(attention)
        eager = [one + weight * other for one, other in zip(plain, attention, strict=True)]
        assert norm(eager) == pytest.approx(norm(plain), rel=SHARE)
        more = trainers_gradient(model, batch, case, task="masked-lm", weight=weight * 1.00001)
        assert relative(more, eager) > BOUND
        fewer = Supervision(settings=case.settings, heads={**HEADS, 1: HEADS[1][:-1]})
        assert relative(trainers_gradient(model, batch, fewer, task="masked-lm", weight=weight), eager) > 1e-3


def test_on_the_real_e5_as_well(capsys):
    assert gradient_parity.main(["--preset", "ci"]) == 0
    assert capsys.readouterr().out.count("kept") == len(LOSSES)


# ---- what a loss moves ------------------------------------------------------------------------------------------


def looked_at(model, batch):
    """Rows of the supervised heads, and where the pairs' spans are."""
    queries, spans = batch_pairs(batch["spans"], batch["pair_weights"], tokens=batch["input_ids"].shape[1])
    request = request_for(queries, texts=len(batch["input_ids"]), layers=tuple(HEADS))
    model.eval()
    with torch.no_grad(), attached(model):
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], rows=request, use_cache=False)
    return [rows[:, list(HEADS[layer.index])] for layer, rows in request.rows.items()], spans


def measured(model, batch):
    """Mass on the keys, its lead over that on the negatives, and how far the rows went from the base's."""
    rows, spans = looked_at(model, batch)
    with model.disable_adapter():
        base, _ = looked_at(model, batch)
    found = [spans.rows_of(one).double() for one in rows]
    before = [spans.rows_of(one).double() for one in base]
    mass, other = (
        torch.stack([(row * keys[:, None]).sum(-1).mean() for row in found]).mean()
        for keys in (spans.keys, spans.negatives)
    )
    drift = [torch.where(b > 0, b * (b.clamp_min(1e-30) / r.clamp_min(1e-30)).log(), 0.0).sum(-1).mean()
             for b, r in zip(before, found, strict=True)]  # fmt: skip
    return {"mass": float(mass), "lead": float(mass.log() - other.log()), "drift": float(torch.stack(drift).mean())}


def taught(folder, **more):
    """What `measured` says before and after twelve steps."""
    data = examples()[:4]
    learner = trainer(
        with_lora(tiny_llama()), folder, data=data, max_steps=12, learning_rate=0.02, optim="adamw_torch", **more
    )
    learner.data_collator = lambda items: with_negatives(collate(items))
    before = measured(learner.model, with_negatives(collate(data)))
    learner.train()
    return before, measured(learner.model, with_negatives(collate(data)))


@pytest.fixture(scope="module")
def taught_without(tmp_path_factory):
    """After steps on the task alone."""
    return taught(tmp_path_factory.mktemp("without"))[1]


MOVES = [(name, "mass", 1) for name in ("mass", "kl", "sse", "mse")]
MOVES += [("margin", "lead", 1), ("repel", "mass", -1), ("anchor", "drift", -1)]


@pytest.mark.parametrize(("name", "quantity", "sign"), MOVES)
def test_training_moves_what_the_loss_names_in_its_direction_more_than_training_without(
    taught_without, tmp_path, name, quantity, sign
):
    before, after = taught(tmp_path, supervised=supervision(name=name, margin=20.0), plan=WeightPlan(weight=20.0))
    assert sign * (after[quantity] - before[quantity]) > 0
    assert sign * (after[quantity] - taught_without[quantity]) > 0


def test_the_anchors_look_at_the_base_leaves_dropout_modes_and_trained_weights_as_they_were(tmp_path):
    """The pass without the adapter draws no random number: with a weight of nothing the steps are the plain ones."""
    steps = {}
    for name, supervised in (("plain", None), ("anchor", supervision(name="anchor"))):
        model = with_lora(tiny_llama(attention_dropout=0.2), lora_dropout=0.2)
        more = {"plan": WeightPlan(weight=1e-12)} if supervised else {}
        learner = trainer(
            model, tmp_path, data=examples(), supervised=supervised, max_steps=3, learning_rate=0.1,
            gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}, **more,
        )  # fmt: skip
        learner.train()
        assert all(module.training for module in model.modules())
        steps[name] = {key: weight.detach().clone() for key, weight in model.named_parameters() if weight.requires_grad}
    assert steps["plain"].keys() == steps["anchor"].keys()
    for key, weight in steps["plain"].items():
        assert torch.allclose(weight, steps["anchor"][key], atol=1e-6), key
