"""Weights that change after loading: the cache and the reports follow them, whichever way they were changed."""

import dataclasses
import time

import pytest
import torch

from probe.anatomy import fingerprint, weights_stamp
from probe.capture import capture
from probe.captures import CaptureOptions
from probe.cases import case_of
from probe.models import facts_of, model_from_parts
from tests.test_wrappers import adapted
from tests.tiny import tiny_bert, tiny_llama

CASE = case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["喜欢"])


def step(model, kind="AdamW", **settings):
    """One optimizer step on whatever is to be trained."""
    ids = torch.tensor([[5, 6, 7, 8]])
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    model(input_ids=ids, labels=ids).loss.backward()
    getattr(torch.optim, kind)(weights, lr=0.1, **settings).step()
    model.zero_grad()


def through_data(model):
    """As older averaging code writes: torch's version counters do not see it."""
    for weight in model.parameters():
        before = weight._version
        weight.data.mul_(0.9)
        assert weight._version == before


def replaced(model):
    for module in model.modules():
        if hasattr(module, "q_proj"):
            module.q_proj.weight = torch.nn.Parameter(module.q_proj.weight.detach().flip(0).clone())


CHANGES = {
    "AdamW": step,
    "AdamW, each": lambda model: step(model, foreach=False),
    "AdamW, fused": lambda model: step(model, fused=True),
    "SGD": lambda model: step(model, "SGD"),
    "load_state_dict": lambda model: model.load_state_dict(tiny_llama(seed=1)[0].state_dict()),
    "assigned": lambda model: model.load_state_dict(tiny_llama(seed=1)[0].state_dict(), assign=True),
    ".data": through_data,
    "replaced": replaced,
    "settings": lambda model: setattr(model.config, "rms_norm_eps", 0.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_cache_follows_base_weights_that_change_in_place(tmp_path, change):
    model, tokenizer = tiny_llama()
    loaded = model_from_parts(model, tokenizer, name="m")

    def rows(**more):
        return next(capture(loaded, [CASE], options=CaptureOptions(**more))).rows

    first = rows(cache=tmp_path)
    assert loaded.fingerprint_now() == loaded.fingerprint and len(list(tmp_path.rglob("*.safetensors"))) == 1
    CHANGES[change](model)
    assert loaded.fingerprint_now() == fingerprint(model, tokenizer) != loaded.fingerprint
    assert facts_of(loaded).fingerprint == loaded.fingerprint_now()
    after = rows(cache=tmp_path)
    assert (after == rows()).all() and len(list(tmp_path.rglob("*.safetensors"))) == 2
    assert change == "settings" or (after != first).any()


def test_the_cache_follows_lora_weights_and_comes_back_with_the_old_ones(tmp_path):
    model, tokenizer = tiny_llama()
    model = adapted(model, "llama", "law")
    loaded = model_from_parts(model, tokenizer, name="m")
    options = CaptureOptions(cache=tmp_path)
    first = next(capture(loaded, [CASE], options=options)).rows
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    base = {name: tensor for name, tensor in before.items() if "lora" not in name}
    step(model)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in base.items())
    after = next(capture(loaded, [CASE], options=options)).rows
    assert (after != first).any() and (after == next(capture(loaded, [CASE])).rows).all()
    model.load_state_dict(before)
    again = next(capture(loaded, [CASE], options=options)).rows
    assert (again == first).all() and loaded.fingerprint_now() == loaded.fingerprint
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2


def test_unchanged_weights_are_not_hashed_again_and_passes_change_nothing(monkeypatch):
    from probe import models

    model, tokenizer = tiny_bert(head=True)
    loaded = model_from_parts(model, tokenizer, name="m")
    hashed = []
    right = models.fingerprint
    monkeypatch.setattr(models, "fingerprint", lambda *parts: hashed.append(1) or right(*parts))
    list(capture(loaded, [CASE]))
    with torch.inference_mode():
        model(input_ids=torch.tensor([[5, 6]]))
    assert loaded.fingerprint_now() == loaded.fingerprint and not hashed
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[0, 0] += 1.0
    assert loaded.fingerprint_now() == loaded.fingerprint_now() != loaded.fingerprint and len(hashed) == 1
    assert dataclasses.replace(loaded, fingerprint="other", stamp=weights_stamp(model)).fingerprint_now() == "other"


def test_weights_made_in_inference_mode_have_a_stamp_too():
    with torch.inference_mode():
        model, tokenizer = tiny_bert(head=True)
        loaded = model_from_parts(model, tokenizer, name="m")
        assert next(model.parameters()).is_inference()
        model.bert.encoder.layer[0].attention.self.query.weight.mul_(2.0)
    assert loaded.fingerprint_now() != loaded.fingerprint


def test_a_stamp_takes_a_small_part_of_the_time_of_a_fingerprint():
    model, tokenizer = tiny_bert(head=True, hidden_size=512, intermediate_size=2048, num_hidden_layers=6)
    took = []
    for work in (lambda: weights_stamp(model), lambda: fingerprint(model, tokenizer)):
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    assert took[0] < took[1] / 3
