"""Cut edges: against a computation of our own, where the effect must be and where it must be exactly zero."""

import numpy as np
import pytest
import torch

from probe.capture import prepare
from probe.cases import case_of
from probe.experiments.causes import cut_effects
from probe.models import model_from_parts
from probe.routes import route_of
from tests.planted import LAYER, planted_cases, planted_model
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
