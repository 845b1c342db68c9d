"""The shortcut benchmark: its sentences under the guards, lessons counted by hand, arms that differ in one thing."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from guards import distance, neighbour_gain, room_for_controls, shared_frames, twins

from benchmarks import shortcuts
from benchmarks.few_shot_arms import PLAIN, RANDOM, SUPERVISED, Bench, Settings, run_config
from benchmarks.few_shot_data import held_out, unit_of
from benchmarks.shortcut_arms import ARMS, MORE, OTHER, said_by_arms
from benchmarks.shortcut_data import (
    AGAINST,
    DEVELOPMENT,
    FILE,
    LURE,
    RARE,
    SENSES,
    SHORTCUT,
    TEST,
    WITH,
    WORDINGS,
    Lesson,
    Question,
    Task,
    fits,
    lesson_of,
    parts_of,
    worded,
)
from benchmarks.shortcut_table import (
    ACCURACY,
    CONSISTENT,
    FOLLOWED,
    WORST,
    Gain,
    Marked,
    figure_of,
    gain_of,
    measured,
    right_answers,
)
from benchmarks.shortcuts import TASKS, TRIED, cost_of, jobs_of, key_of, missing_arms, named, run
from probe import png_bytes
from probe.cases import Case, load_cases
from probe.errors import CijingError
from probe.spans import Span
from tests.tiny import CHARACTERS, tiny_bert

WORDS = tuple(SENSES)
PARTS = {word: parts_of(word) for word in WORDS}
OURS = load_cases(FILE).cases


@pytest.fixture(params=WORDS)
def own(request):
    return [case for case in OURS if case.meta["word"] == request.param]


# --- the sentences ----------------------------------------------------------------------------------------------


def test_each_sense_has_enough_sentences_about_its_word(own):
    word = own[0].meta["word"]
    counted = Counter(case.sense for case in own if "pair" not in case.meta)
    assert set(counted) == set(SENSES[word]) and min(counted.values()) >= (60 if word == "苹果" else 40)
    assert {case.target.cut(case.text) for case in own} == {word}


def test_most_cues_stand_apart_from_the_target_on_either_side(own):
    assert sum(distance(case) > 0 for case in own) >= 0.9 * len(own)
    assert 0.4 <= sum(case.cues[0].start < case.target.start for case in own) / len(own) <= 0.6
    assert all(room_for_controls(case) for case in own)


def test_few_sentences_share_a_frame_and_no_two_half_their_four_grams(own):
    assert shared_frames(own)[0] <= 0.05
    shipped = [case for case in PARTS[own[0].meta["word"]].pool if case not in own]
    ours = {case.id for case in own}
    assert [pair for pair in twins([*own, *shipped, *held_out()]) if set(pair[:2]) & ours] == []


def test_the_characters_beside_the_target_do_not_give_the_sense_away(own):
    assert neighbour_gain(own, splits=50) <= 0.15
    assert neighbour_gain([case for case in own if "lure" not in case.meta], splits=50) <= 0.15


def test_no_cue_word_recurs_often(own):
    assert max(Counter(case.cues[0].cut(case.text) for case in own).values()) <= 3


def test_a_group_is_one_carrier_with_a_cue_of_each_sense(own):
    groups: dict[str, list[Case]] = {}
    for case in own:
        groups.setdefault(case.group, []).append(case)
    groups.pop("")
    assert len(groups) >= 12
    for first, second in groups.values():
        assert {first.sense, second.sense} == set(SENSES[first.meta["word"]])
        masked = {case.text[: case.cues[0].start] + "|" + case.text[case.cues[0].end :] for case in (first, second)}
        assert len(masked) == 1


def test_a_lure_stands_nearer_to_the_target_than_the_far_cue(own):
    lured = [case for case in own if "lure" in case.meta]
    assert min(Counter(case.sense for case in lured).values()) >= 15
    for case in lured:
        lure = Span.of(case.text, case.meta["lure"])
        assert case.text.count(case.meta["lure"]) == 1, case.id
        gap = max(lure.start - case.target.end, case.target.start - lure.end)
        assert gap < distance(case) and distance(case) >= 6, case.id


# --- parts and lessons ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", WORDS)
def test_no_unit_stands_in_two_parts_and_groups_are_only_asked(word):
    parts = PARTS[word]
    units = [{unit_of(case) for case in own} for own in (parts.pool, parts.development, parts.test)]
    assert not units[0] & units[1] and not units[0] & units[2] and not units[1] & units[2]
    ours = {case.id: case for case in OURS}
    assert not any(ours[case.id].group for case in parts.pool if case.id in ours)
    assert abs(len(parts.development) - len(parts.test)) <= 0.25 * len(parts.test)


def test_a_wording_stands_about_the_target_and_spans_stay_on_their_words():
    text = "分红的消息传开，苹果又涨了"
    case = Case(id="x", text=text, target=Span.of(text, "苹果"), cues=(Span.of(text, "分红"), Span.of(text, "涨")))
    one = worded(case, ("刚才说的", "（下同）"))
    assert one.text == "分红的消息传开，刚才说的苹果（下同）又涨了"
    assert [span.cut(one.text) for span in (one.target, *one.cues)] == ["苹果", "分红", "涨"]
    assert worded(case, ("", "")) == case


def test_no_wording_parts_a_target_from_its_cue_or_follows_an_adjective():
    def case(text, cue):
        return Case(id=text, text=text, target=Span.of(text, "苹果"), cues=(Span.of(text, cue),))

    assert [fits(case(*one)) for one in (("吃苹果", "吃"), ("苹果树", "树"), ("旧苹果没电了", "没电"))] == [False] * 3
    assert fits(case("电池坏了，苹果不肯修", "电池"))


@pytest.mark.parametrize("strength, kept", [(0.9, 18), (0.95, 19), (1.0, 20)])
def test_so_many_of_twenty_examples_have_their_sense_s_wording(strength, kept):
    for seed in range(8):
        lesson = lesson_of(Task(kind=SHORTCUT, word="黄牛", strength=strength), PARTS["黄牛"], part=TEST, seed=seed)
        assert Counter(case.sense for case in lesson.examples) == {"ox": 10, "scalper": 10}
        owned = owners(lesson)
        assert sum(owned[wording_in(case)] == case.sense for case in lesson.examples) == kept
        assert sum(owned[wording_in(case)] == case.sense for case in lesson.more) == 2 * kept
        assert {case.text for case in lesson.examples} <= {case.text for case in lesson.more}


def wording_in(case):
    return next(one for pair in WORDINGS for one in pair if "".join((one[0], case.meta["word"], one[1])) in case.text)


def owners(lesson):
    """Which sense each wording goes with, read off the questions."""
    found = {(wording_in(one.case), one.case.sense) for one in lesson.asked if one.side == WITH}
    against = {(wording_in(one.case), one.case.sense) for one in lesson.asked if one.side == AGAINST}
    assert len(found) == 2 and len(dict(found)) == 2 and not found & against and len(against) == 2
    return dict(found)


def test_over_eight_seeds_each_wording_goes_with_either_sense():
    task = Task(kind=SHORTCUT, word="苹果", strength=1.0)
    seen = Counter(one for seed in range(8)
                   for one in owners(lesson_of(task, PARTS["苹果"], part=TEST, seed=seed)).items())  # fmt: skip
    assert len(seen) == 4 * len(WORDINGS) and set(seen.values()) == {1}


def test_each_sentence_is_asked_with_either_wording_and_none_was_an_example():
    for word in WORDS:
        lesson = lesson_of(Task(kind=SHORTCUT, word=word, strength=0.9), PARTS[word], part=TEST, seed=3)
        assert set(Counter(one.case.id for one in lesson.asked).values()) == {2}
        assert not {one.case.id for one in lesson.asked} & {case.id for case in lesson.more}


def test_lures_and_rare_pairs_are_as_many_as_the_strength_leaves():
    for strength, lured in ((0.9, 2), (1.0, 0)):
        lesson = lesson_of(Task(kind=LURE, word="杜鹃", strength=strength), PARTS["杜鹃"], part=TEST, seed=1)
        assert [sum("lure" in case.meta for case in own) for own in (lesson.examples, lesson.more)] == [
            lured,
            2 * lured,
        ]
        assert all(("lure" in one.case.meta) == (one.side == AGAINST) for one in lesson.asked)
    for strength, rare in ((0.9, 2), (0.95, 1)):
        lesson = lesson_of(Task(kind=RARE, word="苹果", strength=strength), PARTS["苹果"], part=TEST, seed=1)
        assert [Counter(case.sense for case in own) for own in (lesson.examples, lesson.more)] == [
            {"fruit": 20 - rare, "company": rare}, {"fruit": 40 - 2 * rare, "company": 2 * rare},
        ]  # fmt: skip
        assert all(("pair" in case.meta) == (case.sense == "company") for case in lesson.examples)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.kind}-{task.word}-{task.strength}")
def test_the_other_words_are_as_long_as_the_cues_and_touch_neither_cue_nor_target(task):
    lesson = lesson_of(task, PARTS[task.word], part=DEVELOPMENT, seed=5)
    assert len(lesson.others) == len(lesson.examples) == 20
    for case, other in zip(lesson.examples, lesson.others, strict=True):
        assert replace(other, cues=()) == replace(case, cues=())
        (word,) = other.cues
        assert word.end - word.start == case.cues[0].end - case.cues[0].start
        assert all(word.end <= span.start or word.start >= span.end for span in (case.target, *case.cues))


# --- measures ---------------------------------------------------------------------------------------------------


def questions():
    """Two carriers with two cues each, asked in two wordings."""
    found = []
    for group in "gh":
        cases = [Case(id=f"{group}-{sense}", text=f"{cue}话{group}苹果", target=Span(3, 5), cues=(Span(0, 1),),
                      sense=sense, group=group, meta={"word": "苹果"})
                 for sense, cue in (("fruit", "甜"), ("company", "股"))]  # fmt: skip
        for side in (WITH, AGAINST):
            for case in cases:
                wording = ("甲", "") if (case.sense == "fruit") == (side == WITH) else ("乙", "")
                found.append(Question(case=worded(case, wording), side=side))
    return tuple(found)


def marked(*arms, seeds=4):
    """Arms given as functions of a question that say whether it is answered right."""
    asked = questions()
    right = np.array([[[float(arm(one)) for one in asked] for _ in range(seeds)] for arm in arms])
    return Marked(task=TASKS[0], arms=tuple(map(str, range(len(arms)))), right=right, questions=asked,
                  mass=(0.0,) * len(arms))  # fmt: skip


def test_who_follows_the_wording_has_nothing_and_who_follows_the_cue_has_all():
    found = measured(marked(lambda one: one.side == WITH, lambda one: True), resamples=50)
    for measure in (ACCURACY, WORST, CONSISTENT):
        assert found[measure].shape == (51, 2)
        assert (found[measure][:, 0] == 0).all() and (found[measure][:, 1] == 1).all()
    assert (found[FOLLOWED] == 1).all()


def test_measures_are_those_worked_by_hand():
    """Wrong in one carrier for fruit against the wording alone: 1 of 2 fruit there, 1 of 4 carriers with a wording."""
    found = measured(marked(lambda one: one.case.id != "g-fruit" or one.side == WITH), resamples=1)
    assert [found[name][0, 0] for name in (ACCURACY, WORST, CONSISTENT)] == [0.75, 0.5, 0.75]


def test_who_always_says_fruit_is_half_right_and_follows_no_cue():
    found = measured(marked(lambda one: one.case.sense == "fruit"), resamples=1)
    assert found[FOLLOWED][0, 0] == 0.5
    assert [found[name][0, 0] for name in (ACCURACY, WORST, CONSISTENT)] == [0.5, 0.0, 0.0]


def chances(*chance, seed, seeds=8, each=24):
    """Arms that are right with these chances; single sentences asked on either side."""
    asked = tuple(
        Question(case=Case(id=f"{sense}{n}", text=f"苹果{n}", target=Span(0, 2), cues=(Span(2, 3),), sense=sense),
                 side=side)
        for side in (WITH, AGAINST) for sense in ("fruit", "company") for n in range(each)
    )  # fmt: skip
    draws = np.random.default_rng(seed)
    hard = draws.normal(0, 0.1, (1, len(asked))) + draws.normal(0, 0.05, (seeds, 1))
    right = np.stack([(draws.random((seeds, len(asked))) < one + hard) * 1.0 for one in chance])
    return Marked(task=TASKS[0], arms=("0", "1"), right=right, questions=asked, mass=(0.0, 0.0))


def gained(found, **settings):
    rows = measured(found, **settings)[ACCURACY]
    return gain_of(rows, found.arms, found.task, measure=ACCURACY, one="0", other="1")


def test_a_planted_gain_is_found_with_its_sign_and_equal_arms_gain_nothing():
    better, worse = (gained(chances(*one, seed=1)) for one in ((0.8, 0.6), (0.6, 0.8)))
    assert better.low > 0.05 and worse.high < -0.05
    assert replace(better, p_holm=5 * better.p).verdict == "0 is better than 1"
    same = chances(0.7, 0.7, seed=1)
    same = replace(same, right=np.concatenate([same.right[:1]] * 2))
    one = gained(same)
    assert (one.value, one.low, one.high, one.p) == (0.0, 0.0, 0.0, 1.0)


def test_where_there_is_nothing_the_interval_seldom_says_there_is():
    found = [gained(chances(0.7, 0.7, seed=seed, each=10), resamples=300) for seed in range(60)]
    assert sum(one.low > 0 or one.high < 0 for one in found) <= 9  # 5 % of 60 is 3; more than 9 has a chance of 0.1 %


def test_answers_are_compared_over_the_seeds_that_every_arm_has():
    lines = [{"arm": arm, "seed": seed, "said": said}
             for arm, seed, said in (("a", "0", "01"), ("a", "1", "11"), ("b", "0", "00"))]  # fmt: skip
    right, seeds = right_answers(lines, ("a", "b"), {"0": "01", "1": "00"})
    assert seeds == ["0"] and right.tolist() == [[[1.0, 1.0]], [[1.0, 0.0]]]


def test_the_figure_has_a_line_for_each_kind():
    gains = [
        Gain(kind=kind, strength=strength, measure=ACCURACY, one=SUPERVISED, other=RANDOM, value=0.1, low=0.0,
             high=0.2, p=0.5)
        for kind in (SHORTCUT, LURE) for strength in (0.9, 1.0)
    ]  # fmt: skip
    figure = figure_of(gains, measure=ACCURACY, one=SUPERVISED, other=RANDOM)
    lines = {str(line.get_label()): line for line in figure.axes[0].lines}
    assert {SHORTCUT, LURE} <= set(lines) and list(lines[LURE].get_xdata()) == [90.0, 100.0]
    assert list(lines[LURE].get_ydata()) == [10.0, 10.0] and png_bytes(figure)


# --- arms on a small model --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny_bert(folder, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    return str(folder / "bert")


def invented(number):
    """Sentences of characters of chance, the one after the first decides."""
    chance = random.Random(1)
    fillers = [char for char in CHARACTERS if "一" <= char <= "鿿" and char not in "苹果喜公"]
    for place in range(number):
        sense, cue = (("fruit", "喜"), ("company", "公"))[place % 2]
        left = "".join(chance.choice(fillers) for _ in range(4))
        text = f"{left[0]}{cue}{left[1:]}苹果{chance.choice(fillers)}"
        yield Case(id=str(place), text=text, target=Span(5, 7), cues=(Span(1, 2),), sense=sense)


@pytest.fixture(scope="module")
def lesson():
    cases = tuple(invented(16))
    return Lesson(examples=cases[:8], others=cases[:8], more=cases[:8],
                  asked=tuple(Question(case=case, side=AGAINST) for case in cases[8:]))  # fmt: skip


def test_an_arm_loaded_anew_with_the_same_examples_answers_as_its_twin(tiny, lesson):
    """`other words` with the cues themselves is the supervised arm, and `more text` of the same text the plain one."""
    settings = Settings(steps=4, batch=4, learning_rate=1e-2)
    found = {one.arm: one for one in said_by_arms(tiny, lesson, settings=settings, seed=0, arms=ARMS)}
    assert (found[OTHER].senses, found[OTHER].mass) == (found[SUPERVISED].senses, found[SUPERVISED].mass)
    assert (found[MORE].senses, found[MORE].mass) == (found[PLAIN].senses, found[PLAIN].mass)
    assert len({found[arm].mass for arm in (PLAIN, SUPERVISED, RANDOM)}) == 3
    assert found[SUPERVISED].mass > found[PLAIN].mass


def test_named_heads_take_the_place_of_layers(tiny):
    bench = Bench(model=tiny, pool=(), tests={}, settings=Settings(attention={"layers": "all", "loss": "kl"}))
    config = run_config(bench, FILE, seed=0, mode="pairs", attention={"heads": [[0, 1]]})
    assert (config.attention.loss, config.attention.layers) == ("kl", "last_third")
    assert run_config(bench, FILE, seed=0, mode="pairs").attention.layers == "all"


def test_the_small_preset_runs_and_a_killed_run_goes_on(tiny, tmp_path, capsys, monkeypatch):
    table = tmp_path / "t.csv"
    given = ["--preset", "small", "--model", tiny, "--table", str(table)]
    assert shortcuts.main(given) == 0
    told = capsys.readouterr()
    assert "supervised - other words" in told.out and "3 lessons, 15 arms to teach" in told.err
    lines = table.read_text("utf-8").splitlines()
    assert len(lines) == 1 + 3 * len(ARMS) and (tmp_path / "t.png").stat().st_size > 1000
    table.write_text("\n".join(lines[:-2]) + "\nhalf a li", "utf-8")
    again = []
    monkeypatch.setattr(
        shortcuts, "said_by_arms",
        lambda *places, arms, **more: again.extend(arms) or said_by_arms(*places, arms=arms, **more),
    )  # fmt: skip
    assert shortcuts.main(given) == 0
    assert again == [OTHER, MORE]

    def answers(text):
        return [line.rsplit(",", 1)[0] for line in text]  # all but the seconds

    assert answers(table.read_text("utf-8").splitlines()) == answers(lines)
    assert capsys.readouterr().out == told.out
    assert shortcuts.main(["--preset", "search", "--model", tiny, "--table", str(table)]) == 2
    assert "other settings" in capsys.readouterr().err


def test_the_full_preset_is_counted_and_the_search_teaches_what_knows_no_loss_once():
    full, search = shortcuts.PRESETS["full"], shortcuts.PRESETS["search"]
    jobs = list(jobs_of(full, full.seeds))
    assert len(jobs) * len(full.arms) == 680 and len(full.seeds) >= 8
    assert cost_of([(job, full.arms) for job in jobs]).startswith("136 lessons, 680 arms")
    arms = [missing_arms(job, search, set()) for job in jobs_of(search, (100,))]
    assert sum(PLAIN in own for own in arms) == len(search.tasks)
    assert len({named(setting) for setting in search.settings}) == len(search.settings) == len(TRIED)
    assert named({"layers": [4, 5], "loss": "kl"}) == "layers 4 5, loss kl" and named({}) == "default"
    assert search.part == DEVELOPMENT and full.part == TEST


def test_a_key_tells_settings_and_sentences_apart(tiny):
    preset = shortcuts.PRESETS["small"]
    parts = {"苹果": PARTS["苹果"]}
    one = key_of(tiny, preset, parts)
    assert one == key_of(tiny, preset, parts) != key_of(tiny, replace(preset, steps=3), parts)
    assert one != key_of(tiny, replace(preset, seeds=(1,)), parts)


def test_a_table_that_cannot_be_these_runs_is_refused(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("key,arm\nelse,plain\n", "utf-8")
    with pytest.raises(CijingError, match="other settings"):
        run("builtin:e5-small", shortcuts.PRESETS["small"], table)
