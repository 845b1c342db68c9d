"""Cut edges: against a computation of our own, where the effect must be and where it must be exactly zero."""

import numpy as np
import pytest
import torch

from probe.capture import prepare
from probe.cases import case_of
from probe.errors import TapError
from probe.experiments.causes import cut_effects, head_cut_effects
from probe.models import model_from_parts
from probe.routes import route_of
from tests.planted import HEAD, LAYER, planted_cases, planted_model
from tests.test_rowtap import brute_force
from tests.tiny import FAMILIES


def loaded(family):
    model, tokenizer = FAMILIES[family](head=False)
    return model_from_parts(model, tokenizer, name=family)


@pytest.mark.parametrize("family", ["bert", "llama", "gemma3", "bart"])
def test_the_effect_equals_a_brute_force_cut(family):
    model = loaded(family)
    items = prepare(model, [case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["喜欢"], id="a")])
    effects = cut_effects(model, route_of(model), items)
    target, cue = list(items[0].target), [i for words in items[0].cues for i in words]
    ids = torch.tensor([items[0].tokens.ids])
    root = model.backbone.encoder if family == "bart" else model.backbone
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def state(layers):
        def change(layer, weights):
            weights = weights.clone()
            if layer.index in layers:
                for row in target:
                    weights[:, :, row, cue] = 0.0
                    weights[:, :, row] /= weights[:, :, row].sum(-1, keepdim=True)
            return weights

        return brute_force(root, batch, change)[0, target].mean(0)

    plain = state(())
    for column, layers in enumerate([effects.layers, *([layer] for layer in effects.layers)]):
        expected = float((state(layers) - plain).norm() / plain.norm())
        assert effects.cue[0, column] == pytest.approx(expected, abs=1e-5)
        assert expected > 1e-4


def test_only_the_planted_layer_has_an_effect_and_the_control_has_none():
    model = planted_model()
    effects = cut_effects(model, route_of(model), prepare(model, planted_cases().cases))
    others = [1 + layer for layer in effects.layers if layer != LAYER]
    assert (effects.cue[:, 1 + LAYER] > 0.01).all()
    assert (effects.cue[:, others] == 0).all()
    assert (effects.control[:, 1 + LAYER] < 0.1 * effects.cue[:, 1 + LAYER]).all()
    assert np.allclose(effects.cue[:, 0], effects.cue[:, 1 + LAYER])


def test_in_a_causal_model_the_later_word_reads():
    model = loaded("llama")
    cases = [
        case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["喜欢"], id="before"),
        case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["讨厌"], id="after"),
        case_of("我喜欢苹果但讨厌梨子", target="苹果", id="none"),
    ]
    effects = cut_effects(model, route_of(model), prepare(model, cases))
    assert effects.directions == ("target → cue", "cue → target", None)
    assert (effects.cue[:2] > 0).all() and np.isnan(effects.cue[2]).all()


def test_an_encoder_decoder_is_judged_in_its_encoder():
    model = loaded("bart")
    effects = cut_effects(
        model, route_of(model), prepare(model, [case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["喜欢"])])
    )
    assert effects.stack == "encoder" and effects.layers == (0, 1) and (effects.cue > 0).all()


def test_cases_chosen_for_single_layers_are_the_only_ones_cut_there():
    model = planted_model()
    items = prepare(model, planted_cases().cases[:4])
    route = route_of(model)
    some = cut_effects(model, route, items, by_layer=[1, 3])
    every = cut_effects(model, route, items)
    assert np.isnan(some.cue[[0, 2], 1:]).all() and not np.isnan(some.cue[:, 0]).any()
    assert np.allclose(some.cue[[1, 3]], every.cue[[1, 3]], atol=1e-6)


def test_controls_can_be_named():
    model = loaded("bert")
    items = prepare(model, [case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["喜欢"])])
    route = route_of(model)
    named = cut_effects(model, route, items, controls=[tuple(items[0].cues[0])], by_layer=())
    assert named.control[0, 0] == pytest.approx(float(named.cue[0, 0]))


@pytest.mark.parametrize("family", ["bert", "llama", "gemma3", "bart"])
def test_the_effect_of_one_head_equals_a_brute_force_cut_in_it_alone(family):
    model = loaded(family)
    items = prepare(model, [case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["喜欢"], id="a")])
    heads = [(layer, head) for layer in (0, 1) for head in (0, 3)]
    cuts = head_cut_effects(model, items, heads)
    target, cue = list(items[0].target), [i for words in items[0].cues for i in words]
    ids = torch.tensor([items[0].tokens.ids])
    root = model.backbone.encoder if family == "bart" else model.backbone

    def state(where):
        def change(layer, weights):
            weights = weights.clone()
            if where and layer.index == where[0]:
                for row in target:
                    weights[:, where[1], row, cue] = 0.0
                    weights[:, where[1], row] /= weights[:, where[1], row].sum(-1, keepdim=True)
            return weights

        return brute_force(root, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, change)[0, target].mean(0)

    plain = state(None)
    assert cuts.heads == tuple(heads) and cuts.cue.shape == (1, 4)
    expected = [float((state(where) - plain).norm() / plain.norm()) for where in heads]
    assert cuts.cue[0].tolist() == pytest.approx(expected, rel=0.01, abs=1e-6)
    assert min(expected) > 1e-5 and max(expected) > 1e-3


def test_a_layer_of_one_head_is_its_head_and_a_layer_of_four_is_none_of_them():
    case = case_of("我们喜欢苹果但讨厌梨子", target="苹果", cues=["喜欢"], id="a")
    for heads, same in ((1, True), (4, False)):
        model, tokenizer = FAMILIES["bert"](head=False, num_attention_heads=heads)
        model = model_from_parts(model, tokenizer, name="bert")
        items = prepare(model, [case])
        by_layer = cut_effects(model, route_of(model), items, by_layer=(0,))
        single = head_cut_effects(model, items, [(layer, head) for layer in range(3) for head in range(heads)])
        for whole, parts in ((by_layer.cue, single.cue), (by_layer.control, single.control)):
            near = np.isclose(parts.reshape(3, heads), whole[0, 1:, None], rtol=1e-4, atol=1e-7)
            assert near.all() if same else not near.any()
            assert same or not np.allclose(parts.reshape(3, heads).sum(1), whole[0, 1:], rtol=1e-2)


def test_only_the_planted_head_of_its_layer_has_an_effect():
    model = planted_model()
    heads = [(layer, head) for layer in range(3) for head in range(4)]
    cuts = head_cut_effects(model, prepare(model, planted_cases().cases), heads)
    planted = heads.index((LAYER, HEAD))
    assert (cuts.cue[:, planted] > 0.01).all() and (cuts.control[:, planted] < 0.1 * cuts.cue[:, planted]).all()
    assert (np.delete(cuts.cue, planted, axis=1) == 0).all()


def test_single_heads_of_a_case_without_cue_are_unknown_and_the_later_word_reads():
    model = loaded("llama")
    cases = [
        case_of("我喜欢苹果但讨厌梨子", target="苹果", id="none"),
        case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["讨厌"], id="after"),
    ]
    cuts = head_cut_effects(model, prepare(model, cases), [(0, 0), (2, 3)])
    assert np.isnan(cuts.cue[0]).all() and (cuts.cue[1] > 0).all() and cuts.stack == "decoder"


def test_single_heads_cannot_be_cut_without_the_tap():
    import transformers

    from tests.tiny import byte_level_tokenizer

    tokenizer = byte_level_tokenizer(start=None, end="<|endoftext|>", pad="<|pad|>")
    config = transformers.BloomConfig(vocab_size=len(tokenizer), hidden_size=32, n_layer=2, n_head=4)
    model = model_from_parts(transformers.BloomModel(config), tokenizer, name="bloom")
    items = prepare(model, [case_of("我喜欢苹果", target="苹果", cues=["喜欢"], id="a")])
    with pytest.raises(TapError):
        head_cut_effects(model, items, [(0, 0)])
