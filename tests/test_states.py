"""What states know of the sense, on made states and on a planted model."""

import numpy as np
import pytest

from probe.capture import capture
from probe.cases import case_of
from probe.measures.states import (
    carrier_accuracy,
    context_embedding,
    cosines_by_sense,
    default_readout,
    most_frequent_sense,
    read_state,
    sense_accuracy,
    silhouette,
    two_characters_rule,
)
from probe.models import model_from_parts
from tests.tiny import FAMILIES

SENSES = ["a", "a", "a", "a", "b", "b", "b", "b"]
GROUPS = ["1", "1", "2", "2", "3", "3", "4", "4"]


def separated(seed=0, dims=6):
    """Layer 0 knows nothing, layer 1 the sense, layer 2 only the group (the carrier sentence)."""
    rng = np.random.default_rng(seed)
    sign = np.array([1.0 if sense == "a" else -1.0 for sense in SENSES])
    carrier = {group: rng.normal(0, 5, dims) for group in sorted(set(GROUPS))}
    noise = rng.normal(0, 0.1, (8, 3, dims))
    states = noise + 100.0  # a large common part: raw cosines are all near 1
    states[:, 1, 0] += 3 * sign
    states[:, 2] += np.stack([carrier[group] for group in GROUPS])
    return states


def test_a_sense_in_the_state_is_decided_and_noise_is_not():
    accuracy = sense_accuracy(separated(), SENSES, GROUPS).correct.mean(0)
    assert accuracy[1] == 1.0
    assert accuracy[0] < 1.0


def test_leaving_one_case_out_would_leak_the_carrier_and_leaving_the_group_out_does_not():
    hits, leaked = [], []
    for seed in range(40):
        states = separated(seed)[:, 2:3]
        hits.append(sense_accuracy(states, SENSES, GROUPS).correct.mean())
        leaked.append(sense_accuracy(states, SENSES, [str(i) for i in range(8)]).correct.mean())
    assert np.mean(hits) < 0.6, "carriers say nothing of the sense of other carriers"
    assert np.mean(leaked) > np.mean(hits) + 0.15


def test_a_case_without_another_group_of_its_sense_cannot_be_decided():
    decided = sense_accuracy(separated()[:5], ["a", "a", "a", "a", "b"], ["1", "1", "2", "2", "3"])
    assert np.isnan(decided.correct[4]).all()
    assert np.isnan(sense_accuracy(separated()[:2], ["a", "a"], ["1", "2"]).correct).all(), "one sense is no choice"


def carriers(leak, seed=0, groups=40):
    """Cue cases whose state tells the sense, and neutral cases of the same carriers, which leak `leak` of it."""
    rng = np.random.default_rng(seed)
    senses = ["a", "b"] * (groups // 2)
    sign = np.array([1.0 if sense == "a" else -1.0 for sense in senses])
    carrier = rng.normal(0, 1, (groups, 1, 8))
    carrier[:, 0, 0] += leak * sign
    cued = carrier + rng.normal(0, 0.1, carrier.shape)
    cued[:, 0, 1] += 3 * sign
    names = [str(number) for number in range(groups)]
    return {"states": cued, "senses": senses, "groups": names}, {
        "neutral": carrier + rng.normal(0, 0.1, carrier.shape), "labels": senses, "neutral_groups": names,
    }  # fmt: skip


def test_a_neutral_case_is_decided_by_what_its_carrier_leaks_and_no_more():
    silent, telling = [], []
    for seed in range(10):
        cued, neutral = carriers(0.0, seed)
        assert sense_accuracy(**cued).correct.mean() > 0.9
        silent.append(carrier_accuracy(**cued, **neutral).mean())
        cued, neutral = carriers(4.0, seed)
        telling.append(carrier_accuracy(**cued, **neutral).mean())
    assert 0.4 < np.mean(silent) < 0.6 and np.mean(telling) > 0.9


def test_the_cue_cases_of_its_own_group_do_not_decide_a_neutral_case():
    # Each carrier lies far out on an axis of its own: only the cue case of the same group could give its sense away.
    far = np.repeat(50 * np.eye(8)[:, None], 1, axis=1)  # [case, layer, dim]
    groups = list("12345678")
    given = {"neutral": far, "labels": SENSES, "neutral_groups": groups}
    assert carrier_accuracy(far, SENSES, groups, **given).mean() == 0.0, "three of its sense are left against four"
    assert carrier_accuracy(far, SENSES, list("abcdefgh"), **given).mean() == 1.0, "leaving no group out would leak"


def test_a_carrier_whose_sense_no_other_group_has_and_a_layer_of_equal_states_are_not_decided():
    cued, neutral = carriers(4.0, groups=8)
    neutral["labels"] = ["c", *neutral["labels"][1:]]
    known = carrier_accuracy(**cued, **neutral)
    assert np.isnan(known[:, 0]).tolist() == [True] + [False] * 7
    neutral["neutral"] = np.ones_like(neutral["neutral"])
    assert np.isnan(carrier_accuracy(**cued, **neutral)).all()


def test_equal_states_are_called_not_visible():
    states = separated()
    states[:, 0] = states[0, 0]
    assert sense_accuracy(states, SENSES, GROUPS).visible.tolist() == [False, True, True]
    assert np.isnan(silhouette(states, SENSES)[0])


def test_cosines_are_centred_so_that_a_common_part_does_not_count():
    within, across = cosines_by_sense(separated(), SENSES)
    assert within[1] > 0.9 and across[1] < -0.9
    assert abs(within[0] - across[0]) < 0.4


def test_silhouette_by_hand():
    # two senses of two cases on a line through the centre: +2, +1 against -1, -2. Cosine distance: 0 inside, 2 across.
    states = np.array([[[2.0]], [[1.0]], [[-1.0]], [[-2.0]]])
    assert silhouette(states, ["a", "a", "b", "b"]).tolist() == [1.0]
    # 1 and 3 exchanged: inside a distance 2, to b (2 + 0) / 2 = 1; (1 - 2) / 2 = -0.5 for every case
    assert silhouette(states, ["a", "b", "a", "b"]).tolist() == [-0.5]


def test_baselines_say_what_frequency_and_neighbours_give_away():
    assert most_frequent_sense(["a", "a", "a", "b"]).tolist() == [1, 1, 1, 0]
    assert most_frequent_sense(["b", "a", "b", "a"]).mean() == 0.5, "balanced senses are not below chance"
    telling = [("x", "酸"), ("y", "酸"), ("z", "酸"), ("x", "手"), ("y", "手"), ("z", "手")]
    assert two_characters_rule(telling, ["a"] * 3 + ["b"] * 3, list("123456")).mean() == 1.0
    silent = [("x", "的")] * 6
    assert two_characters_rule(silent, ["a"] * 3 + ["b"] * 3, list("123456")).mean() <= 0.5
    once = two_characters_rule(telling, ["a"] * 3 + ["b"] * 2 + ["c"], list("123456"))
    assert np.isnan(once).tolist() == [False] * 5 + [True], "undecided where the states are"


def loaded(family):
    model, tokenizer = FAMILIES[family](head=False)
    return model_from_parts(model, tokenizer, name=family)


def test_a_causal_model_is_read_where_both_words_have_been_seen():
    cases = [
        case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["讨厌"], id="after"),
        case_of("我喜欢苹果但热爱梨子", target="苹果", cues=["热爱"], id="other"),
    ]
    one, other = capture(loaded("llama"), cases)
    assert default_readout(causal=True) == "later" and default_readout(causal=False) == "target"
    assert np.allclose(read_state(one, "target"), read_state(other, "target"), atol=1e-5), "the cue comes later"
    assert not np.allclose(read_state(one, "later")[-1], read_state(other, "later")[-1], atol=1e-2)
    assert np.array_equal(read_state(one, "later")[0], one.states["decoder"][0, max(i for w in one.cues for i in w)])


def test_the_context_embedding_leaves_target_and_special_tokens_out():
    one, other = capture(
        loaded("bert"),
        [case_of("我喜欢苹果", target="苹果", id="a"), case_of("我喜欢手机", target="手机", id="b")],
    )
    # positions are part of the input embedding, and stay the same here
    assert np.allclose(context_embedding(one), context_embedding(other), atol=1e-5)
    assert context_embedding(one) == pytest.approx(one.states["encoder"][0, 1:4].mean(0), abs=1e-6)
