"""The set that the context injector ships: answers that stand where they should, and no short cut to them."""

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

import finetune
from tests.guards import twins

FOLDER = Path(finetune.__file__).parent / "data" / "rag"
TOPICS = {"chip": 20, "company": 12, "cultivation": 22, "fruit": 14, "acid": 14, "tca": 18, "other": 15}
FICTION = ("棱湖", "青石岭", "雾笠", "鲤须坪", "芋叶渡", "苔阶", "鹤檐")  # places that we made up
NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
QUANTITY = re.compile(r"几|多少|多[大宽远长甜高久重]")  # words that ask for a number
UNANSWERED = {  # read by hand against all passages: what a passage would have to hold to answer the question
    "q-008": r"鲤须坪.*(小时|公里|山路|进城)",  # 鲤须坪的果子装了车，要颠几个小时才进城？
    "q-011": r"员工.*[万千百]人|[万千百]名员工|雇员|雇了|工资|薪",  # 连门店带写字楼，苹果给多少人发着工资？
    "q-019": r"出生|生于|降生|故乡",  # 拿到诺贝尔奖的克雷布斯，是在哪座城市出生的？
    "q-023": r"千卡|大卡|千焦|卡路里",  # 吃下一只中等的苹果，添多少热量？
    "q-027": r"[0-9一二三四五六七八九十百千万]元|费用|收费|电池.*(免费|价)",  # 手机电池不经用，在天才吧换新收什么价？
    "q-028": r"染色体",  # 天山的野苹果，细胞核里有几条染色体？
    "q-029": r"(每秒|一秒).*字节|带宽",  # 苹果工作站的处理器由两颗芯片拼成，两边每过一秒能互传多少数据？
    "q-031": r"乳酸.*(星期|周)",  # 红葡萄酒里的苹果酸变成乳酸，要花几个星期？
    "q-033": r"苔阶.*(街|路|巷)",  # 苔阶实验室的大门开在哪条街上？
    "q-041": r"棱湖.*(纳米|微米|制程)",  # 棱湖七号这款教学处理器，采用哪种制程？
    "q-048": r"美元|定价|标价",  # 苹果头一部手机刚开卖，标的是什么价？
    "q-054": r"熔点|熔化|化成液",  # 拿试管慢慢加热苹果酸的粉末，升到哪个温度才化成液体？
    "q-055": r"英国|英格兰|M9.*国",  # 苹果接在M9上长得矮，这种砧木最先是哪国人育成的？
    "q-067": r"青石岭.*亩",  # 青石岭果园把四个轮灌区都算上，一共多少亩？
    "q-068": r"[0-9一二三四五六七八九十百千万]元|售价|价格",  # 食品厂买进食用级的苹果酸，一公斤付什么价？
    "q-071": r"平方毫米|毫米见方",  # M1从晶圆上切下来，一颗裸片占多大面积？
    "q-073": r"腐烂病.*(牌|甲基|腐殖酸|戊唑醇)",  # 腐烂病的坏皮刮干净了，伤口上抹哪个牌子的药？
    "q-077": r"富士.*(引种|引入|引进|带进|带回)",  # 脆而多汁的富士，当初是谁从日本带进中国的？
    "q-086": r"分子量|道尔顿|分子有.*重",  # 苹果酸脱氢酶一个分子有多重？
    "q-093": r"新竹|台积电.*总部",  # 替苹果造晶圆的那家代工厂，总部设在哪座城市？
}


@dataclass(frozen=True)
class Text:
    """What the guards look at."""

    id: str
    text: str
    group: str = ""


def rows(name):
    return [json.loads(line) for line in (FOLDER / name).read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def passages():
    return {row["_id"]: row for row in rows("corpus.jsonl")}


@pytest.fixture(scope="module")
def queries():
    return {row["_id"]: row for row in rows("queries.jsonl")}


@pytest.fixture(scope="module")
def golds():
    head, *lines = (FOLDER / "qrels.tsv").read_text("utf-8").splitlines()
    assert head == "query-id\tcorpus-id\tscore"
    found = {}
    for line in lines:
        query, passage, score = line.split("\t")
        assert score == "1" and passage not in found.setdefault(query, []), line
        found[query].append(passage)
    return found


@pytest.fixture(scope="module")
def terms():
    return (FOLDER / "terms.txt").read_text("utf-8").splitlines()


@pytest.fixture(scope="module")
def answerable(queries, passages, golds):
    """Give each answerable question with the texts of its gold passages."""
    kept = [query for query in queries.values() if query["kind"] == "answerable"]
    return [(query, [passages[gold]["text"] for gold in golds[query["_id"]]]) for query in kept]


def sign_test(pairs):
    """Give the two-sided chance of so uneven a split between left > right and left < right."""
    more, less = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    tail = sum(math.comb(more + less, k) for k in range(min(more, less) + 1)) / 2 ** (more + less)
    return min(1.0, 2 * tail)


def shared_run(question, passage, terms, size=8):
    """Give a run of `size` characters that both hold and no single term explains."""
    runs = (question[at : at + size] for at in range(len(question) - size + 1))
    return next((run for run in runs if run in passage and not any(run in term for term in terms)), None)


def pieces(text, size):
    return {text[at : at + size] for at in range(len(text) - size + 1)}


def overlap(question, passage):
    asked = pieces(re.sub(r"\W", "", question), 2)
    return len(asked & pieces(passage, 2)) / len(asked)


def auroc(higher, lower):
    """Give how often one of `higher` exceeds one of `lower`, a tie counting half: 0.5 tells nothing."""
    return sum((a > b) + (a == b) / 2 for a in higher for b in lower) / (len(higher) * len(lower))


def test_the_set_has_the_passages_and_questions_that_were_asked_for(passages, queries):
    assert Counter(row["topic"] for row in passages.values()) == TOPICS
    assert sum(row.get("invented", False) for row in passages.values()) == 25
    assert Counter(row["kind"] for row in queries.values()) == {"answerable": 80, "unanswerable": 20}
    assert len(rows("contradictions.jsonl")) == 30
    assert 40 <= sum("苹果" in row["text"] for row in queries.values()) <= 60
    early = list(queries.values())[:50]  # whoever halves the questions by order gets both kinds in both halves
    assert 7 <= sum(row["kind"] == "unanswerable" for row in early) <= 13


def test_rows_have_their_fields_and_no_id_or_text_stands_twice(passages, queries):
    for name, fields in (
        ("corpus.jsonl", {"_id", "title", "text", "topic", "doc"}),
        ("queries.jsonl", {"_id", "text", "answer", "wrong", "kind", "topic"}),
        ("contradictions.jsonl", {"query", "_id", "text"}),
    ):
        read = rows(name)
        assert all(row.keys() - {"invented"} == fields for row in read), name
        assert all(row.get("invented", True) is True for row in read), name
        assert len({row["_id"] for row in read}) == len({row["text"] for row in read}) == len(read), name
    assert all(row["_id"].startswith(row["topic"] + "-") for row in passages.values())
    assert {row["topic"] for row in queries.values()} <= TOPICS.keys() - {"other"}


def test_texts_are_of_a_readable_length_and_in_plain_characters(passages, queries):
    for row in (*passages.values(), *queries.values(), *rows("contradictions.jsonl")):
        assert not re.search(r"[\x00-\x1f\u200b-\u200f\ufffd]|,|\?|!|;|  ", row["text"]), row["_id"]
    assert all(60 <= len(row["text"]) <= 220 for row in passages.values())
    assert all(10 <= len(row["text"]) <= 40 and row["text"].endswith("？") for row in queries.values())


def test_each_answerable_question_has_a_gold_passage_and_no_other_one_has(passages, queries, golds):
    assert golds.keys() == {row["_id"] for row in queries.values() if row["kind"] == "answerable"}
    for query, found in golds.items():
        assert all(passages[gold]["topic"] != "other" for gold in found), query
        assert len({passages[gold].get("invented", False) for gold in found}) == 1, query
        assert queries[query]["topic"] in {passages[gold]["topic"] for gold in found}, query
    assert sum(passages[found[0]].get("invented", False) for found in golds.values()) == 25
    assert sum(len(found) > 1 for found in golds.values()) >= 3


def test_the_answer_stands_in_every_gold_passage_and_the_wrong_one_in_none(answerable):
    for query, texts in answerable:
        assert all(query["answer"] in text and query["wrong"] not in text for text in texts), query["_id"]
        assert query["answer"] not in query["text"] and query["wrong"] not in query["text"], query["_id"]


def test_right_and_wrong_are_short_and_neither_longer_nor_larger_as_a_rule(answerable):
    pairs = [(query["answer"], query["wrong"]) for query, _ in answerable]
    for right, wrong in pairs:
        assert 1 <= len(right) <= 15 and 1 <= len(wrong) <= 15 and abs(len(right) - len(wrong)) <= 3, (right, wrong)
    assert sign_test([(len(right), len(wrong)) for right, wrong in pairs]) > 0.05
    numbers = [(NUMBER.search(right), NUMBER.search(wrong)) for right, wrong in pairs]
    numbers = [(float(right[0]), float(wrong[0])) for right, wrong in numbers if right and wrong]
    assert len(numbers) >= 12 and sign_test(numbers) > 0.05


def test_no_answer_is_repeated_often(answerable):
    for side in ("answer", "wrong"):
        assert max(Counter(query[side] for query, _ in answerable).values()) <= 3, side


def test_a_question_does_not_copy_its_passage(answerable, terms):
    copied = {query["_id"]: shared_run(query["text"], text, terms) for query, texts in answerable for text in texts}
    assert not {query: run for query, run in copied.items() if run}


def test_a_third_of_the_questions_leaves_a_lexical_search_little_to_hold_on_to(answerable):
    shares = sorted(max(overlap(query["text"], text) for text in texts) for query, texts in answerable)
    assert shares[len(shares) // 3] <= 0.12 and shares[len(shares) // 2] >= 0.12 and shares[-20] >= 0.4


def test_no_two_passages_and_no_two_questions_are_twins(passages, queries):
    for read in (passages, queries):
        assert twins([Text(row["_id"], row["text"]) for row in read.values()]) == []


def test_no_passage_answers_an_unanswerable_question(passages, queries):
    unanswerable = {row["_id"]: row for row in queries.values() if row["kind"] == "unanswerable"}
    assert unanswerable.keys() == UNANSWERED.keys()
    for query, held in UNANSWERED.items():
        assert unanswerable[query]["answer"] == unanswerable[query]["wrong"] == "", query
        assert not [row["_id"] for row in passages.values() if re.search(held, row["text"])], query


def test_unanswerable_questions_name_what_passages_speak_of(passages, queries, terms):
    asked = [row["text"] for row in queries.values() if row["kind"] == "unanswerable"]
    near = [max((len(term) for term in terms if term in text), default=0) for text in asked]
    assert sum(size >= 2 for size in near) >= 12
    assert sum(any(name in text for name in FICTION) for text in asked) >= 3


@pytest.mark.parametrize(("higher", "lower", "area"), [((2, 3), (1, 2), 0.875), ((1,), (2, 3), 0), ((5,), (5,), 0.5)])
def test_auroc_counts_pairs(higher, lower, area):
    assert auroc(higher, lower) == area


@pytest.mark.parametrize("cue", ["length", "rare bigrams", "commas", "asks for a number"])
def test_nothing_shallow_tells_which_questions_are_unanswerable(passages, queries, cue):
    held = Counter(pair for row in passages.values() for pair in pieces(row["text"], 2))
    read = {
        "length": len,
        "rare bigrams": lambda text: sum(held[pair] <= 1 for pair in pieces(re.sub(r"\W", "", text), 2)),
        "commas": lambda text: text.count("，"),
        "asks for a number": lambda text: bool(QUANTITY.search(text)),
    }[cue]
    found = {"answerable": [], "unanswerable": []}
    for row in queries.values():
        found[row["kind"]].append(read(row["text"]))
    assert 0.35 <= auroc(found["answerable"], found["unanswerable"]) <= 0.65


def test_a_contradicting_passage_says_the_wrong_answer_in_the_words_of_the_gold_one(passages, queries, golds):
    read = rows("contradictions.jsonl")
    assert len({row["query"] for row in read}) == len(read)
    for row in read:
        query, (gold,) = queries[row["query"]], golds[row["query"]]
        assert query["wrong"] in row["text"] and query["answer"] not in row["text"], row["_id"]
        kept = pieces(passages[gold]["text"], 4)
        assert len(kept & pieces(row["text"], 4)) >= 0.6 * len(kept), row["_id"]
    assert 12 <= sum(passages[golds[row["query"]][0]].get("invented", False) for row in read) <= 18


def test_invented_facts_are_told_of_places_that_we_made_up_and_nothing_else_is(passages, queries, golds):
    for row in passages.values():
        assert any(name in row["title"] + row["text"] for name in FICTION) == row.get("invented", False), row["_id"]
    for query, found in golds.items():
        asked = any(name in queries[query]["text"] for name in FICTION)
        assert asked == passages[found[0]].get("invented", False), query


def test_terms_are_words_that_the_set_uses(passages, queries, terms):
    texts = [row["title"] + "\n" + row["text"] for row in passages.values()]
    everything = "\n".join([*texts, *(row["text"] + "\n" + row["wrong"] for row in queries.values())])
    assert len(terms) >= 120 and len(set(terms)) == len(terms)
    assert not [term for term in terms if not 2 <= len(term) <= 12 or re.search(r"\s", term) or term not in everything]


def test_questions_about_something_else_are_none_of_the_sets_subjects(passages, answerable):
    elsewhere = rows("elsewhere.jsonl")
    assert len({row["_id"] for row in elsewhere}) == len({row["text"] for row in elsewhere}) == len(elsewhere) == 40
    names = ("苹果", "芯片", "果树", "循环", "Mac", "iPhone")
    assert not [row["text"] for row in elsewhere if any(name in row["text"] for name in names)]
    texts = [row["title"] + row["text"] for row in passages.values()]
    copied = [
        row["text"]
        for row in elsewhere
        for start in range(len(row["text"]) - 5)
        if any(row["text"][start : start + 6] in text for text in texts)
    ]
    assert copied == []
    lengths = [[len(row["text"]) for row in kind] for kind in ([query for query, _ in answerable], elsewhere)]
    assert 0.35 < auroc(*lengths) < 0.65
