"""The shipped domains: large enough, honest splits, no templates, pairs that are there, questions that can be asked."""

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest

from finetune.domains import DOMAINS, domain_file, domain_pairs, load_questions
from finetune.errors import DataError
from finetune.pairs import pairs_in
from tests.guards import twins

NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*|[零〇一二两三四五六七八九十百千万亿]+")


@dataclass(frozen=True)
class Text:
    """What the guards look at."""

    id: str
    group: str
    text: str


@pytest.fixture(params=DOMAINS, scope="module")
def domain(request):
    return request.param


@pytest.fixture(scope="module")
def texts(domain):
    parts = {}
    for part in ("train", "test"):
        lines = domain_file(domain, f"{part}.jsonl").read_text("utf-8").splitlines()
        parts[part] = [Text(**json.loads(line)) for line in lines]
    return parts


def counted(texts, book, part):
    """Texts that hold each pair of a part."""
    found = Counter()
    for one in texts:
        found.update({pair.rule for pair in pairs_in(one.text, book, rules=book.of_part(part))[0]})
    return {rule: found[rule] for rule in book.of_part(part)}


def test_a_domain_has_enough_sentences_and_a_held_out_part_of_other_facts(texts):
    assert len(texts["train"]) >= 400 and len(texts["test"]) >= 100
    everything = [*texts["train"], *texts["test"]]
    assert len({one.id for one in everything}) == len({one.text for one in everything}) == len(everything)
    assert not {one.group for one in texts["train"]} & {one.group for one in texts["test"]}
    assert max(Counter(one.group for one in everything).values()) <= 6


def test_sentences_are_of_a_readable_length_and_in_plain_characters(texts):
    for one in (*texts["train"], *texts["test"]):
        assert 15 <= len(one.text) <= 180, one.id
        assert not re.search(r"[\x00-\x1f\u200b-\u200f\ufffd]|(?<![0-9]),|\?|!|;", one.text), one.id


def test_few_sentences_share_a_frame(domain, texts):
    book = domain_pairs(domain)
    words = re.compile("|".join(map(re.escape, sorted(book.lexicon.words, key=len, reverse=True))))
    frames = defaultdict(set)
    for one in (*texts["train"], *texts["test"]):
        frames[NUMBER.sub("N", words.sub("W", one.text))].add(one.id)
    crowded = sum(len(ids) for ids in frames.values() if len(ids) > 1)
    assert crowded <= 0.05 * sum(map(len, texts.values()))


def test_no_sentence_is_another_facts_twin(texts):
    assert twins([*texts["train"], *texts["test"]]) == []


def test_each_pair_stands_in_enough_sentences_and_the_held_out_ones_in_the_test_part(domain, texts):
    book = domain_pairs(domain)
    assert len(book.of_part("train")) >= 20 and len(book.of_part("held_out")) >= 8
    assert min(counted(texts["train"], book, "train").values()) >= 6
    assert min(counted(texts["test"], book, "train").values()) >= 2
    assert min(counted(texts["test"], book, "held_out").values()) >= 3


def test_pairs_stand_in_both_orders_and_near_and_far(domain, texts):
    book = domain_pairs(domain)
    places = []
    for one in texts["train"]:
        for pair in pairs_in(one.text, book, rules=range(len(book.pairs)))[0]:
            places.append((pair.query.start < pair.key.start, _apart(pair)))
    first = sum(order for order, _ in places) / len(places)
    assert 0.35 <= first <= 0.65
    far = sum(apart > 10 for _, apart in places) / len(places)
    near = sum(apart < 10 for _, apart in places) / len(places)
    assert far >= 0.25 and near >= 0.25


def _apart(pair):
    one, other = sorted((pair.query, pair.key))
    return other.start - one.end


def test_questions_rest_on_facts_of_the_corpus_and_their_endings_are_as_long(domain, texts):
    questions = load_questions(domain)
    groups = {one.group for part in texts.values() for one in part}
    assert len(questions) >= 60 and len({one.id for one in questions}) == len(questions)
    assert {one.group for one in questions} <= groups
    lengths = [(len(one.right), len(one.wrong)) for one in questions]
    longer = sum(right > wrong for right, wrong in lengths), sum(wrong > right for right, wrong in lengths)
    assert abs(longer[0] - longer[1]) <= 0.1 * len(questions)
    assert max(abs(right - wrong) for right, wrong in lengths) <= 4
    assert max(Counter(one.right for one in questions).values()) <= 4
    held_out = {one.group for one in texts["test"]}
    assert sum(one.group in held_out for one in questions) >= 15


def test_no_question_repeats_a_sentence_that_is_trained_on(domain, texts):
    """A run of 12 characters of a training text would make the question one of copying."""
    runs = {one.text[place : place + 12] for one in texts["train"] for place in range(len(one.text) - 11)}
    for question in load_questions(domain):
        asked = question.prompt + question.right
        assert not runs & {asked[place : place + 12] for place in range(len(asked) - 11)}, question.id


def test_a_pair_of_a_question_is_one_of_the_domain_and_stands_in_it(domain):
    book = domain_pairs(domain)
    known = {(rule.query.word, rule.key.word) for rule in book.pairs}
    for question in load_questions(domain):
        if question.pair is not None:
            assert question.pair in known or question.pair[::-1] in known, question.id
            assert any(word in question.prompt for word in question.pair), question.id


@pytest.mark.parametrize(
    "line", ["{", "[]", "3", '{"id": 1}', '{"id": 1, "prompt": "", "right": "a", "wrong": "b"}',
             '{"id": 1, "prompt": "p", "right": "a", "wrong": "a"}']
)  # fmt: skip
def test_a_wrong_question_is_named_by_file_and_line(tmp_path, line):
    file = tmp_path / "q.jsonl"
    good = json.dumps({"id": "a", "prompt": "p", "right": "r", "wrong": "w"})
    file.write_text(f"{good}\n\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"q\.jsonl:3"):
        load_questions(file)


def test_a_domain_that_is_not_shipped_is_refused_with_those_that_are():
    with pytest.raises(DataError, match="biochem, chips"):
        domain_pairs("finance")
