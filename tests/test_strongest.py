"""Single heads: chosen on one half of the cue words and judged on the other, mass and cause told apart."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from probe.capture import capture_prepared, prepare
from probe.captures import CaptureOptions
from probe.cases import case_of
from probe.causes_story import _said
from probe.experiments.causes import HeadCuts, head_cut_effects
from probe.findings import CONTROL_BACK, MASS_BACK, MASS_ON_CONTROL, MASS_ON_CUE, Observed
from probe.measures.focus import FOCUS, focus
from probe.models import model_from_parts
from probe.routes import route_of
from probe.strongest import FEWEST_JUDGED, HEADS_JUDGED, head_scores, plan_heads, reading_gaps, score_results
from tests.planted import CUES, HEAD, LAYER, planted_model
from tests.tiny import FAMILIES

FILLERS = ("我们酸脱", "他们氢酶", "但他被了")


def cue_words(count):
    """Distinct words of two characters, both of which the planted head reads."""
    pairs = [first[0] + second[1] for first, second in itertools.product(CUES, CUES) if first != second]
    return sorted(dict.fromkeys(pairs))[:count]


def cases_of(units, *, each=1, after=False):
    """`each` cases of each of `units` cue words, the cue before the target or after it."""
    cases = []
    for word, number in itertools.product(cue_words(units), range(each)):
        filler = FILLERS[number % 3]
        text = f"{filler}苹果了{word}氢他们被" if after else f"{filler}{word}了苹果酶氢他们被"
        cases.append(case_of(text, target="苹果", cues=[word], id=f"{word}{number}"))
    return cases


def looked_at(loaded, cases, *, seed=0):
    items = tuple(prepare(loaded, cases))
    found = list(capture_prepared(loaded, items, options=CaptureOptions(states=False), route=route_of(loaded)))
    return Observed(
        model=loaded.name, items=items, layers=found[0].layers, heads=found[0].heads,
        focus=np.stack([focus(one) for one in found]), cuts=None, cut_cases=(), target_rows={}, seed=seed,
    )  # fmt: skip


def tiny(family, **changes):
    model, tokenizer = FAMILIES[family](head=False, **changes)
    return model_from_parts(model, tokenizer, name=family)


def judged(loaded, observed, *, cases=24):
    plan = plan_heads(observed, cases=cases)
    cuts = head_cut_effects(loaded, [observed.items[place] for place in plan.cases], plan.heads)
    return {(one.layer, one.head): one for one in head_scores(observed, plan, cuts)}


def with_mass(observed, places, values):
    """The same with the mass on the cue [place, layer, head] of some cases replaced."""
    grid = observed.focus.copy()
    grid[places, FOCUS.index(MASS_ON_CUE)] = values
    return replace(observed, focus=grid)


@pytest.fixture(scope="module")
def noisy():
    """Twenty cue words of two cases each; a tiny BERT of 12 heads whose masses are drawn at random."""
    observed = looked_at(tiny("bert", num_attention_heads=8), cases_of(20, each=2))
    shape = (40, len(observed.layers), len(observed.heads))
    return with_mass(observed, slice(None), np.random.default_rng(0).uniform(0, 1, shape))


def test_the_planted_head_looks_and_moves_and_no_other_does():
    model = planted_model()
    scores = judged(model, looked_at(model, cases_of(20)))
    planted = scores.pop((LAYER, HEAD))
    assert planted.looks and planted.moves and not planted.drawn
    assert planted.mass.mean > 0.2 and planted.effect.mean > 0.01
    assert planted.mass.units == planted.effect.units == 10
    assert not any(one.looks or one.moves for one in scores.values())


def test_a_head_that_looks_but_writes_nothing_is_said_to_look_without_effect(tmp_path):
    from probe.observing import StudySettings
    from probe.runs import open_run
    from probe.study import run_report

    model = planted_model()
    attention = model.backbone.encoder.layer[LAYER].attention.self
    size, other = model.backbone.config.hidden_size // 4, HEAD + 1
    with torch.no_grad():  # its columns of W_O are zero already
        attention.query.weight[other * size, 0] = 4.0
        attention.key.weight[other * size, 1] = 4.0
    observed = looked_at(model, cases_of(20))
    scores = judged(model, observed)
    idle = scores[LAYER, other]
    assert idle.looks and not idle.moves and idle.effect.mean == 0
    assert scores[LAYER, HEAD].looks and scores[LAYER, HEAD].moves
    from probe.cases import CaseSet

    with open_run(tmp_path / "run") as folder:
        settings = StudySettings(reference_cases=0, layer_cut_cases=0)
        run_report(model, CaseSet(name="t", cases=tuple(cases_of(20))), settings=settings, folder=folder)
    page = (tmp_path / "run/report.html").read_text()
    assert f"mass without effect shown in (layer.head) {LAYER}.{other}." in page
    assert "disagree: looks, no effect shown" in page


def test_the_choice_does_not_see_the_cue_words_that_judge_it(noisy):
    plan = plan_heads(noisy, cases=99)
    others = [place for place in range(40) if place not in plan.cases]
    turned = -noisy.values(MASS_ON_CUE)
    assert plan_heads(with_mass(noisy, list(plan.cases), turned[list(plan.cases)]), cases=99) == plan
    assert plan_heads(with_mass(noisy, others, turned[others]), cases=99).heads != plan.heads


def test_no_cue_word_both_chooses_and_judges(noisy):
    plan = plan_heads(noisy, cases=99)
    units = {noisy.units[place] for place in plan.cases}
    assert len(units) == 10
    assert [place for place, unit in enumerate(noisy.units) if unit in units] == list(plan.cases)


def test_few_cases_are_one_a_cue_word_before_any_comes_again(noisy):
    for most, largest in ((6, 1), (10, 1), (15, 2)):
        units = [noisy.units[place] for place in plan_heads(noisy, cases=most).cases]
        assert len(units) == most and len(set(units)) == min(most, 10)
        assert max(units.count(unit) for unit in units) == largest


def test_the_chosen_have_the_most_mass_and_the_drawn_are_others(noisy):
    plan = plan_heads(noisy, cases=99)
    chosen, drawn = plan.heads[: plan.chosen], plan.heads[plan.chosen :]
    assert plan.chosen == len(drawn) == HEADS_JUDGED and not set(chosen) & set(drawn)
    choosing = [place for place in range(40) if place not in plan.cases]
    gaps = reading_gaps(noisy)[choosing].mean(0)
    ranked = sorted(((layer, head) for layer in range(3) for head in range(8)), key=lambda at: -gaps[at])
    assert list(chosen) == ranked[:HEADS_JUDGED]


def test_a_seed_gives_one_plan_and_another_seed_another(noisy):
    assert plan_heads(noisy, cases=99) == plan_heads(noisy, cases=99)
    other = plan_heads(replace(noisy, seed=1), cases=99)
    assert other.cases != plan_heads(noisy, cases=99).cases


def test_below_ten_cue_words_or_five_cases_there_is_no_plan():
    model = planted_model()
    assert plan_heads(looked_at(model, cases_of(9, each=2)), cases=24) is None
    observed = looked_at(model, cases_of(10))
    assert plan_heads(observed, cases=4) is None
    assert len(plan_heads(observed, cases=5).cases) == 5


@pytest.mark.parametrize(("units", "enough"), [(2 * FEWEST_JUDGED - 2, False), (2 * FEWEST_JUDGED, True)])
def test_with_too_few_cue_words_nothing_is_said_of_a_head(units, enough):
    model = planted_model()
    planted = judged(model, looked_at(model, cases_of(units)))[LAYER, HEAD]
    assert planted.mass.mean > 0.2
    assert planted.tested == planted.looks == planted.moves == enough
    if not enough:
        assert _said(None, planted) is None


def test_in_a_causal_model_a_cue_after_the_target_reads_back():
    observed = looked_at(tiny("llama"), [*cases_of(5), *cases_of(5, after=True)])
    gaps = reading_gaps(observed)
    forward = observed.values(MASS_ON_CUE) - observed.values(MASS_ON_CONTROL)
    back = observed.values(MASS_BACK) - observed.values(CONTROL_BACK)
    assert not np.isnan(gaps).any()
    assert np.array_equal(gaps[:5], forward[:5]) and np.array_equal(gaps[5:], back[5:])


def test_scores_of_cases_that_read_back_are_of_the_cues_row():
    model = tiny("llama")
    observed = looked_at(model, cases_of(14, after=True))
    plan = plan_heads(observed, cases=24)
    where = list(plan.cases)
    mass, control = observed.values(MASS_BACK)[where], observed.values(CONTROL_BACK)[where]
    for (layer, head), one in judged(model, observed).items():
        assert one.mass_cue == pytest.approx(mass[:, layer, head].mean(), abs=1e-6)
        assert one.mass.mean == pytest.approx((mass - control)[:, layer, head].mean(), abs=1e-6)
        assert one.effect_cue > 0


def test_an_encoder_decoder_is_judged_in_its_encoder():
    model = tiny("bart")
    observed = looked_at(model, cases_of(14))
    scores = judged(model, observed)
    assert set(scores) == {(layer, head) for layer in range(2) for head in range(4)}
    frame = score_results(observed, tuple(scores.values()), stack="encoder")
    assert set(frame["stack"]) == {"encoder"} and (frame["p_max"] > 0).all()
    assert (frame["control"] + frame["estimate"]).to_numpy() == pytest.approx(
        [one.effect_cue for one in scores.values()]
    )


def test_chosen_layers_and_heads_keep_the_models_numbers():
    model = planted_model()
    observed = looked_at(model, cases_of(14))
    some = replace(observed, layers=observed.layers[1:], heads=(1, 3), focus=observed.focus[:, :, 1:][..., [1, 3]])
    plan = plan_heads(some, cases=24)
    assert plan.heads[0] == (LAYER, HEAD) and set(plan.heads) == set(itertools.product((1, 2), (1, 3)))
    assert judged(model, some)[LAYER, HEAD].moves


def test_p_values_equal_an_enumeration_of_all_flips(noisy):
    observed = noisy
    plan = plan_heads(observed, cases=7)
    rng = np.random.default_rng(3)
    cue, control = rng.normal(0.4, 0.3, (7, len(plan.heads))), rng.normal(0, 0.3, (7, len(plan.heads)))
    cuts = HeadCuts(heads=plan.heads, stack="encoder", cue=cue, control=control)
    scores = head_scores(observed, plan, cuts)
    grid = reading_gaps(observed)[list(plan.cases)].astype(float)
    mass = np.stack([grid[:, layer, head] for layer, head in plan.heads], axis=1)
    signs = np.array(list(itertools.product((1, -1), repeat=7)))

    def flipped(values):  # |t| under every flip: [flip, head]
        samples = signs[:, :, None] * values
        return np.abs(samples.mean(1)) / (samples.std(1, ddof=1) / 7**0.5)

    by_flip = [flipped(values) for values in (mass, cue - control)]
    largest = np.maximum.outer(by_flip[0].max(1), by_flip[1].max(1))  # every flip of the one with every of the other
    for number, one in enumerate(scores):
        for given, t in zip((one.mass_p, one.effect_p), by_flip, strict=True):
            assert given == pytest.approx((largest >= t[0, number] - 1e-9).mean(), abs=0.015)
    assert min(one.effect_p for one in scores) < 0.05 < max(one.effect_p for one in scores)
