"""Chunks found by words, by vectors, by both and by a reranker, each with the scores of the fields that found it."""

import zlib

import numpy as np
import pytest
import torch
import transformers

from finetune.errors import RetrievalError
from finetune.rag.chunks import Chunk
from finetune.rag.fusion import fuse
from finetune.rag.hits import Ranked
from finetune.rag.index import IndexSettings, build_index, open_index
from finetune.rag.lexical import LexicalIndex
from finetune.rag.rerank import Reranker
from finetune.rag.retrieve import retrieve
from finetune.rag.searchwords import SearchWords
from tests.tiny import tiny_bert

TEXTS = (
    "苹果酸脱氢酶催化苹果酸氧化成草酰乙酸。",
    "苹果公司在秋天发布了新的芯片。",
    "富士苹果在霜降前后采收，贮藏到春天。",
    "草酰乙酸与乙酰辅酶A缩合成柠檬酸。",
    "果农在春天给苹果树剪枝。",
    "苹果公司的芯片由别的厂家制造。",
)
QUERIES = ("苹果酸脱氢酶催化什么？", "苹果公司的芯片", "春天的苹果树")


def vector(text, dim=64):
    """The characters of a text, hashed: a dense field small enough to be worked by hand."""
    found = np.zeros(dim)
    for character in text:
        found[zlib.crc32(character.encode()) % dim] += 1
    return found / np.linalg.norm(found)


class SmallIndex:
    """An index through its interface: the real lexical field, exact cosines of small vectors."""

    def __init__(self, texts=TEXTS, *, has_dense=True):
        self.chunks = [
            Chunk(id=f"c{n}", document=f"d{n}", start=0, end=len(text), text=text, title="", tokens=len(text))
            for n, text in enumerate(texts)
        ]
        self.lexical = LexicalIndex.build(texts, SearchWords(["苹果酸", "苹果酸脱氢酶"]))
        self.has_dense = has_dense
        self.vectors = np.stack([vector(text) for text in texts])
        self.asked = []

    def dense_search(self, queries, k):
        self.asked.append(k)
        scores = np.stack([vector(query) for query in queries]) @ self.vectors.T
        return [[Ranked(p, float(row[p])) for p in np.argsort(-row, kind="stable")[:k].tolist()] for row in scores]


@pytest.fixture(scope="module")
def index():
    return SmallIndex()


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cross")
    model, tokenizer = tiny_bert()
    model.config.num_labels = 1
    torch.manual_seed(5)
    transformers.BertForSequenceClassification(model.config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Reranker(folder)


def places(hits):
    return [int(hit.chunk.id[1:]) for hit in hits]


def test_lexical_hits_are_those_of_the_words_with_no_other_score(index):
    found = retrieve(index, QUERIES, k=3, mode="lexical")
    for hits, ranked in zip(found, index.lexical.search(QUERIES, 3), strict=True):
        assert places(hits) == [one.place for one in ranked]
        assert [(hit.score, hit.lexical, hit.dense) for hit in hits] == [(one.score, one.score, None) for one in ranked]
        assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
    assert places(found[0])[0] == 0 and all(hit.lexical > 0 for hits in found for hit in hits)


def test_dense_hits_are_those_of_the_vectors_with_no_other_score(index):
    found = retrieve(index, QUERIES, k=4, mode="dense")
    for hits, ranked in zip(found, index.dense_search(QUERIES, 4), strict=True):
        assert places(hits) == [one.place for one in ranked] and len(hits) == 4
        assert [(hit.score, hit.lexical, hit.dense) for hit in hits] == [(one.score, None, one.score) for one in ranked]


def test_hybrid_hits_are_the_fused_pools_with_the_score_of_each_field_that_found_them(index):
    found = retrieve(index, QUERIES, k=6, mode="hybrid", weight=0.3, pool=6)
    fields = zip(QUERIES, index.lexical.search(QUERIES, 6), index.dense_search(QUERIES, 6), strict=True)
    for hits, (_, words, vectors) in zip(found, fields, strict=True):
        fused = fuse(words, vectors, weight=0.3, k=6)
        assert [(p, hit.score) for p, hit in zip(places(hits), hits, strict=True)] == [tuple(one) for one in fused]
        assert [hit.lexical for hit in hits] == [dict(words).get(place) for place in places(hits)]
        assert [hit.dense for hit in hits] == [dict(vectors)[place] for place in places(hits)]
    assert any(hit.lexical is None for hits in found for hit in hits)  # a chunk without any word of its query


def test_the_ends_of_the_weight_are_the_two_fields(index):
    for weight, mode in ((0, "lexical"), (1, "dense")):
        hybrid = retrieve(index, QUERIES, k=5, mode="hybrid", weight=weight)
        alone = retrieve(index, QUERIES, k=5, mode=mode)
        assert [places(hits) for hits in hybrid] == [places(hits) for hits in alone]


def test_without_a_mode_both_fields_are_asked_where_there_are_vectors():
    index = SmallIndex()
    assert retrieve(index, QUERIES) == retrieve(index, QUERIES, mode="hybrid")
    bare = SmallIndex(has_dense=False)
    assert retrieve(bare, QUERIES) == retrieve(bare, QUERIES, mode="lexical") and bare.asked == []


def test_the_pool_decides_what_is_fused_and_is_never_smaller_than_k():
    index = SmallIndex()
    small = retrieve(index, QUERIES[:1], k=1, pool=1)
    assert index.asked == [1] and len(small[0]) == 1
    retrieve(index, QUERIES, k=4, pool=2)
    retrieve(index, QUERIES, k=4, pool=2, mode="dense")
    assert index.asked == [1, 4, 4]


def test_a_reranker_orders_the_pool_anew_and_the_modes_scores_stay(index, reranker):
    for mode in ("lexical", "dense", "hybrid"):
        pool = retrieve(index, QUERIES, k=5, pool=5, mode=mode)
        found = retrieve(index, QUERIES, k=2, pool=5, mode=mode, reranker=reranker)
        for query, before, after in zip(QUERIES, pool, found, strict=True):
            scores = reranker.scores(query, [hit.chunk.text for hit in before])
            best = np.argsort(-scores, kind="stable")[:2].tolist()
            assert places(after) == [places(before)[place] for place in best]
            assert [hit.reranked for hit in after] == [scores[place] for place in best]
            assert [hit.rank for hit in after] == [1, 2][: len(after)]
            assert [(h.score, h.lexical, h.dense) for h in after] == [
                (before[p].score, before[p].lexical, before[p].dense) for p in best
            ]
    assert retrieve(index, QUERIES, k=2)[0][0].reranked is None


def test_equal_scores_of_a_reranker_keep_the_searchs_order(index):
    class Indifferent:
        def scores(self, query, texts):
            return np.zeros(len(texts))

    plain = retrieve(index, QUERIES, k=6)
    assert [places(h) for h in retrieve(index, QUERIES, k=6, reranker=Indifferent())] == [places(h) for h in plain]


def test_a_query_that_no_word_answers_has_no_hit_by_words(index, reranker):
    assert retrieve(index, ["xyzzy"], mode="lexical", reranker=reranker) == [[]]
    assert retrieve(index, []) == []


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"queries": ["苹果", " \n\u200b"]}, "query 2 of 2 is empty"),
        ({"queries": "苹果"}, "allowed is a list of texts"),
        ({"k": 0}, "k 0: allowed are"),
        ({"pool": 0}, "pool 0: allowed are"),
        ({"weight": 2.0}, "weight 2.0: allowed are"),
        ({"mode": "sparse"}, "mode 'sparse': allowed are lexical, dense, hybrid"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(index, given, wanted):
    with pytest.raises(RetrievalError, match=wanted) as caught:
        retrieve(index, **{"queries": ["苹果"], **given})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_an_index_without_vectors_says_what_to_do(mode):
    with pytest.raises(RetrievalError, match=f"mode {mode}: the index has no vectors; build it with --encoder NAME"):
        retrieve(SmallIndex(has_dense=False), ["苹果"], mode=mode)


def test_the_default_terms_keep_the_acid_out_of_the_fruit(index):
    assert 0 not in places(retrieve(index, ["苹果"], k=6, mode="lexical")[0])


def test_a_built_index_is_searched_in_every_mode(tmp_path):
    tiny_bert(tmp_path)
    (tmp_path / "docs").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "docs" / f"{number}.txt").write_text(text, "utf-8")
    model = str(tmp_path / "bert")
    build_index([tmp_path / "docs"], tmp_path / "index", IndexSettings(encoder=model, tokenizer=model, size=40))
    build_index([tmp_path / "docs"], tmp_path / "bare", IndexSettings(encoder=None, tokenizer=model, size=40))
    with open_index(tmp_path / "index") as index, open_index(tmp_path / "bare") as bare:
        words, vectors, both = (retrieve(index, QUERIES, k=3, mode=mode) for mode in ("lexical", "dense", "hybrid"))
        assert words[0][0].chunk.text == TEXTS[0] and words[0][0].chunk.document == "0.txt"
        assert all(len(hits) == 3 for hits in (*vectors, *both))
        cosines = (
            index.encoder.embed([hit.chunk.text for hit in vectors[1]], "passage")
            @ index.encoder.embed(QUERIES[1:2], "query").T
        )
        assert [hit.dense for hit in vectors[1]] == pytest.approx(cosines[:, 0].tolist(), abs=1e-5)
        assert retrieve(bare, QUERIES, k=3) == retrieve(bare, QUERIES, k=3, mode="lexical")
        with pytest.raises(RetrievalError, match="--encoder NAME"):
            retrieve(bare, QUERIES, mode="hybrid")
