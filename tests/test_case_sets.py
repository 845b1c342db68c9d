"""The sets that we ship are held to the guards of STATISTICS.md, and the guards to sets that they must refuse."""

from collections import Counter

import pytest
from guards import distance, frame, neighbour_gain, room_for_controls, shared_frames, twins

from probe.capture import prepare
from probe.cases import Case, CaseSet, case_of, load_cases, shipped_sets
from probe.contrasts import slot_pairs
from probe.errors import CijingError
from probe.models import load_model
from probe.spans import Span

SETS = ("relations", "apple", "senses", "english")
SENSES = ("fruit", "company", "device", "chip", "acid")
CONTROLS = ("banana", "huawei")  # no sense changes in them
ASKED_FOR = [
    ("我喜欢苹果", "苹果", "喜欢"),
    ("他讨厌菠菜", "菠菜", "讨厌"),
    ("我们热爱和平", "和平", "热爱"),
    ("苹果公司发布了新品", "苹果", "公司"),
    ("牛顿被苹果砸中", "苹果", "砸中"),
    ("我喜欢苹果但讨厌梨子", "苹果", "喜欢"),
    ("我喜欢苹果但讨厌梨子", "梨子", "讨厌"),
]


@pytest.fixture(params=SETS)
def shipped(request) -> CaseSet:
    return load_cases(request.param)


def cue_of(case: Case) -> str:
    return case.cues[0].cut(case.text)


def test_the_package_ships_the_sets_under_their_own_names():
    assert set(SETS) <= set(shipped_sets())
    assert [load_cases(name).name for name in SETS] == list(SETS)


@pytest.mark.parametrize("text, target, cue", ASKED_FOR)
def test_relations_holds_the_sentences_that_the_issue_names(text, target, cue):
    named = {(case.text, case.target.cut(case.text), cue_of(case)) for case in load_cases("relations").cases}
    assert (text, target, cue) in named


def test_in_the_crossed_pair_the_other_verb_is_no_cue():
    pair = [case for case in load_cases("relations").cases if case.text == "我喜欢苹果但讨厌梨子"]
    assert [(case.target.cut(case.text), [cue.cut(case.text) for cue in case.cues]) for case in pair] == [
        ("苹果", ["喜欢"]),
        ("梨子", ["讨厌"]),
    ]
    assert len({case.group for case in pair}) == 1 and pair[0].group


def test_relations_has_at_least_sixty_four_sentences_beyond_those_named():
    texts = {case.text for case in load_cases("relations").cases}
    assert len(texts - {text for text, _, _ in ASKED_FOR}) >= 64


def test_relations_has_many_kinds_of_relation_and_none_fills_the_set():
    kinds = Counter(case.sense for case in load_cases("relations").cases)
    assert len(kinds) >= 10
    assert max(kinds.values()) <= 0.4 * kinds.total()


def cases_of(name: str, *senses: str) -> list[Case]:
    return [case for case in load_cases(name).cases if case.sense in senses]


def paired(sense: str) -> list[tuple[Case, Case]]:
    """Cue case and neutral case of each minimal group of a sense in `apple`."""
    neutral = {case.group: case for case in cases_of("apple", "neutral")}
    return [(case, neutral[case.group]) for case in cases_of("apple", sense) if case.group in neutral]


def test_apple_is_large_and_about_the_word_or_its_controls():
    cases = load_cases("apple").cases
    assert len(cases) >= 240 and len({case.text for case in cases}) == len(cases)
    targets = {case.target.cut(case.text) for case in cases if case.meta.get("contrast") not in CONTROLS}
    assert targets == {"苹果"}
    assert {case.target.cut(case.text) for case in cases_of("apple", *CONTROLS)} == {"香蕉", "华为手机"}


@pytest.mark.parametrize("sense", [*SENSES, *CONTROLS])
def test_each_contrast_has_twenty_cue_words_with_a_neutral_word_of_its_own(sense):
    pairs = paired(sense)
    assert len({cue_of(cue) for cue, _ in pairs}) >= 20
    words = Counter(cue_of(neutral) for _, neutral in pairs)
    assert max(words.values()) <= 2 and sum(number > 1 for number in words.values()) <= 10
    assert len({cue.group for cue, _ in pairs}) >= 20


@pytest.mark.parametrize("sense", [*SENSES, *CONTROLS])
def test_cue_and_neutral_word_fill_the_same_slot_of_the_same_carrier(sense):
    for cue, neutral in paired(sense):
        assert frame(cue) == frame(neutral) and cue.target == neutral.target and cue.cues == neutral.cues, cue.id
        assert cue_of(cue) != cue_of(neutral)


@pytest.mark.parametrize("sense", [*SENSES, *CONTROLS])
def test_slots_stand_on_both_sides_of_the_target_and_not_beside_it(sense):
    cues = [cue for cue, _ in paired(sense)]
    before = sum(case.cues[0].start < case.target.start for case in cues)
    assert 0.4 <= before / len(cues) <= 0.6
    assert sum(distance(case) > 0 for case in cues) >= len(cues) / 3


def test_acid_is_never_told_by_the_next_character_alone():
    followed = [case.sense for case in cases_of("apple", *SENSES) if case.text[case.target.end :][:1] == "酸"]
    assert followed.count("acid") >= 20
    assert followed.count("fruit") >= 20


def test_senses_has_two_dozen_words_with_eight_sentences_a_sense():
    by_word: dict[str, Counter[str]] = {}
    for case in load_cases("senses").cases:
        by_word.setdefault(case.meta["word"], Counter())[case.sense] += 1
        assert case.target.cut(case.text) == case.meta["word"]
    assert len(by_word) >= 24
    assert all(len(senses) >= 2 and min(senses.values()) >= 8 for senses in by_word.values())


def test_english_has_the_words_of_the_literature_with_eight_sentences_a_sense():
    by_word: dict[str, Counter[str]] = {}
    for case in load_cases("english").cases:
        by_word.setdefault(case.meta["word"], Counter())[case.sense] += 1
    assert {"bank", "bat", "mouse", "cell", "apple"} <= set(by_word) and len(by_word) >= 10
    assert all(len(senses) >= 2 and min(senses.values()) >= 8 for senses in by_word.values())


def test_every_case_has_a_cue_and_no_cue_word_recurs_often(shipped):
    assert all(case.cues for case in shipped.cases)
    # once in a minimal group, once in a single sentence, once in a control
    most = 3 if shipped.name == "apple" else 2
    assert max(Counter(cue_of(case) for case in shipped.cases).values()) <= most


def test_cues_stand_on_both_sides_and_at_many_distances(shipped):
    distances = [distance(case) for case in shipped.cases]
    before = sum(case.cues[0].start < case.target.start for case in shipped.cases)
    assert 0.4 <= before / len(distances) <= 0.6
    assert sum(gap > 0 for gap in distances) >= len(distances) / 3
    if shipped.language == "en":
        return  # words, not characters, keep cue and target apart
    assert set(range(9)) <= set(distances)
    assert max(distances) <= 15


def test_at_most_five_percent_of_a_set_share_a_frame(shipped):
    share, frames = shared_frames(shipped.cases)
    assert share <= 0.05, frames


def test_no_two_sentences_of_different_groups_share_half_their_four_grams(shipped):
    assert twins(shipped.cases) == []


def test_the_characters_beside_the_target_do_not_give_the_sense_of_apple_away():
    assert neighbour_gain(cases_of("apple", *SENSES)) <= 0.15
    assert neighbour_gain(load_cases("apple").cases, splits=50) <= 0.15


@pytest.mark.parametrize("name", ["senses", "english"])
def test_the_characters_beside_the_target_do_not_give_the_sense_of_any_word_away(name):
    words: dict[str, list[Case]] = {}
    for case in load_cases(name).cases:
        words.setdefault(case.meta["word"], []).append(case)
    gains = {word: neighbour_gain(cases) for word, cases in words.items()}
    assert max(gains.values()) <= 0.15, gains


def test_every_case_has_room_for_a_control_but_two_that_the_issue_words(shipped):
    if shipped.language == "en":
        return  # counted in Chinese characters
    without = {case.text for case in shipped.cases if not room_for_controls(case)}
    assert without <= {"我喜欢苹果", "他讨厌菠菜"}


def test_cases_of_one_group_share_their_carrier(shipped):
    groups: dict[str, list[str]] = {}
    for case in shipped.cases:
        groups.setdefault(case.group, []).append(case.text)
    groups.pop("", None)
    for name, texts in groups.items():
        assert len(texts) > 1
        frames = {frame(case) for case in shipped.cases if case.group == name}
        assert len(frames) == 1 or all(min(texts, key=len) in text for text in texts)


# --- far: three places of the cue that share their words on purpose, so each place is guarded by itself -------------

PLACES = ("same sentence", "other sentence", "other paragraph")


@pytest.fixture(params=PLACES)
def far_place(request) -> tuple[Case, ...]:
    return tuple(case for case in load_cases("far").cases if case.meta["contrast"] == request.param)


def test_far_has_the_cues_that_the_issue_names_and_both_senses(far_place):
    cues = {cue_of(case): case.sense for case in far_place if case.sense != "neutral"}
    assert {"乔布斯", "1976 年", "车库"} <= set(cues)
    assert Counter(cues.values()) == {"company": 12, "fruit": 12}
    assert {case.target.cut(case.text) for case in far_place} == {"苹果"}


def test_far_pairs_each_cue_with_a_neutral_word_of_its_own_in_the_same_slot(far_place):
    groups: dict[str, list[Case]] = {}
    for case in far_place:
        groups.setdefault(case.group, []).append(case)
    assert len(groups) == 24 and all(len(cases) == 2 for cases in groups.values())
    for one, other in groups.values():
        assert frame(one) == frame(other) and one.cues[0].start == other.cues[0].start
        assert [one.sense, other.sense].count("neutral") == 1
    assert max(Counter(cue_of(case) for case in far_place).values()) == 1


def test_far_says_where_the_cue_stands_and_that_is_where_it_stands(far_place):
    for case in far_place:
        between = case.text[case.cues[0].end : case.target.start]
        place = "other paragraph" if "\n" in between else "other sentence" if "。" in between else "same sentence"
        assert place == case.meta["contrast"], case.id


def test_the_places_of_far_hold_the_same_words_and_differ_in_their_order_alone():
    texts: dict[tuple[str, str], list[Counter[str]]] = {}
    for case in load_cases("far").cases:
        letters = Counter(char for char in case.text if char not in "，。\n")
        texts.setdefault((case.group.rpartition("-")[0], case.sense), []).append(letters)
    assert len(texts) == 48 and all(len(found) == 3 for found in texts.values())
    assert all(found[0] == found[1] == found[2] for found in texts.values())


def test_far_keeps_to_the_guards_in_each_place(far_place):
    assert shared_frames(far_place)[0] <= 0.05
    assert twins(far_place) == []
    assert neighbour_gain([case for case in far_place if case.sense != "neutral"]) <= 0.15


@pytest.mark.real
def test_far_has_as_many_tokens_with_a_cue_as_with_a_neutral_word_under_both_builtin_tokenizers():
    for name in ("builtin:e5-small", "builtin:gemma3-270m"):
        try:
            loaded = load_model(name)
        except CijingError as error:
            pytest.skip(str(error))
        items = prepare(loaded, load_cases("far").cases)
        assert len(slot_pairs(items)) == 72
        lengths = {(item.case.id.rpartition("-")[0]): set() for item in items}
        for item in items:
            lengths[item.case.id.rpartition("-")[0]].add((len(item.tokens.ids), len(item.cues[0])))
        assert all(len(found) == 1 for found in lengths.values())


# --- the guards themselves ------------------------------------------------------------------------------------


def templated(target: str = "苹果") -> list[Case]:
    verbs = ["吃", "洗", "削", "买", "卖", "切", "尝", "摘", "种", "煮"]
    return [case_of(f"他昨天{verb}了{target}", target=target, cues=[verb], id=verb) for verb in verbs]


def told_by_its_neighbour() -> list[Case]:
    """Forty cases whose sense stands in the character after the target, and whose cue stands far off."""
    cases = []
    for number in range(40):
        sense, after = [("fruit", "树"), ("company", "股")][number % 2]
        text = f"{chr(0x4E00 + number)}远处的苹果{after}"
        cases.append(Case(id=str(number), text=text, target=Span(4, 6), cues=(Span(0, 1),), sense=sense))
    return cases


def test_a_frame_masks_target_cue_and_numbers_only():
    assert frame(case_of("他买了3斤苹果", target="苹果", cues=["买"])) == "他C了N斤T"
    assert frame(case_of("他卖了十二斤梨", target="梨", cues=["卖"])) == "他C了N斤T"
    assert frame(case_of("她卖了十二斤梨", target="梨", cues=["卖"])) != "他C了N斤T"


def test_a_templated_set_is_refused_by_its_frames():
    assert shared_frames(templated())[0] == 1.0


def test_a_group_counts_once_among_the_frames():
    grouped = [Case(id=case.id, text=case.text, target=case.target, cues=case.cues, group="g") for case in templated()]
    assert shared_frames(grouped)[0] == 0.0


def test_copies_with_another_ending_are_refused_as_twins():
    one = case_of("老农说今年苹果的收成比不上往年", target="苹果", id="one")
    two = case_of("老农说今年苹果的收成好过往年", target="苹果", id="two")
    assert [(first, second) for first, second, _ in twins([one, two])] == [("one", "two")]
    assert twins([one, case_of("想熬果酱就别嫌苹果酸", target="苹果", id="three")]) == []


def test_a_set_told_by_the_character_beside_the_target_is_refused():
    assert neighbour_gain(told_by_its_neighbour()) > 0.4


def test_senses_dealt_at_random_give_the_neighbour_rule_nothing():
    cases = [
        Case(id=case.id, text=case.text, target=case.target, cues=case.cues, sense="ab"[number // 2 % 2])
        for number, case in enumerate(told_by_its_neighbour())
    ]
    assert abs(neighbour_gain(cases)) < 0.15


def test_adjacent_cues_are_left_out_of_the_neighbour_rule():
    give_away = told_by_its_neighbour()
    adjacent = [
        Case(id=f"x{case.id}", text=case.text, target=case.target, cues=(Span(6, 7),), sense="other")
        for case in give_away
    ]
    assert neighbour_gain(give_away) == neighbour_gain([*give_away, *adjacent])


def test_distance_and_room_for_a_control_are_counted_in_characters():
    case = case_of("他买了新鲜的苹果", target="苹果", cues=["买"])
    assert distance(case) == 4
    assert room_for_controls(case) == 5
    assert room_for_controls(case_of("我喜欢苹果", target="苹果", cues=["喜欢"])) == 0
