"""A judged set in, a run folder out: what is found, when to refuse, and what the passages do to the answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from finetune.errors import RetrievalError
from finetune.rag.beir import SHIPPED, BeirSet, load_beir, read_queries
from finetune.rag.causes import check_writes
from finetune.rag.chunks import Chunk
from finetune.rag.documents import Columns
from finetune.rag.evaluation import UseOfContext, UseSettings, measure_use
from finetune.rag.fusion import ChosenWeight, choose_weight, halves
from finetune.rag.hits import Hit, Mode
from finetune.rag.index import Index, IndexSettings, build_index, open_index
from finetune.rag.irmeasures import KS, differences, first_of_each, means, retrieval_measures
from finetune.rag.puzzles import gold_of, load_puzzles, unit_of
from finetune.rag.retrieve import retrieve
from finetune.rag.threshold import Trial, tried, worth
from probe import LoadedModel, bootstrap

Searches = Mapping[Mode, Mapping[str, Sequence[Hit]]]
Progress = Callable[[str, int, int], None]
CORPUS, ELSEWHERE = "corpus.jsonl", "elsewhere.jsonl"
MOST_REFUSED = 0.1  # of the answerable questions, where a threshold is chosen
DEPTH = 50  # hits of a ranking that is measured
_LEAST = 2  # questions of a kind, of which one half chooses a threshold and the other tries it


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """How a set is searched, and what is measured of the model's answers."""

    encoder: str | None = "builtin:e5-small"
    tokenizer: str = "builtin:gemma3-270m"
    terms: Path | None = None  # words that stay whole in the index's words
    size: int = 512  # tokens of a chunk: the passages of a set are to stay whole
    k: int = 3  # retrieved passages that are put before a question
    limit: int | None = None  # questions put to the model; None: all
    use: UseSettings = field(default_factory=UseSettings)
    seed: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """What was measured on one set.

    retrieval: mode, half (chosen: the weight was chosen there; other; all), measure, estimate, low, high, queries.
    against: the better single mode (better), hybrid, and their difference (arm), on the other half. rankings: the ten
    best of each query and mode.
    weight is None where nothing was chosen, and the hybrid then weighs both alike. thresholds: score, threshold,
    measure, estimate, low, high, questions. use is None without a model. questions: put to the model, without one
    searched for. judged: questions that a passage is judged to answer; unanswerable: that none is; elsewhere: questions
    about something else. name: of the set's folder, empty for the shipped set.
    """

    retrieval: pd.DataFrame
    against: pd.DataFrame
    rankings: pd.DataFrame
    weight: ChosenWeight | None
    trials: Mapping[str, Trial]
    thresholds: pd.DataFrame
    use: UseOfContext | None
    questions: int
    passages: int
    judged: int
    unanswerable: int
    elsewhere: int
    name: str
    made_from: Mapping[str, Any]  # encoder and words of the index that was searched

    def kept_trial(self) -> Trial:
        """Give the trial to answer other questions by: on cosines where there are any; BM25 depends on the corpus."""
        return self.trials["dense" if "dense" in self.trials else "lexical"]

    def results(self) -> pd.DataFrame:
        """Give the rows of retrieval that are results: of the half where no weight was chosen, of all without one."""
        rows = self.retrieval[self.retrieval["half"] == ("all" if self.weight is None else "other")]
        return rows.drop(columns="half")


def study_passages(
    loaded: LoadedModel | None,
    folder: Path = SHIPPED,
    *,
    settings: StudySettings | None = None,
    progress: Progress | None = None,
    device: str = "auto",
) -> Study:
    """Search a set in BEIR's layout, and put its questions to a model with and without passages; deterministic.

    RetrievalError, before anything is indexed, for a set that cannot be used and a model that writes no answers.
    """
    settings = settings or StudySettings()
    given, elsewhere, puzzles = load_beir(folder), _elsewhere(folder), []
    if not (judged := [query for query in given.queries if gold_of(given, query) is not None]):
        raise RetrievalError(f"{folder}: no passage is judged to answer a question; allowed are one or more such")
    if loaded is not None:
        check_writes(loaded)
        puzzles = load_puzzles(given, loaded.tokenizer, folder=folder, seed=settings.seed)[: settings.limit]
    with TemporaryDirectory(prefix="cijing-index-") as made:
        _indexed(folder, Path(made) / "index", settings, progress=progress, device=device)
        with open_index(Path(made) / "index", device=device) as index:
            searched, weight = _searched(index, given, judged)
            trials = _trials(index, given, elsewhere, searched, seed=settings.seed)
            made_from = index.manifest.made_from
    retrieval, against = _retrieval(given, searched, judged, seed=settings.seed)
    use = None
    if loaded is not None:
        hits = searched["hybrid" if "hybrid" in searched else "lexical"]
        found = {one.id: [_whole(hit.chunk) for hit in hits[one.id][: settings.k]] for one in puzzles}
        use = measure_use(loaded, puzzles, retrieved=found, settings=settings.use, progress=progress)
    return Study(
        retrieval=retrieval, against=against, rankings=_ranking_table(searched), weight=weight, trials=trials,
        thresholds=_threshold_table(trials), use=use, questions=len(given.queries if loaded is None else puzzles),
        passages=len(given.corpus), judged=len(judged), unanswerable=len(given.queries) - len(judged),
        elsewhere=len(elsewhere), name="" if folder == SHIPPED else folder.resolve().name, made_from=made_from,
    )  # fmt: skip


def _indexed(folder: Path, place: Path, settings: StudySettings, *, progress: Progress | None, device: str) -> None:
    """Index the set's corpus as a user would, each passage a document."""
    made = IndexSettings(
        encoder=settings.encoder, tokenizer=settings.tokenizer, size=settings.size, duplicates="keep",
        terms=settings.terms,
    )  # fmt: skip
    corpus = folder / CORPUS
    if not corpus.is_file():
        raise RetrievalError(f"{folder}: no {CORPUS}; allowed is a folder with {CORPUS}, queries.jsonl and qrels.tsv")
    report = build_index([corpus], place, made, columns=Columns(id="_id"), progress=progress, device=device)
    if report.left:
        raise RetrievalError(f"{corpus}: {report.left[0].path} {report.left[0].reason}")


def _elsewhere(folder: Path) -> list[str]:
    """Questions about something else, of the set's elsewhere.jsonl, where it has one."""
    file = folder / ELSEWHERE
    if not file.is_file():
        return []
    return [text for _, text in read_queries(file).items()]


def _searched(index: Index, given: BeirSet, judged: Sequence[str]) -> tuple[Searches, ChosenWeight | None]:
    """The hits of every query in each mode; the hybrid's weight is chosen on one half, where both halves have one."""
    found: dict[Mode, dict[str, list[Hit]]] = {"lexical": _search(index, given, "lexical")}
    if not index.has_dense:
        return found, None
    chosen, other = halves(judged)
    weight = _chosen(index, given, chosen) if chosen and other else None
    hybrid = _search(index, given, "hybrid", weight=0.5 if weight is None else weight.weight)
    return {**found, "dense": _search(index, given, "dense"), "hybrid": hybrid}, weight


def _search(index: Index, given: BeirSet, mode: Mode, *, weight: float = 0.5) -> dict[str, list[Hit]]:
    found = retrieve(index, list(given.queries.values()), k=DEPTH, mode=mode, weight=weight)
    return dict(zip(given.queries, found, strict=True))


def _whole(chunk: Chunk) -> Chunk:
    """A chunk under the name that the set gives its passage."""
    return replace(chunk, document=_id_of(chunk))


def _id_of(chunk: Chunk) -> str:
    """The set's id of a chunk's document, which the reader names FILE#id."""
    return chunk.document.partition("#")[2] or chunk.document


def _documents(hits: Sequence[Hit]) -> list[str]:
    return first_of_each(_id_of(hit.chunk) for hit in hits)


def _retrieval(
    given: BeirSet, searched: Searches, judged: Sequence[str], *, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measures by mode and half, and the hybrid's against the better single mode's."""
    chosen, other = halves(judged)
    tables: list[pd.DataFrame] = []
    measured: dict[tuple[str, str], pd.DataFrame] = {}
    for mode, found in searched.items():
        for part, queries in (("all", judged), ("chosen", chosen), ("other", other)):
            if not queries:
                continue
            ranked = {query: _documents(found[query]) for query in queries}
            frame = retrieval_measures(ranked, {query: given.qrels[query] for query in queries}, KS)
            measured[mode, part] = frame
            tables.append(means(frame, units=_units(given, queries), seed=seed).assign(mode=mode, half=part))
    return pd.concat(tables, ignore_index=True), _against(measured, given, other, seed=seed)


def _chosen(index: Index, given: BeirSet, queries: Sequence[str]) -> ChosenWeight:
    texts = [given.queries[query] for query in queries]
    places: dict[str, list[int]] = {}
    for place, chunk in enumerate(index.chunks):
        places.setdefault(_id_of(chunk), []).append(place)
    relevant = {
        query: [place for name, grade in given.qrels[query].items() if grade > 0 for place in places.get(name, ())]
        for query in queries
    }
    lexical = dict(zip(queries, index.lexical.search(texts, DEPTH), strict=True))
    dense = dict(zip(queries, index.dense_search(texts, DEPTH), strict=True))
    return choose_weight(lexical, dense, relevant)


def _against(
    measured: Mapping[tuple[str, str], pd.DataFrame], given: BeirSet, other: Sequence[str], *, seed: int
) -> pd.DataFrame:
    """Hybrid minus the better of both on the half where the weight was not chosen."""
    if ("hybrid", "other") not in measured:
        return pd.DataFrame(columns=["measure", "arm", "estimate", "low", "high", "queries", "units", "better"])
    better = max(("lexical", "dense"), key=lambda mode: measured[mode, "other"]["recall@1"].mean())
    found = differences(measured[better, "other"], measured["hybrid", "other"], units=_units(given, other), seed=seed)
    systems = {"one": better, "other": "hybrid", "difference": "difference"}
    return found.assign(arm=found["arm"].map(systems), better=better)


def _units(given: BeirSet, queries: Sequence[str]) -> dict[str, str]:
    """What is drawn anew: queries on the same document are not independent."""
    return {query: unit_of(given, query) for query in queries}


def _trials(
    index: Index, given: BeirSet, elsewhere: Sequence[str], searched: Searches, *, seed: int
) -> dict[str, Trial]:
    """A threshold for each single field.

    Chosen on questions about something else where the set has any, whose searches tell them apart; what it then does to
    unanswerable questions on the set's own subjects is told beside it, for nothing is chosen on those.
    """
    right = [query for query in given.queries if gold_of(given, query) is not None]
    without = [query for query in given.queries if gold_of(given, query) is None]
    apart = len(elsewhere) >= _LEAST
    if min(len(right), len(elsewhere if apart else without)) < _LEAST:
        return {}
    found: dict[str, Trial] = {}
    for mode in searched:
        if mode == "hybrid":
            continue  # a sum of ranks says little of how well the best one fits
        answerable = [worth(searched[mode][query], field=mode) for query in right]
        on_subject = [worth(searched[mode][query], field=mode) for query in without]
        far = [worth(hits, field=mode) for hits in retrieve(index, elsewhere, k=1, mode=mode)] if apart else on_subject
        found[mode] = tried(answerable, far, field=mode, most_refused=MOST_REFUSED, seed=seed)
        if apart and len(on_subject) >= _LEAST:
            found[mode] = _with_on_subject(found[mode], answerable, on_subject, seed=seed)
    return found


def _with_on_subject(trial: Trial, answerable: Sequence[float], on_subject: Sequence[float], *, seed: int) -> Trial:
    """The trial with two rows more: false answers and AUROC of unanswerable questions on the set's own subjects."""
    answered = np.array([one >= trial.threshold.score for one in on_subject], dtype=np.float64)
    share = bootstrap(answered, [str(place) for place in range(len(answered))], seed=seed)
    told = tried(answerable, on_subject, field=trial.threshold.field, seed=seed).table
    apart = told[told["measure"] == "AUROC"].assign(measure="AUROC, on the subject")
    row = ("false answers, on the subject", float(share.mean), float(share.low), float(share.high), len(answered))
    rows = pd.DataFrame([row], columns=list(trial.table.columns))
    return replace(trial, table=pd.concat([trial.table, rows, apart], ignore_index=True))


def _threshold_table(trials: Mapping[str, Trial]) -> pd.DataFrame:
    rows = [trial.table.assign(score=name, threshold=trial.threshold.score) for name, trial in trials.items()]
    columns = ["score", "threshold", "measure", "estimate", "low", "high", "questions"]
    return pd.concat(rows, ignore_index=True)[columns] if rows else pd.DataFrame(columns=columns)


def _ranking_table(searched: Searches) -> pd.DataFrame:
    """The ten best of each query and mode."""
    rows = [
        (mode, query, hit.rank, _id_of(hit.chunk), hit.score)
        for mode, found in searched.items()
        for query, hits in found.items()
        for hit in hits[:10]
    ]
    return pd.DataFrame(rows, columns=["mode", "query", "rank", "passage", "score"])
