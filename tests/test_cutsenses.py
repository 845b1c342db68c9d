"""What a cut does to the sense: positions by hand, and a planted head whose edge carries all there is to know."""

import numpy as np
import pytest

from probe.capture import prepare
from probe.cases import Case
from probe.cutsenses import cut_sense_results, cut_senses
from probe.experiments.causes import cut_effects
from probe.measures.states import sense_positions
from probe.models import model_from_parts
from probe.observing import StudySettings, observe
from probe.routes import route_of
from probe.runs import open_run
from probe.spans import Span
from tests.planted import planted_cases, planted_model
from tests.tiny import FAMILIES


def test_positions_by_hand():
    # Centres without the held case's group: a at (1, 0) or so, b at (-1, 0).
    states = np.array([[1.0, 0.0], [1.0, 2.0], [-1.0, 0.0], [-1.0, 2.0]])
    asked = np.stack([states, np.zeros((4, 2)), -states], axis=1)  # untouched, moved to the origin, mirrored
    position, correct = sense_positions(states, ["a", "a", "b", "b"], ["1", "2", "3", "4"], asked=asked)
    # case 0: own centre (1, 2), other (-1, 1): axis (2, 1), middle (0, 1.5); (1, -1.5).(2, 1) = 0.5, times 2/5
    assert position[0, 0] == pytest.approx(0.2)
    assert position[0, 1] == pytest.approx(2 * (-1.5) / 5)
    assert correct[0].tolist() == [1.0, 0.0, 0.0]
    # case 1: own centre (1, 0), other (-1, 1): axis (2, -1), middle (0, 0.5); (1, 1.5).(2, -1) = 0.5
    assert position[1, 0] == pytest.approx(0.2)


def test_the_own_centre_is_plus_one_the_nearest_other_minus_one_and_far_senses_take_no_part():
    states = np.array([[0.0], [2.0], [-2.0], [-4.0], [50.0], [52.0], [0.0]])
    senses, groups = ["a", "a", "b", "b", "c", "c", "a"], list("1234567")
    asked = np.array([[[1.0], [-3.0]]] + [[[np.nan], [np.nan]]] * 6)  # a's centre without case 0, and b's
    position, correct = sense_positions(states, senses, groups, asked=asked)
    assert position[0].tolist() == [1.0, -1.0] and correct[0].tolist() == [1.0, 0.0]
    assert np.isnan(position[1:]).all() and np.isnan(correct[1:]).all()


def test_a_sense_of_one_group_cannot_be_decided_and_states_that_are_all_alike_have_no_axis():
    lone = sense_positions(np.eye(3), ["a", "b", "b"], ["1", "2", "3"], asked=np.eye(3)[:, None])[0]
    assert np.isnan(lone[0]).all()
    alike = sense_positions(np.ones((4, 2)), list("aabb"), list("1234"), asked=np.ones((4, 1, 2)))
    assert np.isnan(alike[0]).all() and np.isnan(alike[1]).all()


def test_the_last_states_are_those_whose_move_is_the_effect():
    model = planted_model()
    effects = cut_effects(model, route_of(model), prepare(model, planted_cases().cases), by_layer=())
    for column, table in ((1, effects.cue), (2, effects.control)):
        move = np.linalg.norm(effects.last[:, column] - effects.last[:, 0], axis=-1)
        assert move / np.linalg.norm(effects.last[:, 0], axis=-1) == pytest.approx(table[:, 0], abs=1e-6)


def sense_cases():
    """Four cue words in three sentences each; the first two say x, the others y."""
    cases = []
    for number in range(12):
        cue, filler = ("喜欢", "讨厌", "公司", "手机")[number % 4], ("我们酸脱", "他们氢酶", "但他被了")[number // 4]
        text = f"{filler}{cue}了苹果酶氢他们被"
        start, target = text.index(cue), text.index("苹果")
        case = Case(
            id=f"s{number}", text=text, target=Span(target, target + 2), cues=(Span(start, start + len(cue)),),
            sense="x" if number % 4 < 2 else "y", group=f"g{number}",
        )  # fmt: skip
        cases.append(case)
    return cases


def seen(model, tmp_path, **settings):
    items = prepare(model, sense_cases())
    with open_run(tmp_path / "run") as folder:
        observed = observe(
            model, route_of(model), items, settings=StudySettings(**settings), folder=folder,
            append=lambda frame: None, tell=lambda *_: None,
        )  # fmt: skip
        folder.write_text("report.html", "")
    return observed


def test_where_one_edge_carries_the_sense_cutting_it_takes_the_sense_and_cutting_the_control_does_not(tmp_path):
    observed = seen(planted_model(), tmp_path)
    found = cut_senses(observed)
    assert found.cases == 12 and found.position.plain.units == 4
    # The planted head copies the cue: untouched, the cue's other sentences decide; without the edge nothing is left.
    assert found.accuracy.plain.mean == found.accuracy.control.mean == 1.0
    assert found.accuracy.cue.mean < 0.7
    assert found.position.gap.mean < -0.5 and not found.tested
    frame = cut_sense_results(observed, found)
    assert (
        frame.groupby("measure").size().tolist() == [4, 4]
        and not frame.duplicated(["measure", "key", "contrast"]).any()
    )


def test_where_the_states_do_not_know_the_cue_at_all_there_is_nothing_to_take_away(tmp_path):
    model = planted_model()
    model.backbone.encoder.layer[2].attention.output.dense.weight.data.zero_()
    assert cut_senses(seen(model, tmp_path)) is None


def test_without_senses_or_cuts_there_is_nothing_to_say(tmp_path):
    assert cut_senses(seen(planted_model(), tmp_path, cut=False)) is None


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_other_kinds_of_models_are_judged_at_the_word_that_reads(family, tmp_path):
    model, tokenizer = FAMILIES[family](head=False)
    found = cut_senses(seen(model_from_parts(model, tokenizer, name=family), tmp_path))
    assert found is not None and found.cases > 0 and 0 <= found.accuracy.cue.mean <= 1
