"""What an accelerator would refuse or compute otherwise, on a pretended one: the numbers must be the CPU's own."""

import threading

import numpy as np
import pytest
import torch

from probe.capture import capture
from probe.captures import CaptureOptions
from probe.cases import case_of
from probe.edits import EdgeEdit, HeadEdit
from probe.experiments.reference import random_twin, twin_plan
from probe.generation import generate_rows, replay_rows
from probe.models import model_from_parts
from probe.rowrequest import RowRequest
from probe.rowtap import tap
from tests.pretended_device import DeviceFault, Held, pretended
from tests.tiny import FAMILIES, tiny_llama

CASE = case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["喜欢"])
EDITS = [EdgeEdit(query=(3,), key=(1, 2)), EdgeEdit(query=(2,), key=(0,), factor=2.0, heads=frozenset({1}))]


@pytest.fixture
def loaded_of():
    return lambda family: model_from_parts(*FAMILIES[family](), name=family)


def test_the_pretended_device_refuses_what_an_accelerator_would():
    ours = Held(torch.randn(2, 3))
    assert ours.device.type == "mps" and torch.equal((ours + 1).cpu(), ours.held + 1)
    for refused in (lambda: ours + torch.randn(2, 3), lambda: ours[torch.tensor([0])], lambda: ours.double()):
        with pytest.raises(DeviceFault):
            refused()
    with pytest.raises((RuntimeError, TypeError)):
        ours.numpy()


def captured(loaded):
    options = CaptureOptions(transformed_norms=True, head_outputs=True, memory_budget=1 << 30)
    (one,) = capture(loaded, [CASE], options=options)
    return [one.rows, one.value_norms, one.transformed_norms, one.head_outputs, *one.states.values()]


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_a_capture_is_the_same_on_another_device(loaded_of, family):
    expected = captured(loaded_of(family))
    model, tokenizer = FAMILIES[family]()
    with pretended(model):
        found = captured(model_from_parts(model, tokenizer, name=family))
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def edited(model, tokenizer, device):
    batch = {name: tensor.to(device) for name, tensor in tokenizer("我喜欢苹果但讨厌梨子", return_tensors="pt").items()}
    batch.pop("token_type_ids", None)
    request = RowRequest([[2, 3]], edits=[*EDITS, HeadEdit(heads=frozenset({0}), layers=frozenset({1}))])
    with torch.no_grad(), tap(model, request):
        state = model(**batch)[0]
    return [state.cpu(), *(rows.cpu() for rows in request.rows.values())]


@pytest.mark.parametrize("family", ["bert", "gemma3"])
def test_edits_are_the_same_on_another_device(family):
    model, tokenizer = FAMILIES[family]()
    expected = edited(model, tokenizer, "cpu")
    with pretended(model) as device:
        found = edited(model, tokenizer, device)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_replayed_answer_is_the_same_on_another_device(loaded_of):
    expected = replay_rows(loaded_of("llama"), "我喜欢苹果", [5, 6, 7])
    model, tokenizer = FAMILIES["llama"]()
    with pretended(model):
        loaded = model_from_parts(model, tokenizer, name="llama")
        found = replay_rows(loaded, "我喜欢苹果", [5, 6, 7], memory_budget=1 << 30)
    assert np.array_equal(found.rows, expected.rows)


def test_an_answer_that_ends_early_is_stitched_where_the_stop_is_seen_a_step_late(loaded_of):
    """On MPS `generate` makes one more pass after the answer's last token, and throws it away."""
    free = generate_rows(loaded_of("llama"), "我喜欢苹果", max_new_tokens=6)
    end = free.ids[2]
    expected = generate_rows(loaded_of("llama"), "我喜欢苹果", max_new_tokens=6, eos_token_id=end)
    model, tokenizer = FAMILIES["llama"]()
    with pretended(model):
        loaded = model_from_parts(model, tokenizer, name="llama")
        given = {"max_new_tokens": 6, "eos_token_id": end, "memory_budget": 1 << 30}
        before = torch.mps.get_rng_state()
        found = generate_rows(loaded, "我喜欢苹果", **given)
        assert torch.equal(torch.mps.get_rng_state(), before), "the caller's generator is left as it was"
    assert found.ids == expected.ids and found.queries == expected.queries
    assert np.array_equal(found.rows, expected.rows)


def test_new_weights_are_drawn_without_touching_an_accelerators_generator(loaded_of, monkeypatch):
    loaded = loaded_of("bert")
    expected = random_twin(twin_plan(loaded), seed=3).fingerprint
    monkeypatch.setattr(torch, "manual_seed", lambda seed: pytest.fail("it seeds CUDA and MPS as well"))
    assert random_twin(twin_plan(loaded), seed=3).fingerprint == expected


def in_a_thread(work):
    errors = []

    def run():
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_a_checkpointed_pass_is_computed_again_in_the_thread_of_an_accelerators_backward():
    """CUDA's autograd has threads of its own; a CPU's backward runs in the thread that calls it, here another one."""
    model, tokenizer = tiny_llama()
    batch = dict(tokenizer("我喜欢苹果但讨厌梨子", return_tensors="pt"))
    model.train()

    def gradient(backward):
        model.zero_grad()
        with tap(model, request := RowRequest([[4]])):
            model(**batch, use_cache=False)
            loss = sum(rows[0, :, 0, 1].sum() for rows in request.rows.values())
            backward(loss.backward)
        return model.model.layers[0].self_attn.q_proj.weight.grad.clone()

    plain = gradient(lambda backward: backward())
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert torch.allclose(gradient(in_a_thread), plain, atol=1e-6) and plain.abs().max() > 1e-4
