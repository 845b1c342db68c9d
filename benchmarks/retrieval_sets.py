"""What the retrieval benchmark searches: passages, questions and judgments, and the terms that stay whole.

cmrc      cmrc-retrieval of CIJING_DATA
own       the set that finetune ships, with its terms
biochem   the paragraphs of wiki-biochem put among the passages of cmrc, with questions of our own on them

Public text is read where it lies and never written anywhere.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from finetune.errors import RetrievalError
from finetune.rag.beir import SHIPPED, load_beir

# Our questions on wiki-biochem, with the lines of the file whose paragraphs answer them.
BIOCHEM: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("用发烟硫酸处理苹果酸会得到什么？", (3,)),
    ("谁用苹果酸发现了构型翻转？", (2,)),
    ("苹果酸脱氢酶在三羧酸循环里把什么变成草酰乙酸？", (4, 21)),
    ("苹果酸酶和苹果酸脱氢酶的产物有什么不同？", (4,)),
    ("苹果汁的酸味从哪里来？", (1,)),
    ("糖酵解得到的电子怎样靠苹果酸进到线粒体里？", (5, 8)),
    ("草酰乙酸为什么要先变成天冬氨酸才能离开线粒体？", (8,)),
    ("算上苹果酸的穿梭，一个葡萄糖最后净得多少个ATP？", (10,)),
    ("克雷布斯因为哪个循环得了诺贝尔奖？", (11,)),
    ("柠檬酸循环里哪一步直接做出GTP？", (18,)),
    ("乌头酸酶把柠檬酸变成什么？", (15,)),
    ("氟乙酸怎么会让柠檬酸循环停下来？", (23,)),
    ("丙二酸会让哪个酶失活？", (23,)),
    ("延胡索酸加上一分子水会变成什么？", (20, 25)),
    ("一个乙酰辅酶A走完一圈，能换来几个NADH？", (13,)),
    ("全世界第一个苹果期货在哪里推出？", (31,)),
    ("青森的苹果大多卖到哪里？", (32,)),
    ("苹果树栽下去几年才结果？", (28,)),
    ("有哪些公司拿苹果当名字？", (30,)),
    ("从前中国土生的苹果为什么卖得贵？", (29,)),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Searched:
    """One set: passages and questions by id."""

    name: str
    passages: Mapping[str, str]
    queries: Mapping[str, str]  # those with a judgment
    qrels: Mapping[str, Mapping[str, int]]
    terms: tuple[str, ...] = ()
    weight_of: str | None = None  # the set whose weight is taken where the questions are too few to choose one

    @property
    def units(self) -> dict[str, str]:
        """The first right passage of each question: what is drawn anew, as questions on one passage are alike."""
        return {query: next(one for one, grade in self.qrels[query].items() if grade > 0) for query in self.queries}


def sets(data: Path, *, most: int | None) -> Iterator[Searched]:
    """Give the sets that are there, of each the questions on its first `most` passages among these, or all."""
    cmrc = data / "cmrc-retrieval"
    terms = tuple((SHIPPED / "terms.txt").read_text("utf-8").split())
    if cmrc.is_dir():
        yield _few(_beir("cmrc", cmrc, terms=()), most)
    yield _few(_beir("own", SHIPPED, terms=terms), most)
    if cmrc.is_dir() and (data / "wiki-biochem").is_dir():
        yield _biochem(data / "wiki-biochem" / "wiki_biochem.jsonl", _few(_beir("cmrc", cmrc, terms=()), most), terms)


def _beir(name: str, folder: Path, *, terms: tuple[str, ...]) -> Searched:
    found = load_beir(folder)
    passages = {one: passage.text for one, passage in found.corpus.items()}
    judged = {query: text for query, text in found.queries.items() if query in found.qrels}
    return Searched(name=name, passages=passages, queries=judged, qrels=found.qrels, terms=terms)


def _few(given: Searched, most: int | None) -> Searched:
    """The first passages, with the questions that they alone answer."""
    if most is None:
        return given
    passages = dict(list(given.passages.items())[:most])
    qrels = {query: grades for query, grades in given.qrels.items() if grades.keys() <= passages.keys()}
    queries = {query: text for query, text in given.queries.items() if query in qrels}
    return Searched(name=given.name, passages=passages, queries=queries, qrels=qrels, terms=given.terms)


def _biochem(file: Path, around: Searched, terms: tuple[str, ...]) -> Searched:
    texts = [json.loads(line)["text"] for line in file.read_text("utf-8").splitlines()]
    wanted = max(line for _, lines in BIOCHEM for line in lines)
    if len(texts) < wanted:
        raise RetrievalError(
            f"{file} has {len(texts)} lines; allowed are the {wanted} that the questions were written on"
        )
    own = {f"biochem-{line}": text for line, text in enumerate(texts, start=1)}
    return Searched(
        name="biochem", passages={**around.passages, **own},
        queries={f"b{number}": question for number, (question, _) in enumerate(BIOCHEM, start=1)},
        qrels={f"b{n}": {f"biochem-{line}": 1 for line in lines} for n, (_, lines) in enumerate(BIOCHEM, start=1)},
        terms=terms, weight_of=around.name,
    )  # fmt: skip
