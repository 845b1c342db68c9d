"""Words that a target reads: against cuts of known cues, where the truth is planted, and where mass misleads."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from probe.capture import prepare
from probe.cases import case_of
from probe.errors import TapError
from probe.experiments.causes import cut_effects
from probe.experiments.readings import cases_to_read, reading_frame, word_readings
from probe.models import model_from_parts
from probe.routes import batch_for, eager_maps, route_of
from probe.spans import tokens_of
from tests.planted import HEAD, LAYER, planted_cases, planted_model
from tests.test_rowtap import brute_force
from tests.tiny import FAMILIES

TEXT = "我喜欢苹果但讨厌梨子"


def loaded(family):
    model, tokenizer = FAMILIES[family](head=False)
    return model_from_parts(model, tokenizer, name=family)


def read(model, cases, **bounds):
    """Readings of cases, whatever cues are marked in them."""
    items = [replace(item, cues=()) for item in prepare(model, cases)]
    return word_readings(model, route_of(model), items, **bounds)


def labels(words):
    return [word.label for word in words]


@pytest.mark.parametrize("family", ["bert", "llama", "bart"])
def test_the_effect_of_a_word_is_that_of_a_cue_marked_there(family):
    model = loaded(family)
    (reading,) = read(model, [case_of(TEXT, target="苹果", id="a")])
    cases = [case_of(TEXT, target="苹果", cues=[word.span], id=str(word.span)) for word in reading.ranked]
    marked = cut_effects(model, route_of(model), prepare(model, cases), by_layer=())
    assert set(marked.directions) == {"target → cue"}
    assert [word.effect for word in reading.ranked] == pytest.approx(marked.cue[:, 0].tolist(), abs=1e-5)


def test_effects_and_masses_equal_a_computation_with_whole_maps():
    model = loaded("bert")
    (item,) = prepare(model, [case_of(TEXT, target="苹果", id="a")])
    (reading,) = read(model, [item.case])
    ids = torch.tensor([item.tokens.ids])
    maps = []

    def last(cut):
        def change(layer, weights):
            maps.append(weights)
            weights = weights.clone()
            for row in item.target:
                weights[:, :, row, cut] = 0.0
                weights[:, :, row] /= weights[:, :, row].sum(-1, keepdim=True)
            return weights

        return brute_force(model.backbone, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, change)

    plain = last([])[0, list(item.target)].mean(0)
    mass = torch.cat(maps)[:, :, list(item.target)].mean((0, 1, 2))  # [key]
    places = [place for place in range(len(item.tokens.ids)) if place not in item.target]
    effects = [float((last([place])[0, list(item.target)].mean(0) - plain).norm() / plain.norm()) for place in places]
    assert labels(reading.words) == [item.tokens.labels[place] for place in places]
    assert [word.effect for word in reading.words] == pytest.approx(effects, abs=1e-5)
    assert [word.mass for word in reading.words] == pytest.approx([float(mass[place]) for place in places], abs=1e-6)


@pytest.mark.parametrize("family", ["gpt2", "bart", "t5"])
def test_the_mass_of_a_word_is_the_sum_over_its_tokens_in_its_own_stack(family):
    model = loaded(family)
    (item,) = prepare(model, [case_of("他讨厌菠菜", target="菠菜", id="a")])
    (reading,) = read(model, [item.case])
    maps, _ = eager_maps(model, batch_for(model, [item.tokens.ids]))
    stack = "decoder" if family == "gpt2" else "encoder"
    rows = torch.cat([grid for layer, grid in maps.items() if layer.stack == stack])[:, :, list(item.target)]
    row = rows.mean((0, 1, 2))  # [key]
    for word in reading.ranked:
        assert word.mass == pytest.approx(float(row[tokens_of(word.span, item.tokens)].sum()), abs=1e-6)
    own = float(row[list(item.target)].sum())
    assert own + sum(word.mass for word in reading.words) == pytest.approx(1, abs=1e-5)


def test_the_planted_cue_comes_out_on_top_though_nothing_marks_it():
    cases = planted_cases().cases
    for case, reading in zip(cases, read(planted_model(), cases), strict=True):
        cue = case.cues[0].cut(case.text)
        assert set(labels(reading.ranked[: len(cue)])) == set(cue), case.id
        assert reading.largest_effect.label in cue and reading.largest_effect.effect_rank < 2


def test_where_a_head_reads_a_word_but_writes_nothing_there_is_mass_and_no_effect():
    model = planted_model()
    size = model.backbone.config.hidden_size // model.backbone.config.num_attention_heads
    output = model.backbone.encoder.layer[LAYER].attention.output.dense.weight
    with torch.no_grad():
        output[:, HEAD * size : (HEAD + 1) * size] = 0.0
    cases = planted_cases().cases
    for case, reading in zip(cases, read(model, cases), strict=True):
        assert reading.largest_mass.label in case.cues[0].cut(case.text)
        assert all(word.effect == 0 for word in reading.words)
        assert reading.largest_effect is None and math.isnan(reading.correlation)


def test_the_word_of_most_mass_is_not_that_of_most_effect_where_its_head_writes_nothing():
    """A second head reads one letter, and all of it, but nothing it reads is written: mass without effect."""
    model = planted_model()
    attention = model.backbone.encoder.layer[LAYER].attention
    first = (HEAD + 1) * model.backbone.config.hidden_size // model.backbone.config.num_attention_heads
    letter = model.tokenizer.convert_tokens_to_ids("酶")
    with torch.no_grad():
        model.backbone.embeddings.word_embeddings.weight[letter, 2] = 8.0  # feature 2: I am that letter
        attention.self.query.weight[first, 0] = 4.0
        attention.self.key.weight[first, 2] = 4.0
    (reading,) = read(model, planted_cases().cases[:1])
    assert reading.largest_mass.label == "酶"
    assert reading.largest_effect.label in "喜欢"
    assert reading.largest_mass.effect < 0.1 * reading.largest_effect.effect


def test_a_causal_target_reads_what_stands_before_it_and_a_first_word_reads_nothing():
    cases = [case_of(TEXT, target="苹果", id="inside"), case_of("苹果公司发布了新品", target="苹果", id="first")]
    llama = read(loaded("llama"), cases)
    assert [labels(reading.words) for reading in llama] == [["<s>", "我", "喜欢"], ["<s>"]]
    assert llama[1].ranked == () and llama[1].largest_effect is None and llama[1].largest_mass is None
    assert [reading.words for reading in read(loaded("gpt2"), cases[1:])] == [()]


def test_a_word_outside_every_window_cannot_be_read():
    model, tokenizer = FAMILIES["gemma3"](head=False, layer_types=["sliding_attention"] * 4)
    text = "我们热爱和平他讨厌菠菜苹果"
    (reading,) = read(model_from_parts(model, tokenizer, name="window"), [case_of(text, target="苹果", id="a")])
    assert labels(reading.words) == ["厌", "菠", "菜"]  # a window of four tokens, the target's own with them


def test_special_tokens_are_named_and_not_ranked():
    (reading,) = read(loaded("bert"), [case_of("我喜欢苹果", target="苹果", id="a")])
    special = [word for word in reading.words if word.special]
    assert labels(special) == ["[CLS]", "[SEP]"]
    assert all(word.effect > 0 and word.effect_rank is None and word.span is None for word in special)
    assert sorted(word.effect_rank for word in reading.ranked) == [1, 2, 3]
    assert [word.distance for word in reading.words] == [4, 3, 2, 1, 1]


def test_letters_of_several_tokens_are_one_word_and_a_token_without_text_is_special():
    (gpt2,) = read(loaded("gpt2"), [case_of("我喜欢苹果", target="苹果", id="a")])
    assert labels(gpt2.words) == ["我", "喜", "欢"]
    (t5,) = read(loaded("t5"), [case_of("我喜欢苹果", target="苹果", id="a")])
    assert [(word.label, word.special) for word in t5.words] == [
        ("▁", True), ("我", False), ("喜欢", False), ("</s>", True),
    ]  # fmt: skip


def test_of_a_long_text_the_words_with_most_mass_are_cut_and_the_rest_is_counted():
    model = loaded("bert")
    (every,) = read(model, [case_of(TEXT, target="苹果", id="a")])
    (some,) = read(model, [case_of(TEXT, target="苹果", id="a")], most_words=3)
    kept = sorted(every.ranked, key=lambda word: -word.mass)[:3]
    assert some.left_out == 5 and every.left_out == 0
    assert {word.span for word in some.ranked} == {word.span for word in kept}
    assert [word.label for word in some.words if word.special] == ["[CLS]", "[SEP]"]
    effects = {word.span: word.effect for word in every.ranked}
    assert all(word.effect == pytest.approx(effects[word.span], abs=1e-6) for word in some.ranked)


def test_cases_are_spread_over_the_set_and_those_with_cues_are_left_alone():
    model = loaded("bert")
    cases = [case_of(TEXT, target="苹果", cues=["喜欢"] * (n % 2), id=str(n)) for n in range(10)]
    items = prepare(model, cases)
    assert cases_to_read(items, 48) == [0, 2, 4, 6, 8] and cases_to_read(items, 3) == [0, 4, 8]
    assert [one.case.id for one in word_readings(model, route_of(model), items, most_cases=2)] == ["0", "8"]
    assert word_readings(model, route_of(model), [item for item in items if item.cues]) == ()


def test_the_correlation_is_spearmans_and_needs_three_words():
    (reading,) = read(loaded("bert"), [case_of(TEXT, target="苹果", id="a")])
    effect = np.array([word.effect_rank for word in reading.ranked])
    mass = np.array([word.mass_rank for word in reading.ranked])
    assert reading.correlation == pytest.approx(np.corrcoef(effect, mass)[0, 1])
    (two,) = read(loaded("bert"), [case_of("喜苹果欢", target="苹果", id="b")])
    assert len(two.ranked) == 2 and math.isnan(two.correlation)


def test_the_table_has_a_row_a_word_and_none_where_nothing_can_be_read():
    readings = read(loaded("bert"), [case_of("我喜欢苹果", target="苹果", id="a")])
    frame = reading_frame(readings, model="m")
    assert frame["word"].tolist() == ["[CLS]", "我", "喜", "欢", "[SEP]"]
    assert frame["start"].isna().tolist() == [True, False, False, False, True]
    own = frame[~frame["special"]]
    assert [text[start:end] for text, start, end in zip(own["text"], own["start"], own["end"], strict=True)] == [
        "我", "喜", "欢",
    ]  # fmt: skip
    empty = reading_frame(read(loaded("gpt2"), [case_of("苹果公司", target="苹果", id="b")]), model="m")
    assert len(empty) == 0 and list(empty) == list(frame)


def test_the_eager_path_is_refused():
    model = loaded("bert")
    items = prepare(model, [case_of(TEXT, target="苹果", id="a")])
    with pytest.raises(TapError, match="eager"):
        word_readings(model, replace(route_of(model), path="eager", reason="a test"), items)
