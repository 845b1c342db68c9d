"""The benchmark of a supervised LoRA step in small, and that its attention loss teaches what it should."""

import json

import pytest
import torch

from benchmarks import supervised_step
from benchmarks.supervised_step import (
    RANDOM,
    ROWS,
    Setting,
    attention_loss,
    language_loss,
    learner_of,
    plain_step,
    subject_of,
    supervision,
)
from probe.rowrequest import RowRequest
from probe.rowtap import attached
from tests.tiny import FAMILIES

LENGTH = 40


def tiny_learner(family="gemma3"):
    model, _ = FAMILIES[family]()
    # Both matrices drawn: as PEFT begins, B is zero, and A would have no gradient to compare.
    return learner_of(model, [place % 30 + 3 for place in range(LENGTH)], init_lora_weights=False)


def near_keys():
    """Each query to itself and the token before: within the tiny model's window of four."""
    queries, _ = supervision(LENGTH)
    return queries, torch.tensor([[query - 1, query] for query in queries])


def gradients_of(learner, loss):
    learner.model.zero_grad()
    loss.backward()
    return {name: one.grad.clone() for name, one in learner.model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("family", ["gemma3", "llama"])
def test_the_attention_losss_gradient_is_that_of_eager_maps(family):
    learner = tiny_learner(family)
    queries, keys = near_keys()
    request = RowRequest([queries])
    with attached(learner.model):
        language_loss(learner, rows=request)
        tapped = attention_loss(list(request.rows.values()), keys)
        ours = gradients_of(learner, tapped)
    learner.model.get_base_model().set_attn_implementation("eager")
    maps = learner.model(input_ids=learner.ids, output_attentions=True, use_cache=False).attentions
    whole = attention_loss([one[:, :, queries] for one in maps], keys)
    eagers = gradients_of(learner, whole)
    assert tapped.item() == pytest.approx(whole.item(), rel=1e-5)
    assert ours.keys() == eagers.keys()
    assert len(ours) == 2 * (4 * len(request.rows) - 2)  # the last layer's values and output come after all rows
    for name, one in eagers.items():
        assert torch.allclose(ours[name], one, rtol=1e-3, atol=2e-5 * max(float(one.abs().max()), 0.1)), name


def test_the_attention_loss_reaches_the_query_and_key_matrices_of_every_layer():
    learner = tiny_learner()
    queries, keys = near_keys()
    request = RowRequest([queries])
    with attached(learner.model):
        language_loss(learner, rows=request)
        found = gradients_of(learner, attention_loss(list(request.rows.values()), keys))
    reached = {name for name, one in found.items() if float(one.abs().max()) > 0}
    wanted = {name for name in found if "q_proj" in name or "k_proj" in name}
    assert len(wanted) == 2 * 2 * len(request.rows) and wanted <= reached


def test_supervised_steps_raise_the_attention_that_plain_steps_leave_alone():
    def looked_at(step):
        model, ids = subject_of(Setting(model=RANDOM, tokens=64))
        learner = learner_of(model, ids)
        learner.optimizer.param_groups[0]["lr"] = 1e-2
        for _ in range(6):
            step(learner)
        queries, keys = supervision(64)
        request = RowRequest([queries])
        with torch.no_grad(), attached(learner.model):
            language_loss(learner, rows=request)
        return -float(attention_loss(list(request.rows.values()), keys))

    assert looked_at(supervised_step.supervised_step) > looked_at(plain_step) + 0.01


def test_the_supervised_rows_are_eight_and_their_keys_stand_before_them():
    queries, keys = supervision(1024)
    assert len(set(queries)) == ROWS == len(keys) and max(queries) < 1024
    assert all(0 <= int(key) < query for query, row in zip(queries, keys, strict=True) for key in row)


def test_the_small_preset_keeps_its_bounds_and_writes_its_table(tmp_path):
    file = tmp_path / "step.json"
    assert supervised_step.main(["--preset", "ci", "--pairs", "2", "--json", str(file)]) == 0
    time, memory = json.loads(file.read_text("utf-8"))
    assert (time["quantity"], memory["quantity"]) == ("CPU time", "memory increase")
    assert time["setting"] == "random Llama LoRA step, 256" and time["other"] > 0
    assert memory["other"] > 1000 * 256 * 4 / 1e6  # the logits


def test_the_full_preset_holds_the_lengths_and_bounds_that_are_claimed():
    claimed = [(one.tokens, one.time_bound, one.memory_bound) for one in supervised_step.PRESETS["full"]]
    assert claimed == [(1024, 1.08, 1.05), (2048, 1.08, 1.05)]
