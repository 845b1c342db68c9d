"""The check against public data: its formats on lines of our own, its decisions on states that are known."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import public_data, public_senses
from benchmarks.public_data import APPLE, PAIRS, SEMEMES, Pair, apple_line, enough_texts, pair_uses, sememe_line
from benchmarks.public_senses import Read, best_cut, centred_cosines, crossed, first_half, pair_scores, sense_scores
from probe.cases import case_of
from probe.errors import CasesError
from probe.models import model_from_parts
from tests.tiny import tiny_bart, tiny_bert

SEMEME_LINE = (
    "{'context': ['他', '在', '<target>', '上', '开店', '。'], 'part-of-speech': ['r', 'p', 'n', 'f', 'v', 'w'], "
    "'target_word': '平台', 'target_position': 2, 'target_word_pos': 'n', 'sense': {'设施', '因特网'}}"
)
PAIR_ITEM = {
    "id": "dev.zh-zh.0",
    "lemma": "窗口",
    "pos": "NOUN",
    "sentence1": "他站在窗口看雨。",
    "sentence2": "点一下就关掉这个窗口。",
    "start1": "3",
    "end1": "5",
    "start2": "8",
    "end2": "10",
}


def apple_row(**changes):
    row = {"id": 7, "text": "苹果比苹果酸甜", "sense": "fruit", "spans": [0, 3], "license": "ours"}
    return json.dumps({**row, **changes}, ensure_ascii=False)


def test_every_apple_of_a_line_is_a_case_and_its_text_is_the_group():
    first, second = apple_line(apple_row())
    assert [case.target.cut(case.text) for case in (first, second)] == ["苹果", "苹果"]
    assert (first.target.start, second.target.start) == (0, 3)
    assert first.sense == "fruit" and first.id != second.id
    assert first.group == second.group == first.text


def test_a_sememe_line_gives_the_word_in_its_place_and_a_sense_without_order():
    case = sememe_line(SEMEME_LINE)
    assert case.text == "他在平台上开店。" and case.target.cut(case.text) == "平台" and case.target.start == 2
    assert case.sense == sememe_line(SEMEME_LINE.replace("{'设施', '因特网'}", "{'因特网', '设施'}")).sense
    assert case.sense != sememe_line(SEMEME_LINE.replace("{'设施', '因特网'}", "{'设施'}")).sense


def test_offsets_of_pairs_are_read_from_strings():
    first, second = pair_uses(PAIR_ITEM)
    assert [case.target.cut(case.text) for case in (first, second)] == ["窗口", "窗口"]


def written(folder, name, *contents):
    for file, content in zip(public_data.FILES[name], contents, strict=True):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(content, "utf-8")


def test_a_use_that_stands_in_two_pairs_is_one_case(tmp_path):
    third = {**PAIR_ITEM, "id": "b", "sentence2": "银行的窗口前排着队。", "start2": "3", "end2": "5"}
    gold = [{"id": "dev.zh-zh.0", "tag": "F"}, {"id": "b", "tag": "T"}]
    written(tmp_path, PAIRS, json.dumps([PAIR_ITEM, third]), json.dumps(gold))
    cases, pairs = public_data.pairs(tmp_path)
    assert len(cases) == 3
    assert pairs == [
        Pair(first=0, second=1, word="窗口", same=False),
        Pair(first=0, second=2, word="窗口", same=True),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("__import__('os').getcwd()", "malformed"),
        ("{'context': ['他'", "SyntaxError"),
        ("[" * 5000, "Error"),
        ("1" * 200_000, "allowed are 100000"),
        (SEMEME_LINE.replace("'target_position': 2", "'target_position': 3"), "target_position"),
        (SEMEME_LINE.replace("'target_position': 2", "'target_position': 30"), "IndexError"),
        (SEMEME_LINE.replace("{'设施', '因特网'}", "'设施'"), "no set"),
        ("5", "TypeError"),
    ],
)
def test_a_line_that_is_no_literal_of_this_format_is_refused_by_its_number_and_never_run(tmp_path, line, why):
    written(tmp_path, SEMEMES, f"{SEMEME_LINE}\n{line}\n")
    with pytest.raises(CasesError, match=rf"^dataset.txt, line 2: .*{why}") as refused:
        public_data.sememe_cases(tmp_path)
    assert "\n" not in str(refused.value)


def test_wrong_items_and_a_pair_without_its_tag_are_refused(tmp_path):
    written(tmp_path, APPLE, apple_row() + "\n" + apple_row(spans=[1]))
    with pytest.raises(CasesError, match=r"line 2: .*no 苹果 at character 1"):
        public_data.apple_cases(tmp_path)
    written(tmp_path, PAIRS, json.dumps([PAIR_ITEM]), "[]")
    with pytest.raises(CasesError, match=r"no tag for 'dev\.zh-zh\.0'"):
        public_data.pairs(tmp_path)
    written(tmp_path, PAIRS, json.dumps([{**PAIR_ITEM, "end1": "99"}]), "[]")
    with pytest.raises(CasesError, match=r"item 1: "):
        public_data.pairs(tmp_path)
    written(tmp_path, PAIRS, "[]", json.dumps([{"id": "a", "tag": "X"}]))
    with pytest.raises(CasesError, match=r"item 1: .*allowed are T and F"):
        public_data.pairs(tmp_path)


def uses(word, sense, texts):
    return [replace(case_of(f"{text}{word}", target=word), sense=sense, meta={"word": word}) for text in texts]


def test_senses_with_three_different_texts_and_words_left_with_one_sense_are_left_out():
    enough = [*uses("窗口", "a", "甲乙丙丁"), *uses("窗口", "b", "戊己庚辛")]
    few = uses("窗口", "c", "甲乙丙丙")
    alone = [*uses("平台", "a", "甲乙丙丁"), *uses("平台", "b", "戊己")]
    assert enough_texts([*enough, *few, *alone]) == enough


def test_a_limit_takes_whole_words_and_spreads_over_a_sorted_file():
    cases = [*uses("窗口", "a", "甲乙丙丁"), *uses("平台", "a", "甲乙丙")]
    assert {case.meta["word"] for case in public_data.whole_words(cases, 6)} == {"平台"}
    assert len(public_data.whole_words(cases, 2)) == 3 and public_data.whole_words(cases, None) == cases
    assert public_data.spread(cases, 3) == [cases[0], cases[3], cases[6]]


def read_of(cases, states):
    states = np.asarray(states, dtype=np.float32)
    contexts = np.zeros((len(cases), 2), np.float32)
    return Read(cases=tuple(cases), places=tuple(range(len(cases))), states=states, contexts=contexts)


def test_identical_texts_are_left_out_together():
    texts = {"a": [("甲", (0, 0)), ("甲", (0, 0)), ("乙", (1, 0))], "b": [("丙", (0.05, 0.7)), ("丁", (-0.05, 0.7))]}
    cases, states = [], []
    for sense, items in texts.items():
        for text, state in items:
            [case] = uses("窗口", sense, text)
            cases.append(replace(case, group=case.text, meta={"word": "窗口", "unit": case.text}))
            states.append([state])
    [layer] = [score for score in sense_scores("set", read_of(cases, states)) if score.by == "layer 0"]
    assert layer.units == 4  # the texts
    assert layer.accuracy == pytest.approx(3 / 4)  # with its copy kept, 甲 would be right as well


def test_words_count_alike_whatever_their_number_of_cases():
    many = [*uses("窗口", "a", "甲乙丙丁"), *uses("窗口", "b", "戊己庚辛")]
    one = [*uses("平台", "a", "甲乙"), *uses("平台", "b", "丙丁")]
    cases = [replace(c, group=c.text, meta={**c.meta, "unit": c.meta["word"]}) for c in [*many, *one]]
    right = [[[float(case.sense == "a"), 0]] for case in many]
    wrong = [[[x, 0]] for x in (0.0, 9.0, 1.0, 8.0)]  # each is nearest to the other sense's other case
    scores = {score.by: score for score in sense_scores("set", read_of(cases, [*right, *wrong]))}
    assert scores["layer 0"].accuracy == pytest.approx(0.5) and scores["layer 0"].units == 2


def test_states_that_do_not_differ_are_not_visible():
    cases = [*uses("窗口", "a", "甲乙丙丁"), *uses("窗口", "b", "戊己庚辛")]
    cases = [replace(c, group=c.text, meta={**c.meta, "unit": c.text}) for c in cases]
    scores = {score.by: score for score in sense_scores("set", read_of(cases, np.ones((8, 1, 2))))}
    assert public_senses.shown(scores["layer 0"]) == "not visible"
    assert public_senses.as_json([scores["layer 0"]])[0]["accuracy"] is None


def test_an_accuracy_over_one_unit_has_no_interval():
    one = public_senses.Score(data="set", by="layer 0", accuracy=0.5, low=np.nan, high=np.nan, units=1)
    assert public_senses.shown(one) == "50.0"
    assert public_senses.shown(replace(one, low=0.4, high=0.625)) == "50.0 (40.0-62.5)"


def test_the_cut_is_the_one_that_decides_most_pairs_rightly():
    cut, share = best_cut(np.array([0.1, 0.2, 0.8, 0.9]), np.array([False, False, True, True]))
    assert 0.2 < cut < 0.8 and share == 1
    assert best_cut(np.zeros(4), np.array([False, False, False, True])) == (np.inf, 0.75)


def test_threshold_and_layer_come_from_the_other_half():
    half = np.array([True] * 4 + [False] * 4)
    same = np.array([False, True] * 4)
    good, noise = same.astype(float), np.zeros(8)
    scores = np.stack([np.where(half, good, noise), np.where(half, noise, good)], axis=1)  # layer 0 is good in one half
    assert crossed([scores, scores], same, half, choose=True).mean() == pytest.approx(0.5)
    both = np.stack([noise, good], axis=1)
    assert crossed([both, both], same, half, choose=True).mean() == 1
    assert (crossed([both, both], same, half).mean(0) == [0.5, 1]).all()


def test_a_threshold_of_the_scored_half_itself_would_show():
    half = np.array([True, True, False, False])
    same = np.array([False, True, False, True])
    scores = np.array([[0.0], [1.0], [2.0], [3.0]])
    assert crossed([scores, scores], same, half).ravel().tolist() == [1, 0, 0, 1]


def test_cosines_are_centred_on_the_training_half_alone():
    states = np.array([[[1.0, 1.0]], [[1.0, 3.0]], [[9.0, 2.0]], [[1.0, 5.0]]])
    cosines = centred_cosines(states, np.array([[0, 1], [2, 3]]), train=np.array([True, False]))
    assert cosines[0, 0] == pytest.approx(-1) and cosines[1, 0] == pytest.approx(0)  # the centre is (1, 2)


def test_the_pairs_of_a_word_are_in_one_half():
    words = [f"w{number // 3}" for number in range(60)]
    half = first_half(words)
    assert half.sum() == 30
    assert all(len({bool(in_half) for in_half, w in zip(half, words, strict=True) if w == word}) == 1 for word in words)


def test_pairs_told_apart_by_one_layer_are_found_there_and_by_choice():
    rng = np.random.default_rng(0)
    pairs, cases, states = [], [], []
    for number in range(60):
        same = number % 2 == 0
        first = rng.normal(size=8)
        second = first if same else -first
        cases += uses("窗口", "", "甲乙")
        states += [[rng.normal(size=8), first], [rng.normal(size=8), second]]
        pairs.append(Pair(first=2 * number, second=2 * number + 1, word=f"w{number // 2}", same=same))
    scores = {score.by: score for score in pair_scores("set", read_of(cases, states), pairs)}
    assert scores["layer 1"].accuracy == scores["layer chosen"].accuracy == 1
    assert scores["layer 0"].accuracy < 0.75 and scores["layer 0"].low < 0.6
    assert scores["most frequent"].accuracy == pytest.approx(0.5) and scores["layer 1"].units == 30


def test_targets_that_the_tokenizer_does_not_know_are_left_out_with_their_places():
    loaded = model_from_parts(*tiny_bert(), name="tiny")
    cases = [case_of(text, target=target) for text, target in (("我喜欢苹果", "苹果"), ("我喜欢龘", "龘"))]
    read = public_senses.read_model(loaded, [cases[1], *cases[:1]], readout="target")
    assert read.places == (1,) and read.cases == (cases[0],)
    assert read.states.shape == (1, 4, 32) and read.contexts.shape == (1, 32)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tiny_bart(folder, max_position_embeddings=128)
    return str(folder / "bart")


def test_without_the_data_each_set_is_named_with_the_way_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CIJING_DATA", str(tmp_path))
    assert public_senses.main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all("set CIJING_DATA" in line and str(tmp_path) in line for line in lines)


def test_the_table_of_the_real_data_and_its_json(tiny_model, tmp_path, capsys):
    folder = public_data.data_folder()
    missing = [name for name in public_data.FILES if not public_data.present(folder, name)]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not in {folder}; set CIJING_DATA")
    file = tmp_path / "scores.json"
    assert public_senses.main(["--model", tiny_model, "--limit", "60", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*public_data.FILES, "layer 2", "layer chosen", "two characters"))
    scores = json.loads(file.read_text("utf-8"))["scores"]
    assert all(0 <= score["accuracy"] <= 1 for score in scores)
    whole = [score for score in scores if score["low"] is not None]  # below five units there is no interval
    assert whole and all(0 <= score["low"] <= score["accuracy"] <= score["high"] <= 1 for score in whole)
    assert {score["data"] for score in scores} == set(public_data.FILES)
    assert all(ord(character) < 128 for character in file.read_text("utf-8"))  # no text of the sets
    folders = [public_data.apple_cases(folder), public_data.sememe_cases(folder)]
    assert [len(cases) for cases in folders] == [232, 2881]
    assert len({case.meta["word"] for case in folders[1]}) == 35
    assert [len(found) for found in public_data.pairs(folder)] == [1500, 1000]
