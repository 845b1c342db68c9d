"""What a run is evaluated on: its held-out test part on tokens, general texts, questions, each with its hash."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from finetune.batches import Collator, collator_of, encoded
from finetune.config import RunConfig
from finetune.corpusfiles import kind_of
from finetune.dataconfig import DataConfig
from finetune.domains import DOMAINS, Question, domain_file, load_questions
from finetune.encode import TARGET_RULE, Encoded, Encoding, encode_pieces, encoding_of
from finetune.errors import ConfigError, DataError
from finetune.pairs import PairBook
from finetune.prepare import Progress, links_targets, pair_book, told, with_shipped
from finetune.reach import Depths, depths_of
from finetune.reading import OWN_RULE
from finetune.records import Corpus, load_records, read_source, trained_among
from finetune.runfolder import FinishedRun, check_inputs
from probe import LoadedModel

GENERAL = Path("cmrc-retrieval", "corpus.jsonl")  # below CIJING_DATA
LANGUAGE_MODELS = ("causal-lm", "masked-lm")


@dataclass(frozen=True, kw_only=True)
class DataRead:
    """One source that was read."""

    use: str  # train, dev, test, pairs, questions, general
    source: str  # as it was named
    sha256: str | None  # None for what is no file: a case set of the package, a hub id


@dataclass(frozen=True, kw_only=True, eq=False)
class Texts:
    """The test part on tokens, with all pairs, trained and held out, that its texts hold; whatever model reads it."""

    corpus: Corpus
    documents: tuple[Encoded, ...]  # of the test part; empty where there is none
    book: PairBook | None
    depths: Depths
    encoding: Encoding
    collator: Collator
    tokenizer: Any

    @cached_property
    def ids(self) -> list[str]:
        """The test records' names, by their index."""
        return [] if self.corpus.test is None else list(self.corpus.test["id"])

    @cached_property
    def groups(self) -> list[str]:
        """The test records' groups, by their index."""
        return [] if self.corpus.test is None else list(self.corpus.test["group"])

    @cached_property
    def parts(self) -> dict[int, str]:
        """What the pairs of each rule are."""
        rules = enumerate(self.book.pairs) if self.book is not None else ()
        named = {place: "train pairs" if rule.part == "train" else "held-out pairs" for place, rule in rules}
        return {**named, OWN_RULE: "pairs of the data", TARGET_RULE: "pairs of targets"}

    def unit_of(self, rule: int, index: int) -> str:
        """A rule's words; pairs of the data have no rule, their record's group stands for it."""
        if self.book is not None and rule >= 0:
            return str(self.book.pairs[rule])
        return f"group {self.groups[index]}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Material(Texts):
    """What a finished run is measured on."""

    run: FinishedRun
    read: tuple[DataRead, ...]
    notes: tuple[str, ...]  # what is to be said of the files


def material_of(run: FinishedRun, *, test: Sequence[str] | None, seed: int, tell: Progress) -> Material:
    """Read the run's data again and put the test part on tokens.

    test: sources to take instead of those of the configuration. Errors as load_records and encode give them: no
    group and no text of the test stands in what was trained on or chosen by. DataError where the classes are others
    than the run's, or a file that was trained on or chosen by is.
    """
    notes = check_inputs(run, test=test is None)
    data = data_with_test(run.config.data, test)
    found = texts_of(run.config, run.learner.loaded, data=data, seed=seed, tell=tell)
    if found.corpus.labels != run.labels:
        raise DataError(
            f"the data has the classes {', '.join(found.corpus.labels)}; the run has {', '.join(run.labels)}"
        )
    return Material(
        **{field.name: getattr(found, field.name) for field in fields(found)},
        run=run, read=_read_for(run, data), notes=notes,
    )  # fmt: skip


def texts_of(config: RunConfig, loaded: LoadedModel, *, data: DataConfig, seed: int, tell: Progress) -> Texts:
    """Read a configuration's data and put the test part on a model's tokens; `seed` draws what is masked.

    Errors as load_records and encode give them.
    """
    tell("texts", 0, 1)
    corpus = load_records(with_shipped(data), config.task, seed=config.seed, trained=True)
    tell("texts", 1, 1)
    book = pair_book(config)
    depths = depths_of(loaded.backbone.config, causal=loaded.kind == "decoder")
    encoding = encoding_of(
        data, config.task, reach=depths.reach(range(depths.layers), cut_at=data.max_length), labels=corpus.labels,
        book=book, rules=tuple(range(len(book.pairs))) if book is not None else (), link_targets=links_targets(config),
    )  # fmt: skip
    documents: Iterable[Encoded] = ()
    if corpus.test is not None:
        documents = told(encoded(corpus.test, loaded.tokenizer, encoding), corpus.test, "test", tell)
    return Texts(
        corpus=corpus, documents=tuple(documents), book=book, depths=depths, encoding=encoding,
        collator=collator_of(loaded.tokenizer, config.task, seed=seed), tokenizer=loaded.tokenizer,
    )  # fmt: skip


def data_with_test(data: DataConfig, test: Sequence[str] | None) -> DataConfig:
    """The data with the test part asked for, or with that of a shipped domain whose train part was learned."""
    if test is None:
        if data.test or data.test_split is not None:
            return data
        test = [f"{domain}/test" for domain in DOMAINS if f"{domain}/train" in data.train]
    try:
        return DataConfig.model_validate({**data.model_dump(), "test": tuple(test), "test_split": None})
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"test {', '.join(test)}: {problem}") from error


def general_texts(
    texts: Texts, source: str | Path | None, *, limit: int, seed: int
) -> tuple[list[Encoded], list[str], tuple[DataRead, ...]] | str:
    """General texts on tokens, their ids and what was read; or, in words, why there are none.

    Without a source the passages of CIJING_DATA/cmrc-retrieval are taken. Of more than `limit` texts so many are drawn.
    DataError where a source that was named holds a text that the run was trained on or chosen by.
    """
    if texts.encoding.task not in LANGUAGE_MODELS:
        return f"task {texts.encoding.task} predicts no tokens"
    named = source is not None
    if source is None:
        beside = os.environ.get("CIJING_DATA")
        if not beside or not (Path(beside) / GENERAL).is_file():
            named_how = "evaluate: --general FILE; compare: general"
            return f"no text was named ({named_how}), and there is no {GENERAL} in CIJING_DATA"
        source = Path(beside) / GENERAL
    config = DataConfig(train=(str(source),), id="_id" if Path(source).name == GENERAL.name else "id")
    records = list(read_source(str(source), config, "masked-lm"))  # a task that takes texts and nothing else
    if seen := trained_among(records, texts.corpus):
        if named:
            raise DataError(seen)
        return seen
    chosen = np.arange(len(records))
    if len(records) > limit:
        chosen = np.sort(np.random.default_rng(seed).choice(len(records), size=limit, replace=False))
    documents = [
        piece
        for index, place in enumerate(chosen)
        for piece in encode_pieces(records[place], texts.tokenizer, texts.encoding, index=index)
    ]
    return documents, [records[place].id for place in chosen], (_data_read("general", str(source), "auto"),)


def questions_for(material: Material, source: str | None) -> tuple[tuple[Question, ...], tuple[DataRead, ...]] | str:
    """Questions of a file or of the shipped domain that was learned; or, in words, why there are none."""
    config = material.run.config
    if config.task != "causal-lm":
        return "questions are put to causal language models only"
    if source is None:
        pairs = config.pairs.file if config.pairs is not None else ""
        learned = (domain for domain in DOMAINS if domain == pairs or f"{domain}/train" in config.data.train)
        source = next(learned, None)
    if source is None:
        return "no file was named (--questions FILE), and the run learned no shipped domain"
    read = _hash(domain_file(source, "questions.jsonl").read_bytes()) if source in DOMAINS else _file_hash(Path(source))
    return load_questions(source), (DataRead(use="questions", source=source, sha256=read),)


def part_of_fact(question: Question, *, trained: set[str], dev: set[str], test: set[str]) -> str:
    """Whether the run was trained on the fact that a question asks for, or chose its checkpoint by it."""
    for part, groups in (("trained facts", trained), ("dev facts", dev), ("held-out facts", test)):
        if question.group in groups:
            return part
    return "other facts"


def groups_of(part: Any) -> set[str]:
    """All groups of a part of a corpus, also of a streamed one."""
    return set() if part is None else {str(row["group"]) for row in part}


def _read_for(run: FinishedRun, data: DataConfig) -> tuple[DataRead, ...]:
    found = [
        _data_read(use, name, data.kind, path=path)
        for use in ("train", "dev", "test")
        for name, path in zip(getattr(data, use), getattr(with_shipped(data), use), strict=True)
    ]
    pairs = run.config.pairs
    if pairs is not None and pairs.file is not None:
        shipped = pairs.file in DOMAINS
        content = domain_file(pairs.file, "pairs.yaml").read_bytes() if shipped else Path(pairs.file).read_bytes()
        found.append(DataRead(use="pairs", source=pairs.file, sha256=_hash(content)))
    return tuple(found)


def _data_read(use: str, name: str, kind: Any, *, path: str | None = None) -> DataRead:
    """A source with the hash of its file, and of the answers that lie beside it."""
    where = Path(path or name)
    what = kind_of(str(where), kind)
    if not where.is_file():
        return DataRead(use=use, source=name, sha256=None)
    beside = [where.with_suffix(".gold")] if what == "mcl-wic" else []
    return DataRead(use=use, source=name, sha256=_file_hash(where, *beside))


def _file_hash(*paths: Path) -> str | None:
    whole = hashlib.sha256()
    for path in paths:
        if not path.is_file():
            return None
        whole.update(path.read_bytes())
    return whole.hexdigest()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
