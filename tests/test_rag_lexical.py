"""The lexical index: real words of Chinese, scores against BM25 by hand, no leak from word to word, files checked."""

import hashlib
import json
import math
import os
from pathlib import Path

import bm25s
import numpy as np
import pytest
import rjieba

from finetune import words as segmentation
from finetune.errors import RetrievalError
from finetune.rag.lexical import LexicalIndex
from finetune.rag.searchwords import SearchWords

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CIJING_DATA", ROOT.parent / "shared" / "data"))
needs_cmrc = pytest.mark.skipif(
    not (DATA / "cmrc-retrieval").is_dir(), reason="shared data is not there: set CIJING_DATA"
)
TEXTS = [
    "苹果酸脱氢酶把苹果酸氧化成草酰乙酸，同时把NAD+还原成NADH。",
    "苹果公司在2020年发布了M1芯片，用5纳米工艺。",
    "苹果树在春天开花，苹果的授粉靠蜜蜂。",
    "柠檬酸合酶把草酰乙酸和乙酰辅酶A变成柠檬酸。",
]


@pytest.fixture(scope="module")
def plain():
    return SearchWords()


def places(index, query, k=10):
    return [found.place for found in index.search([query], k)[0]]


# ---- the words of a text ---------------------------------------------------------------------------------------


def test_words_are_exact_cuts_of_every_class_without_signs(plain):
    assert plain.words("苹果酸和什么酶有关？（3.5%）") == ["苹果酸", "和", "什么", "酶", "有关", "3.5"]


def test_width_and_case_make_no_difference(plain):
    assert plain.words("Ｍ１芯片用ＡＲＭ指令集") == plain.words("m1芯片用arm指令集")
    assert SearchWords(["ＮＡＤ+"]).words("nad⁺还原") == ["nad+", "还原"]


def test_words_of_other_scripts_are_whole(plain):
    assert plain.words("Ärzte和привет，カタカナ") == ["ärzte", "和", "привет", "カタカナ"]
    assert plain.words("在2019，2020年") == ["在", "2019", "2020", "年"]


def test_an_unknown_word_is_cut_the_same_in_every_text(plain):
    inside = plain.words("他在雾笠的试种园里"), plain.words("雾笠苗圃")
    assert all({"雾", "笠"} <= set(one) for one in inside)


def test_terms_stay_whole_in_both_fields():
    cut = SearchWords(["苹果螺", "M1 Pro", "α-酮戊二酸"])
    text = "苹果螺与m1 pro，α-酮戊二酸！"
    assert cut.words(text) == ["苹果螺", "与", "m1 pro", "α-酮戊二酸"]
    assert cut.bigrams(text) == ["苹果螺", "m1 pro", "α-酮戊二酸"]
    assert SearchWords(["=>"]).words("甲=>乙->丙") == ["甲", "=>", "乙", "丙"]


def test_bigrams_are_of_neighbouring_chinese_characters_with_words_of_letters_whole(plain):
    assert plain.bigrams("苹果酸NADH脱氢") == ["苹果", "果酸", "nadh", "脱氢"]


def test_what_is_no_text_gives_no_word(plain):
    assert plain.words("\ud800苹果\udfff") == ["苹果"]
    for nothing in ("", " \n\t", "，。！？…《》", "\0", "\ud800"):
        assert plain.words(nothing) == plain.bigrams(nothing) == []
    assert SearchWords(["苹果\ud800", "\ud800"]).words("苹果") == ["苹果"]


def test_the_identity_follows_the_terms_and_not_their_order():
    one, other = SearchWords(["苹果酸", "ATP"]), SearchWords(["atp", "苹果酸", " "])
    assert one.identity() == other.identity() != SearchWords(["苹果酸"]).identity()
    assert set(one.identity()) == {"rjieba", "terms", "rules"}
    names = ["液泡", "气孔", "酚酞", "砧木", "壁蜂", "疏果", "滴灌"]
    assert SearchWords(names).terms == tuple(sorted(names))


def test_without_rjieba_it_is_said(monkeypatch):
    monkeypatch.setattr(segmentation, "find_spec", lambda name: None)
    with pytest.raises(RetrievalError, match="rjieba is not installed"):
        SearchWords()


# ---- traps -----------------------------------------------------------------------------------------------------


def test_bm25s_own_cuts_find_nothing_in_chinese_and_ours_do(plain):
    """RAG.md, trap 1: a clause is one token, and every score 0."""
    query = "苹果酸和什么酶有关"
    theirs = bm25s.BM25()
    theirs.index(bm25s.tokenize(TEXTS, show_progress=False), show_progress=False)
    _, scores = theirs.retrieve(bm25s.tokenize([query], show_progress=False), k=len(TEXTS), show_progress=False)
    assert scores.tolist() == [[0.0] * len(TEXTS)]
    assert 0 in places(LexicalIndex.build(TEXTS, plain), query)


def test_cuts_for_search_leak_from_word_to_word_and_exact_ones_do_not(plain):
    """RAG.md, trap 3."""
    texts = ["苹果酸是二元羧酸", "苹果在秋天成熟"]
    leaking = bm25s.BM25()
    leaking.index([rjieba.cut_for_search(text) for text in texts], show_progress=False)
    assert (leaking.get_scores(rjieba.cut_for_search("苹果酸")) > 0).all()
    assert (leaking.get_scores(["苹果"]) > 0).all()
    index = LexicalIndex.build(texts, plain)
    assert places(index, "苹果酸") == [0] and places(index, "苹果") == [1]


@pytest.mark.parametrize("term", ["苹果酸", "苹果螺"])
def test_no_part_of_a_term_is_found_by_words_nor_by_the_fallback(term):
    with_term = SearchWords([term])
    assert places(LexicalIndex.build([f"{term}很多", "桃子"], with_term), "苹果") == []
    assert places(LexicalIndex.build(["苹果很多", "桃子"], with_term), term) == []
    assert places(LexicalIndex.build(["苹果很多", f"{term}很多"], with_term), term) == [1]


def test_a_word_that_rjieba_does_not_know_leaks_where_it_is_no_term(plain):
    assert places(LexicalIndex.build(["苹果螺很多", "桃子"], plain), "苹果") == [0]


def test_texts_without_a_word_of_the_query_are_no_hits(plain):
    index = LexicalIndex.build(TEXTS, plain)
    for query in ("苹果酸", "芯片", "草酰乙酸和柠檬酸"):
        (found,) = index.search([query], 10)
        holders = [place for place, text in enumerate(TEXTS) if set(plain.words(text)) & set(plain.words(query))]
        assert sorted(one.place for one in found) == holders and len(holders) < len(TEXTS)
        assert all(one.score > 0 for one in found)


# ---- scores and order ------------------------------------------------------------------------------------------


def bm25(query, text, texts, *, k1=1.5, b=0.75):
    """The formula, word by word."""
    mean = sum(map(len, texts)) / len(texts)
    score = 0.0
    for word in query:
        holding = sum(word in other for other in texts)
        often = text.count(word)
        rare = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
        score += rare * often / (often + k1 * (1 - b + b * len(text) / mean))
    return score


@pytest.mark.parametrize("query", ["苹果酸脱氢酶", "苹果的芯片，苹果的花", "草酰乙酸 NADH", "在春天用M1"])
def test_scores_are_those_of_bm25_by_hand(plain, query):
    cut = [plain.words(text) for text in TEXTS]
    wanted = {place: bm25(plain.words(query), text, cut) for place, text in enumerate(cut)}
    (found,) = LexicalIndex.build(TEXTS, plain).search([query], 10)
    assert {one.place: one.score for one in found} == pytest.approx(
        {place: score for place, score in wanted.items() if score}, rel=1e-5
    )
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


@pytest.mark.parametrize("k", [1, 3, 7, 40])
def test_of_equal_texts_the_earlier_comes_first(plain, k):
    texts = ["桃子", "苹果"] * 15 + ["苹果，苹果"]
    best, *equal = places(LexicalIndex.build(texts, plain), "苹果", k)
    assert best == 30 and equal == list(range(1, 30, 2))[: k - 1]


def test_a_query_whose_words_find_nothing_is_looked_for_by_its_bigrams(plain):
    texts = ["他考上了北京大学", "大气层学说"]
    index = LexicalIndex.build(texts, plain)
    assert "大学" not in {word for text in texts for word in plain.words(text)}
    assert places(index, "大学") == [0]
    assert places(index, "大学，大气层") == [1]  # words find a text, so the bigrams are left alone


def test_a_query_of_unknown_words_finds_nothing(plain):
    index = LexicalIndex.build(TEXTS, plain)
    assert index.search(["ZZZ量子纠缠", "", "？！", "\ud800", " "], 3) == [[], [], [], [], []]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("texts", [[], ["，。！"], ["", " \n"], ["的"]])
def test_a_corpus_without_words_is_an_index_all_the_same(plain, tmp_path, texts):
    index = LexicalIndex.build(texts, plain)
    index.save(tmp_path / "lexical")
    for one in (index, LexicalIndex.load(tmp_path / "lexical", plain)):
        assert len(one) == len(texts)
        assert one.search(["苹果", ""], 5) == [[], []]


def test_no_query_gives_no_answer_and_no_place_is_refused(plain):
    index = LexicalIndex.build(TEXTS, plain)
    assert index.search([], 5) == []
    with pytest.raises(RetrievalError, match="best 0: allowed is 1 or more"):
        index.search(["苹果"], 0)


def test_progress_tells_both_fields(plain):
    told = []
    LexicalIndex.build(TEXTS[:2], plain, progress=lambda *one: told.append(one))
    assert told == [("words", 1, 2), ("words", 2, 2), ("bigrams", 1, 2), ("bigrams", 2, 2)]


# ---- files -----------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(plain, tmp_path):
    LexicalIndex.build(TEXTS, plain).save(tmp_path / "lexical")
    return tmp_path / "lexical"


def files(folder):
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


QUERIES = ["苹果酸脱氢酶", "苹果", "大学", "柠檬", "在"]


def test_what_is_loaded_finds_what_was_built(plain, saved):
    built, loaded = LexicalIndex.build(TEXTS, plain), LexicalIndex.load(saved, plain)
    assert loaded.search(QUERIES, 3) == built.search(QUERIES, 3)
    assert len(loaded) == len(TEXTS)


def test_the_same_texts_give_the_same_files(plain, saved, tmp_path):
    LexicalIndex.build(TEXTS, plain).save(tmp_path / "again")
    assert files(saved) == files(tmp_path / "again")
    LexicalIndex.load(saved, plain).save(tmp_path / "third")
    assert files(saved) == files(tmp_path / "third")


def test_each_file_that_is_damaged_or_missing_is_told(plain, saved):
    names = sorted(files(saved))
    assert len(names) == 11  # the head; three arrays, vocabulary and parameters of each field
    for name in names:
        whole = (saved / name).read_bytes()
        for broken in (whole[:-3], whole[:20] + b"#" + whole[21:], b"", None):
            (saved / name).unlink() if broken is None else (saved / name).write_bytes(broken)
            with pytest.raises(RetrievalError, match="--rebuild") as told:
                LexicalIndex.load(saved, plain)
            assert name.split("/")[-1] in str(told.value) and "\n" not in str(told.value)
        (saved / name).write_bytes(whole)
    assert LexicalIndex.load(saved, plain).search(QUERIES, 3)


def test_a_folder_that_is_no_index_is_told(plain, tmp_path):
    with pytest.raises(RetrievalError, match=r"lexical\.json: cannot be read"):
        LexicalIndex.load(tmp_path / "nowhere", plain)


def forged(folder, change):
    head = json.loads((folder / "lexical.json").read_text("utf-8"))
    change(head)
    (folder / "lexical.json").write_text(json.dumps(head), "utf-8")


class Trap:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_a_pickle_in_an_array_is_not_run(plain, saved, tmp_path):
    name, mark = "words/data.csc.index.npy", tmp_path / "ran"
    np.save(saved / name, np.array([Trap(mark)], dtype=object), allow_pickle=True)
    content = (saved / name).read_bytes()
    forged(saved, lambda head: head["files"].update({name: hashlib.sha256(content).hexdigest()}))
    with pytest.raises(RetrievalError, match="no field of a lexical index"):
        LexicalIndex.load(saved, plain)
    assert not mark.exists()
    np.load(saved / name, allow_pickle=True)
    assert mark.exists()  # the trap does work


def test_other_words_are_refused_with_the_way_out(saved):
    with pytest.raises(RetrievalError, match=r"other search words \(terms .*--rebuild"):
        LexicalIndex.load(saved, SearchWords(["苹果酸"]))
    forged(saved, lambda head: head["words"].update(rjieba="0.0.1"))
    with pytest.raises(RetrievalError, match=r"\(rjieba 0\.0\.1, now "):
        LexicalIndex.load(saved, SearchWords())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda head: head.update(format=2), "format 2, allowed is 1"),
        (lambda head: head.update(texts=5), "holds 4 texts, the index 5"),
        (lambda head: head.update(texts="4"), "is damaged"),
        (lambda head: head.pop("files"), "is damaged"),
        (lambda head: head["files"].update({"words/\0": ""}), "cannot be read"),
    ],
)
def test_a_head_that_is_not_ours_is_refused(plain, saved, change, told):
    forged(saved, change)
    with pytest.raises(RetrievalError, match=told):
        LexicalIndex.load(saved, plain)


def test_an_index_is_not_written_over_another(plain, saved, tmp_path):
    index = LexicalIndex.build(TEXTS[:1], plain)
    with pytest.raises(RetrievalError, match="not empty"):
        index.save(saved)
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(RetrievalError, match="cannot be written"):
        index.save(tmp_path / "file" / "lexical")


# ---- public passages -------------------------------------------------------------------------------------------


def lines(name):
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def passages():
    """Of cmrc, then of wiki-biochem."""
    return [
        one["text"] for name in ("cmrc-retrieval/corpus", "wiki-biochem/wiki_biochem") for one in lines(f"{name}.jsonl")
    ]


@pytest.fixture(scope="module")
def index(plain, passages):
    return LexicalIndex.build(passages, plain)


@needs_cmrc
def test_the_right_cmrc_passage_comes_first_on_either_half(index):
    ids = [one["_id"] for one in lines("cmrc-retrieval/corpus.jsonl")]
    rows = (DATA / "cmrc-retrieval/qrels_half.tsv").read_text("utf-8").splitlines()[1:]
    gold = {query: ids.index(passage) for query, passage, _ in (row.split("\t") for row in rows)}
    queries = lines("cmrc-retrieval/queries_half.jsonl")
    found = index.search([one["text"] for one in queries], 1)
    right = np.array([hits[0].place == gold[one["_id"]] for one, hits in zip(queries, found, strict=True)])
    assert len(right) > 1600 and min(right[0::2].mean(), right[1::2].mean()) >= 0.93


ASKED = {  # question -> what the passage says
    "瓦尔登用苹果酸发现了什么？": "构型翻转",
    "苹果酸与发烟硫酸作用得到什么？": "香豆酸",
    "苹果酸脱氢酶和苹果酸酶有什么不同？": "不应与苹果酸酶相混淆",
    "苹果酸-天冬氨酸穿梭中，一个葡萄糖最终收到多少ATP分子？": "32个ATP",
    "三羧酸循环中哪一步的催化酶是琥珀酸脱氢酶？": "转化为延胡索酸",
    "氟柠檬酸抑制什么酶？": "氟柠檬酸能抑制",
    "丙酮酸羧化酶催化丙酮酸形成什么？": "丙酮酸受到丙酮酸羧化酶催化",
    "乌头酸酶催化柠檬酸生成异柠檬酸时，平衡比例是多少？": "9:1",
    "苹果期货在哪个交易所上市？": "郑州商品交易所",
    "苹果原产于哪里？": "原产于欧洲",
}


@needs_cmrc
def test_biochemistry_is_found_among_the_cmrc_passages(index, passages):
    """One of the questions is answered by a passage that says nearly what seven others say."""
    found = index.search(list(ASKED), 10)
    ranks = [
        next(rank for rank, hit in enumerate(hits, 1) if said in passages[hit.place])
        for said, hits in zip(ASKED.values(), found, strict=True)
    ]
    assert ranks.count(1) >= 9
    distractors = len(lines("cmrc-retrieval/corpus.jsonl"))
    assert all(hits[0].place >= distractors for hits in found)
