"""Senses: what is computed where groups, words and senses are few, and what is said instead of a number."""

import numpy as np
import pytest

from probe.capture import prepare
from probe.cases import Case
from probe.experiments.reference import random_twin, twin_plan
from probe.models import model_from_parts
from probe.polysemy import sense_states, word_frame
from probe.spans import Span
from probe.wordsenses import FEWEST_CASES
from tests.planted import planted_model
from tests.test_contrasts import slot_case
from tests.tiny import FAMILIES


def items_of(senses, *, words=None, groups=None):
    """One prepared case a sense, all of one text."""
    model, tokenizer = FAMILIES["bert"](head=False)
    loaded = model_from_parts(model, tokenizer, name="bert")
    cases = [
        Case(
            id=str(number), text="他喜欢苹果", target=Span(3, 5), cues=(Span(1, 3),), sense=sense,
            group=groups[number] if groups else "", meta={"word": words[number]} if words else {},
        )
        for number, sense in enumerate(senses)
    ]  # fmt: skip
    return prepare(loaded, cases)


def told(senses, *, layers=2, seed=0):
    """States of which the last layer tells the sense and the first is noise."""
    rng = np.random.default_rng(seed)
    names = sorted(set(senses))
    states = rng.normal(0, 0.1, (len(senses), layers, 6))
    for case, sense in enumerate(senses):
        states[case, -1, names.index(sense)] += 3.0
    return states


def test_senses_are_told_apart_within_each_word_and_neutral_cases_are_left_out():
    senses = ["fruit"] * 4 + ["company"] * 4 + ["neutral"] * 3
    found = sense_states(items_of(senses), told(senses), told(senses)[:, 0], readout="target", seed=0)
    assert found.cases == 8 and len(found.senses) == 2
    assert found.accuracy[-1] == 1.0 and found.accuracy[0] < 1.0
    assert found.low[-1] <= found.accuracy[-1] <= found.high[-1]


def test_words_that_differ_do_not_make_senses_look_separated():
    senses = ["a", "b"] * 6
    words = ["one"] * 6 + ["two"] * 6
    states = np.random.default_rng(0).normal(0, 0.1, (12, 1, 8))
    states[6:, 0, 0] += 50.0  # the words lie far apart, the senses of each do not
    found = sense_states(items_of(senses, words=words), states, states[:, 0], readout="target", seed=0)
    assert found.accuracy[0] < 0.8 and abs(found.silhouette[0]) < 0.3


def test_a_sense_with_two_sentences_is_named_and_left_out():
    senses = ["fruit"] * 4 + ["company"] * 4 + ["chip"] * (FEWEST_CASES - 1)
    found = sense_states(items_of(senses), told(senses), told(senses)[:, 0], readout="target", seed=0)
    assert found.left_out == ("苹果 chip",) and found.cases == 8


def test_a_neutral_case_has_its_groups_one_sense_and_a_mixed_group_is_counted_and_left_out():
    senses = ["fruit", "company"] * 4 + ["fruit", "company", "neutral"] + ["neutral"] * 10
    groups = [*"abcdefgh", *"mmm", *"abcdefgh", "alone", "alone"]
    states = told(senses)
    states[11:19] = states[:8]  # each neutral case has the state of its group's cue case: the carrier says all
    found = sense_states(items_of(senses, groups=groups), states, states[:, 0], readout="target", seed=0)
    assert (found.carrier.cases, found.carrier.mixed) == (8, 1)
    assert found.carrier.accuracy[-1] == found.carrier.cued[-1] == 1.0
    states[11:19] = np.random.default_rng(1).permutation(states[:8])  # the carrier says something else
    found = sense_states(items_of(senses, groups=groups), states, states[:, 0], readout="target", seed=0)
    assert found.carrier.accuracy[-1] < 1.0 == found.carrier.cued[-1]


def test_without_neutral_cases_the_carrier_is_not_measured():
    senses = ["fruit"] * 4 + ["company"] * 4
    found = sense_states(items_of(senses), told(senses), told(senses)[:, 0], readout="target", seed=0)
    assert found.carrier.cases == 0 and np.isnan(found.carrier.accuracy).all()
    assert np.isnan(found.words[0].carrier) and found.frequent == 0.5, "balanced senses are guessed at chance"


def test_a_word_whose_states_are_all_the_same_does_not_count_where_another_words_differ():
    senses = ["a", "b"] * 8
    words = ["seen"] * 8 + ["hidden"] * 8
    states = told(senses)
    states[8:, -1] = 1.0
    found = sense_states(items_of(senses, words=words), states, states[:, 0], readout="target", seed=0)
    assert found.visible.all() and found.hidden == ((), ("hidden",))
    assert found.accuracy[-1] == 1.0 and found.silhouette[-1] > 0.9
    frame = word_frame("m", found).set_index("word")
    assert frame.loc["seen", "accuracy"] == 1.0 and np.isnan(frame.loc["hidden", "accuracy"])


@pytest.mark.parametrize("senses", [["fruit"] * 6, [""] * 6, ["neutral"] * 6, ["fruit"] * 5 + ["chip"]])
def test_without_two_senses_there_is_nothing_to_tell(senses):
    states = told(senses)
    assert sense_states(items_of(senses), states, states[:, 0], readout="target", seed=0) is None


def test_a_constant_model_is_not_visible_instead_of_accurate():
    senses = ["fruit"] * 4 + ["company"] * 4
    states = np.ones((8, 3, 5))
    found = sense_states(items_of(senses), states, states[:, 0], readout="target", seed=0)
    assert not found.visible.any() and np.isnan(found.accuracy).all()


def test_groups_of_one_case_and_pairs_without_a_neutral_word_make_no_contrast():
    from probe.contrasts import slot_pairs

    model, tokenizer = FAMILIES["bert"](head=False)
    loaded = model_from_parts(model, tokenizer, name="bert")
    assert slot_pairs(prepare(loaded, [slot_case("a", "喜欢", "fruit", group="1")])) == ()


def test_the_random_twin_has_the_shape_and_not_the_weights_and_is_the_same_each_time():
    model = planted_model()
    one, again, other = (random_twin(twin_plan(model), seed=seed) for seed in (0, 0, 1))
    assert one.backbone.config.num_hidden_layers == model.backbone.config.num_hidden_layers
    assert one.fingerprint == again.fingerprint != other.fingerprint != model.fingerprint
    assert one.tokenizer is model.tokenizer
