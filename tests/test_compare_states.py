"""Word senses in the states against centroids made by hand, and the sink against eager attention."""

import numpy as np
import pytest
import torch

from finetune.compare.states import capped_cases, state_items, word_of
from probe import Case, Span, case_of, load_cases, model_from_parts, tokenize
from tests.teaching import with_lora
from tests.tiny import tiny_bert, tiny_llama

TEXTS = {
    "fruit": ("我喜欢苹果", "他讨厌苹果", "牛顿被苹果砸中", "我喜欢和平，我喜欢苹果"),
    "company": ("我喜欢的公司：苹果", "苹果公司发布了新品", "发布了新品的苹果"),
}


def case(text, sense, *, word="苹果", group="", id=None):
    at = text.index(word)
    return Case(id=id or text, text=text, target=Span(at, at + len(word)), sense=sense, group=group)


CASES = [case(text, sense) for sense, found in TEXTS.items() for text in found]


def items(found, measure, part="general"):
    return {one.item: one.value for one in found if one.measure == measure and one.part == part}


@pytest.fixture(scope="module", params=["llama", "bert"])
def loaded(request):
    model, tokenizer = {"llama": tiny_llama, "bert": tiny_bert}[request.param]()
    return model_from_parts(model, tokenizer, name=request.param)


def states_by_hand(loaded, cases):
    """[case, state layer, dim] at the target's tokens: of a decoder at the last, since no case here has a cue."""
    found = []
    for one in cases:
        tokens = tokenize(loaded.tokenizer, one.text)
        own = [
            place
            for place, (start, end) in enumerate(tokens.offsets)
            if start < one.target.end and end > one.target.start and not tokens.special[place]
        ]
        own = own[-1:] if loaded.kind == "decoder" else own
        with torch.inference_mode():
            states = loaded.backbone(torch.tensor([tokens.ids]), output_hidden_states=True).hidden_states
        found.append(torch.stack([state[0, own].mean(0) for state in states]).numpy())
    return np.stack(found)


def nearest_by_hand(states, senses, groups, case, layer):
    """Whether a case's state lies nearest to its own sense's centre, its group left out."""
    x = states[:, layer].astype(np.float64)
    rest = [place for place in range(len(senses)) if groups[place] != groups[case]]
    far = {
        sense: np.linalg.norm(x[case] - np.mean([x[place] for place in rest if senses[place] == sense], axis=0))
        for sense in {senses[place] for place in rest}
    }
    return float(min(far, key=far.get) == senses[case])


def test_a_sense_is_right_where_its_centre_is_the_nearest(loaded):
    states = states_by_hand(loaded, CASES)
    found = state_items(loaded, CASES)
    senses, groups = [one.sense for one in CASES], [one.id for one in CASES]
    first = int(loaded.kind == "decoder")  # whose target is one token here, with one embedding in all cases
    assert bool(np.ptp(states[:, 0], axis=0).max() == 0) is bool(first)
    assert items(found, "sense_separation", "layer 0").keys() == ({one.id for one in CASES} if not first else set())
    for place, one in enumerate(CASES):
        layers = range(first, states.shape[1])
        wanted = [nearest_by_hand(states, senses, groups, place, layer) for layer in layers]
        assert [items(found, "sense_separation", f"layer {layer}")[one.id] for layer in layers] == wanted
        assert items(found, "sense_accuracy")[one.id] == wanted[-1]
    values = [one.value for one in found if one.measure == "sense_separation"]
    assert set(values) == {0.0, 1.0}  # the model is random: a test in which all were right could not fail


def test_cases_of_one_group_decide_nothing_about_each_other():
    model, tokenizer = tiny_bert()
    loaded = model_from_parts(model, tokenizer, name="bert")
    twins = [
        case("我喜欢苹果", "fruit", group="a"), case("我喜欢苹果，", "company", group="a", id="twin"),
        *[case(text, "fruit", group=text) for text in TEXTS["fruit"][1:]],
        *[case(text, "company", group=text) for text in TEXTS["company"]],
    ]  # fmt: skip
    found = state_items(loaded, twins)
    states = states_by_hand(loaded, twins)
    senses, groups = [one.sense for one in twins], [one.group for one in twins]
    own = {one.item: one for one in found if one.measure == "sense_accuracy"}
    assert own["twin"].unit == own["我喜欢苹果"].unit == "a"
    for place, one in enumerate(twins):
        assert own[one.id].value == nearest_by_hand(states, senses, groups, place, states.shape[1] - 1)


def test_words_are_told_apart_and_what_no_centroid_decides_is_left_out(loaded):
    others = [
        case("我喜欢手机", "a", word="手机"), case("苹果手机", "a", word="手机"), case("我热爱和平", "b", word="和平"),
        case("他热爱和平", "c", word="和平"), case("我们热爱和平", "c", word="和平"),
    ]  # fmt: skip
    found = state_items(loaded, [*CASES, *others])
    # 手机 has one sense; the one 和平 of sense b is in no other group, and without it the others have one sense.
    assert items(found, "sense_accuracy").keys() == {
        *(one.id for one in CASES), "他热爱和平", "我们热爱和平",
    }  # fmt: skip
    alone = items(state_items(loaded, CASES), "sense_accuracy")
    assert {name: items(found, "sense_accuracy")[name] for name in alone} == alone


def test_the_sink_is_what_the_target_gives_the_first_token(loaded):
    found = items(state_items(loaded, CASES), "sink")
    loaded.model.set_attn_implementation("eager")
    try:
        for one in CASES:
            tokens = tokenize(loaded.tokenizer, one.text)
            rows = [
                place for place, (start, end) in enumerate(tokens.offsets)
                if start < one.target.end and end > one.target.start and not tokens.special[place]
            ]  # fmt: skip
            with torch.inference_mode():
                maps = loaded.backbone(torch.tensor([tokens.ids]), output_attentions=True).attentions
            wanted = torch.stack([layer[0][:, rows, 0].mean() for layer in maps]).mean()
            assert found[one.id] == pytest.approx(float(wanted), abs=1e-5)
    finally:
        loaded.model.set_attn_implementation("sdpa")


def test_an_adapter_is_read_with_the_model_and_not_when_it_is_off():
    model, tokenizer = tiny_llama()
    before = state_items(model_from_parts(model, tokenizer, name="base"), CASES)
    adapted = with_lora(model).eval()
    loaded = model_from_parts(adapted, tokenizer, name="adapted")
    assert items(state_items(loaded, CASES), "sink") != items(before, "sink")
    with adapted.disable_adapter():
        assert state_items(loaded, CASES) == before


def test_of_each_sense_of_each_word_the_first_are_kept():
    neutral = case("我喜欢苹果", "neutral", id="n")
    assert capped_cases([neutral, *CASES], most=2) == (CASES[0], CASES[1], CASES[4], CASES[5])
    assert capped_cases([neutral, *CASES], most=None) == tuple(CASES)
    assert capped_cases([case_of("我喜欢苹果", target="苹果")], most=2) == ()
    shipped = capped_cases(load_cases("senses").cases, most=4)
    senses = {(word_of(one), one.sense) for one in shipped}
    assert len(shipped) == 4 * len(senses) and len({word for word, _ in senses}) == 26


def test_without_cases_there_is_nothing(loaded):
    assert state_items(loaded, ()) == []
