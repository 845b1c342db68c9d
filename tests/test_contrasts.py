"""Minimal groups: which cases are paired, what is averaged, and the tests of the test on models."""

import numpy as np
import pytest
import torch
import transformers

from probe.capture import capture_prepared, prepare
from probe.captures import CaptureOptions
from probe.cases import Case, load_cases
from probe.contrasts import contrasts_of, differences, slot_pairs
from probe.flips import flip_tests
from probe.measures.focus import FOCUS, Measure, focus
from probe.models import load_model, model_from_parts
from probe.spans import Span
from tests.planted import CUES, HEAD, LAYER, planted_model
from tests.tiny import FAMILIES

MASS = FOCUS.index(Measure("target", "cue", "attention mass"))


def slot_case(name, word, sense, *, group, carrier="他们{}了苹果酶氢"):
    text = carrier.format(word)
    start, target = carrier.index("{"), text.index("苹果")
    return Case(
        id=name, text=text, target=Span(target, target + 2), cues=(Span(start, start + len(word)),), sense=sense,
        group=group,
    )  # fmt: skip


def loaded(family):
    model, tokenizer = FAMILIES[family](head=False)
    return model_from_parts(model, tokenizer, name=family)


def masses(model, items):
    return np.stack([focus(one)[MASS] for one in capture_prepared(model, items, options=CaptureOptions(states=False))])


def test_a_cue_is_paired_with_the_neutral_word_of_its_own_group_in_the_same_slot():
    cases = [
        slot_case("a", "喜欢", "fruit", group="1"),
        slot_case("b", "酸脱", "neutral", group="1"),
        slot_case("c", "手机", "device", group="1"),
        slot_case("d", "公司", "company", group="2"),
        slot_case("e", "被但我", "neutral", group="2"),  # three tokens against two: no pair
        slot_case("f", "讨厌", "fruit", group="3"),
        slot_case("g", "酸脱", "neutral", group="3", carrier="我们{}了苹果酶氢"),  # another carrier: no pair
        slot_case("h", "热爱", "fruit", group=""),
    ]
    pairs = slot_pairs(prepare(loaded("bert"), cases))
    assert [(pair.contrast, pair.unit, pair.cue, pair.neutral) for pair in pairs] == [
        ("fruit", "喜欢", 0, 1),
        ("device", "手机", 2, 1),
    ]
    assert contrasts_of(pairs) == ("fruit", "device")


def test_sentences_that_share_a_cue_word_are_averaged_before_the_test():
    cases = []
    for number, word in enumerate(["喜欢", "喜欢", "讨厌"]):
        carrier = ["他们{}了苹果酶氢", "我们{}了苹果酶氢", "但他{}了苹果酶氢"][number]
        cases.append(slot_case(f"{number}", word, "fruit", group=f"{number}", carrier=carrier))
        cases.append(slot_case(f"{number}n", "酸脱", "neutral", group=f"{number}", carrier=carrier))
    pairs = slot_pairs(prepare(loaded("bert"), cases))
    values = np.array([3.0, 1.0, 6.0, 2.0, 1.0, 1.0])
    gaps, units = differences(values, pairs, "fruit")
    assert units == ("喜欢", "讨厌") and gaps.tolist() == [3.0, 0.0]


def test_the_planted_head_is_found_alone():
    neutral = ("酸脱", "氢酶", "被但", "我他", "们脱", "酶酸")
    cases = []
    for number, cue in enumerate(CUES):
        cases.append(slot_case(f"{number}", cue, "fruit", group=f"{number}"))
        cases.append(slot_case(f"{number}n", neutral[number % len(neutral)], "neutral", group=f"{number}"))
    model = planted_model()
    items = prepare(model, cases)
    pairs = slot_pairs(items)
    assert len(pairs) == len(CUES)
    gaps, _ = differences(masses(model, items), pairs, "fruit")
    family = flip_tests([gaps], seed=0)
    assert np.argwhere(family.p_max[0] < 0.05).tolist() == [[LAYER, HEAD]]
    assert (np.delete(np.abs(gaps).max(0).ravel(), LAYER * 4 + HEAD) < 1e-6).all()


def random_bert(seed, tokenizer):
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=96, num_hidden_layers=6, num_attention_heads=6, intermediate_size=96,
        max_position_embeddings=128, initializer_range=0.2,
    )  # fmt: skip
    return model_from_parts(transformers.BertModel(config, add_pooling_layer=False), tokenizer, name=f"random {seed}")


@pytest.mark.real
def test_random_models_are_rarely_called_significant_and_an_uncorrected_test_calls_them_always():
    tokenizer = load_model("builtin:e5-small").tokenizer
    cases = [case for case in load_cases("apple").cases if case.meta.get("contrast") in {"fruit", "company"}]
    found, uncorrected = 0, 0
    for seed in range(20):
        model = random_bert(seed, tokenizer)
        items = prepare(model, cases)
        pairs, values = slot_pairs(items), masses(model, items)
        tables = [differences(values, pairs, name)[0] for name in contrasts_of(pairs)]
        family = flip_tests(tables, seed=seed, flips=2000)
        found += any(bool((p < 0.05).any()) for p in family.p_max)
        uncorrected += any(bool((test.p < 0.05).any()) for test in family.tests)
    assert found <= 3
    assert uncorrected > 3, "the same test without max-T must fail"


@pytest.mark.real
def test_labels_exchanged_at_random_reject_as_rarely_as_promised():
    cases = [case for case in load_cases("apple").cases if case.meta.get("contrast") == "fruit"]
    model = random_bert(0, load_model("builtin:e5-small").tokenizer)
    items = prepare(model, cases)
    gaps, _ = differences(masses(model, items), slot_pairs(items), "fruit")
    rejected = uncorrected = 0
    for seed in range(200):
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], len(gaps))
        family = flip_tests([gaps * signs[:, None, None]], seed=seed, flips=500)
        rejected += bool((family.p_max[0] < 0.05).any())
        uncorrected += bool((family.tests[0].p < 0.05).any())
    assert rejected <= 18
    assert uncorrected > 18
