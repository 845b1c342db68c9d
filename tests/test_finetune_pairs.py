"""Pairs: read, found in texts, put on tokens, and refused with the right reason."""

from pathlib import Path

import numpy as np
import pytest

from finetune.config import load_config
from finetune.domains import DOMAINS, domain_file
from finetune.errors import ConfigError, PairError
from finetune.pairs import PairBook, Reach, TokenPair, load_pairs, on_tokens, pairs_in, why_unmet
from probe import TokenMap

FREE = Reach(causal=False, window=None, longest=None)


def book(*pairs, **more):
    return PairBook.model_validate({"pairs": list(pairs), **more})


def found(text, one, rules=None):
    pairs, unmet = pairs_in(text, one, rules=range(len(one.pairs)) if rules is None else rules)
    return [(pair.query.cut(text), pair.query.start, pair.key.cut(text), pair.key.start) for pair in pairs], unmet


def characters(text):
    """A token a character."""
    count = len(text)
    offsets = np.array([[place, place + 1] for place in range(count)], dtype=np.int64)
    flags = np.zeros(count, dtype=bool)
    return TokenMap(
        text=text, ids=tuple(range(count)), offsets=offsets, special=flags, labels=tuple(text), unknown=flags,
        aligned="offsets",
    )  # fmt: skip


def test_a_query_is_joined_with_the_nearest_key_and_each_occurrence_has_a_pair_of_its_own():
    one = book({"query": "M1", "key": "苹果"})
    text = "苹果发布了M1，后来别家也谈苹果，说M1很快"
    pairs, unmet = found(text, one)
    assert pairs == [("M1", 5, "苹果", 0), ("M1", text.rindex("M1"), "苹果", text.rindex("苹果"))]
    assert not unmet


def test_a_shorter_word_inside_a_longer_one_of_the_file_is_not_found():
    inside = "乙酰辅酶A进入循环，辅酶参与其中"
    pairs, _ = found(inside, book({"query": "辅酶", "key": "循环"}, words=["乙酰辅酶A"]))
    assert [pair[1] for pair in pairs] == [inside.rindex("辅酶")]
    pairs, _ = found(inside, book({"query": "辅酶", "key": "循环"}))
    assert [pair[1] for pair in pairs] == [2, inside.rindex("辅酶")]


@pytest.mark.parametrize("text", ["苹果的M10", "苹果的PM1", "苹果的M1x"])
def test_a_latin_name_inside_a_longer_one_is_not_found(text):
    assert found(text, book({"query": "M1", "key": "苹果"})) == ([], [])


def test_regular_expressions_and_terms_name_many_words():
    one = book(
        {"query": {"regex": r"M[1-4](?![0-9])"}, "key": "苹果"},
        {"query": {"term": "acids"}, "key": "循环"},
        terms={"acids": ["苹果酸", "柠檬酸"]},
    )
    pairs, _ = found("苹果的M3；柠檬酸与苹果酸都在循环里", one)
    assert {pair[0] for pair in pairs} == {"M3", "柠檬酸", "苹果酸"}


def test_of_a_pair_in_either_direction_the_later_word_reads_the_earlier():
    one = book({"query": "苹果酸", "key": "酶", "direction": "either"})
    assert found("酶作用于苹果酸", one)[0] == [("苹果酸", 4, "酶", 0)]
    assert found("苹果酸遇到酶", one)[0] == [("酶", 5, "苹果酸", 0)]
    assert found("苹果酸遇到酶", book({"query": "苹果酸", "key": "酶"}))[0] == [("苹果酸", 0, "酶", 5)]


def test_a_key_that_only_stands_inside_the_query_is_named_overlapping():
    pairs, unmet = found("脱氢酶", book({"query": {"regex": "脱氢酶"}, "key": {"regex": "酶"}}))
    assert not pairs
    assert [each.reason for each in unmet] == ["overlapping"]


def test_a_text_without_one_of_the_words_has_no_pair_and_nothing_unmet():
    assert found("只有苹果", book({"query": "苹果", "key": "芯片"})) == ([], [])


def test_only_the_rules_asked_for_are_looked_up():
    one = book({"query": "苹果", "key": "芯片"}, {"query": "苹果", "key": "晶圆", "part": "held_out"})
    assert one.of_part("train") == (0,) and one.of_part("held_out") == (1,)
    assert found("苹果芯片晶圆", one, one.of_part("held_out"))[0] == [("苹果", 0, "晶圆", 4)]


def test_pairs_become_the_tokens_that_carry_their_characters_with_negatives_apart():
    one = book({"query": "M1", "key": "苹果", "negatives": ["果园"], "weight": 2.0})
    text = "果园苹果M1"
    pairs, _ = pairs_in(text, one, rules=[0])
    met, unmet = on_tokens(pairs, characters(text), FREE)
    assert met == [TokenPair(rule=0, queries=(4, 5), keys=(2, 3), negatives=(0, 1), weight=2.0)]
    assert not unmet


@pytest.mark.parametrize(
    ("queries", "keys", "reach", "reason"),
    [
        ((4, 5), (1, 2), Reach(causal=True, window=None, longest=None), None),
        ((1, 2), (4, 5), Reach(causal=True, window=None, longest=None), "order"),
        ((1, 2), (4, 5), Reach(causal=False, window=None, longest=None), None),
        ((9,), (1,), Reach(causal=True, window=9, longest=None), None),
        ((9,), (1,), Reach(causal=True, window=8, longest=None), "window"),
        ((9,), (1, 2), Reach(causal=True, window=8, longest=None), None),
        ((9,), (1,), Reach(causal=True, window=None, longest=9), "truncated"),
        ((9,), (1,), Reach(causal=True, window=None, longest=10), None),
    ],
)
def test_a_pair_that_cannot_be_met_is_given_its_reason(queries, keys, reach, reason):
    assert why_unmet(TokenPair(rule=0, queries=queries, keys=keys), reach) == reason


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("pairs: [{query: 苹果, kye: 芯片}]", "kye"),
        ("pairs: []", "pairs"),
        ("pairs: [{query: {word: a, regex: b}, key: c}]", "one of word, regex, term"),
        ("pairs: [{query: {regex: '('}, key: c}]", "regex"),
        ("pairs: [{query: {term: acids}, key: c}]", "acids"),
        ("pairs: [{query: a, key: b}, {query: a, key: b}]", "twice"),
        ("pairs: [{query: a, key: b}, {query: a, key: b, weight: 2}]", r"a → b stands twice, as pairs\.0 and pairs\.1"),
        ("pairs: [{query: a, key: b}, {query: {word: a}, key: b, part: held_out}]", "part train and part held_out"),
        ("pairs: [{query: a, key: b, weight: -1}]", "weight"),
        ("pairs: [{query: '', key: b}]", "not empty"),
        ("{pairs: [{query: a, key: b}], words: [c, '']}", r"words\.1: an empty word"),
        ("{pairs: [{query: a, key: b}], terms: {acids: ['  ']}}", r"terms\.acids\.0: an empty word"),
        ("pairs: [unclosed", "YAML"),
        ("pairs:\n- query: a\n  key: b\n  key: c", r"pairs\.yaml:4: .*the key 'key' stands twice, first on line 3"),
        ("pairs: [{query: a, key: b}]\nterms: {x: [a]}\nterms: {}", r"pairs\.yaml:3: .*the key 'terms' stands twice"),
        ("pairs: [{query: a, query: c, key: b}]", r"pairs\.yaml:1: .*the key 'query' stands twice"),
        ("- a", "mapping"),
        ("!!python/object/apply:os.system ['true']", "YAML"),
    ],
)
def test_a_wrong_pairs_file_is_refused_with_what_is_wrong(tmp_path: Path, content, said):
    file = tmp_path / "pairs.yaml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(PairError, match=said) as caught:
        load_pairs(file)
    assert "\n" not in str(caught.value) and str(file) in str(caught.value)


def test_a_pairs_file_that_is_not_there_is_one_line(tmp_path: Path):
    with pytest.raises(PairError, match="cannot be read"):
        load_pairs(tmp_path / "none.yaml")


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_shipped_pairs_stand_once_each(domain):
    assert load_pairs(domain_file(domain, "pairs.yaml")).pairs


def test_a_key_of_an_anchor_may_be_given_anew(tmp_path: Path):
    file = tmp_path / "pairs.yaml"
    file.write_text("pairs:\n- &first {query: a, key: b}\n- <<: *first\n  key: c\n", encoding="utf-8")
    assert [str(rule) for rule in load_pairs(file).pairs] == ["a → b", "a → c"]


def test_a_key_that_stands_twice_in_a_runs_file_is_refused_with_its_line(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text("model: m\ntask: causal-lm\ndata: {train: [a]}\nseed: 1\nseed: 2\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run\.yaml:5: .*the key 'seed' stands twice, first on line 4"):
        load_config(file)


def test_an_expression_that_would_go_on_for_years_is_refused_with_the_text():
    """Each further 手 doubles the ways to divide them."""
    one = book({"query": {"regex": "(手|手手)+$"}, "key": "苹果"})
    with pytest.raises(PairError, match=r"regex '\(手\|手手\)\+\$' takes more than 1 s on the text '苹果手") as caught:
        found("苹果" + "手" * 60 + "x", one)
    assert "\n" not in str(caught.value)
    assert found("苹果" + "手" * 60 + "x", book({"query": {"regex": "(手+)+$"}, "key": "苹果"})) == ([], [])
    assert found("苹果手手", one)[0] == [("手手", 2, "苹果", 0)]
