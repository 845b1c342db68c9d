"""What a run learned, on texts that it never saw: the tuned model, its base, and their difference with intervals.

Nothing is chosen here, and nothing that is measured was chosen on the test part: heads were chosen on training texts,
the checkpoint on the dev part, whose facts are told apart from those held out. Intervals are over groups (facts,
texts, rules), drawn anew for both models at once.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

from finetune.domains import Question
from finetune.edgemeasures import cues_of, pair_masses, placed_pairs, right_class_logs
from finetune.encode import TARGET_RULE, Encoded
from finetune.errors import DataError
from finetune.evaluation import Evaluation
from finetune.heads import Heads, every_head
from finetune.intervals import (
    Floats,
    Paired,
    Statistic,
    accuracy,
    bits_per_character,
    compared,
    macro_f1,
    mean,
    perplexity,
)
from finetune.material import (
    LANGUAGE_MODELS,
    DataRead,
    Material,
    general_texts,
    groups_of,
    material_of,
    part_of_fact,
    questions_for,
)
from finetune.prepare import Progress
from finetune.questions import Answered, answer
from finetune.reading import OWN_RULE
from finetune.runfolder import FinishedRun
from finetune.scoring import Step, TokenScores, class_scores, token_scores

Result = TypeVar("Result")
NO_TEST = "the configuration names no test part (data.test), and none was given (--test FILE)"


@dataclass(kw_only=True)
class _Found:
    """What is gathered on the way."""

    run: FinishedRun
    seed: int
    tell: Progress
    results: list[pd.DataFrame] = field(default_factory=list)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    read: list[DataRead] = field(default_factory=list)

    def both(self, stage: str, measured: Callable[[Step], Result]) -> tuple[Result, Result]:
        """The same measure of the base and of the tuned model."""
        with self.run.base():
            base = measured(partial(self.tell, f"{stage}, base"))
        return base, measured(partial(self.tell, f"{stage}, tuned"))

    def compare(self, given: Paired, measures: dict[str, Statistic]) -> None:
        """Add results with intervals."""
        self.results.append(compared(given, measures, seed=self.seed))


def evaluate(
    run: FinishedRun,
    *,
    general: str | Path | None = None,
    test: Sequence[str] | None = None,
    questions: str | None = None,
    general_limit: int = 32,
    seed: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a run on its test part, on general text and on questions; what cannot be measured is said to be missing.

    test: sources in place of the configuration's. DataError where nothing at all can be measured, and as the
    sources' reading gives it.
    """
    tell = progress or (lambda stage, done, total: None)
    material = material_of(run, test=test, seed=seed, tell=tell)
    found = _Found(run=run, seed=seed, tell=tell, read=list(material.read))
    found.notes += (*run.learner.notes, *material.notes)
    if run.config.task in LANGUAGE_MODELS:
        _language_model(material, found)
    else:
        _classes(material, found)
    _general(material, found, general, limit=general_limit)
    _pairs(material, found)
    _cut_cues(material, found)
    _questions(material, found, questions)
    if not found.results:
        raise DataError(
            f"{run.folder}: nothing can be measured: " + "; ".join(f"{n}: {w}" for n, w in found.missing.items())
        )
    return Evaluation(
        results=pd.concat(found.results, ignore_index=True), tables=found.tables, missing=found.missing,
        notes=tuple(found.notes), read=tuple(found.read), seed=seed,
    )  # fmt: skip


# ---- the task --------------------------------------------------------------------------------------------------


def _tell_head(found: _Found) -> None:
    if found.run.trains_head:
        states = "its own states" if found.run.config.method == "full" else "states without the adapter"
        found.notes.append(f"the base answers through the head that the run trained, on {states}")


def _language_model(material: Material, found: _Found) -> None:
    """Perplexity and bits a character of the test texts."""
    documents = [document for document in material.documents if document.learned]
    if not documents:
        found.missing["perplexity, test"] = (
            NO_TEST if material.corpus.test is None else "no test text has a token to predict"
        )
        return
    _tell_head(found)
    base, tuned = _token_scores(material, found, documents, "test")
    units = [material.groups[index] for index in base.index]
    names = [material.ids[index] for index in base.index]
    found.tables["texts"] = _texts_frame(names, units, base, tuned)
    _compare_tokens(material, found, base, tuned, part="test", units=units, unit="group")


def _general(material: Material, found: _Found, source: str | Path | None, *, limit: int) -> None:
    """Perplexity on text of no domain: what was forgotten."""
    given = general_texts(material, source, limit=limit, seed=found.seed)
    if isinstance(given, str):
        found.missing["perplexity, general text"] = given
        return
    documents, ids, read = given
    found.read += read
    base, tuned = _token_scores(material, found, [one for one in documents if one.learned], "general text")
    names = [ids[index] for index in base.index]
    found.tables["general"] = _texts_frame(names, names, base, tuned)
    _compare_tokens(material, found, base, tuned, part="general text", units=names, unit="text")


def _token_scores(
    material: Material, found: _Found, documents: Sequence[Encoded], stage: str
) -> tuple[TokenScores, TokenScores]:
    def measured(step: Step) -> TokenScores:
        run = found.run
        return token_scores(run.model, run.tokenizer, documents, collator=material.collator, step=step)

    return found.both(stage, measured)


def _compare_tokens(
    material: Material,
    found: _Found,
    base: TokenScores,
    tuned: TokenScores,
    *,
    part: str,
    units: Sequence[str],
    unit: str,
) -> None:
    given = Paired(base=base.sums, tuned=tuned.sums, units=units, unit=unit, part=part)
    if material.run.config.task == "causal-lm":
        found.compare(given, {"perplexity": perplexity, "bits_per_character": bits_per_character})
    else:
        found.compare(given, {"perplexity_of_masked": perplexity})
    if base.ends.any():
        ends = Paired(base=base.end_sums, tuned=tuned.end_sums, units=units, unit=unit, part=part)
        found.compare(ends, {"end_token_nats": mean})


def _texts_frame(ids: Sequence[str], groups: Sequence[str], base: TokenScores, tuned: TokenScores) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "id": ids, "group": groups, "tokens": base.tokens.astype(int), "characters": base.characters.astype(int),
            "nats_base": base.nats, "nats_tuned": tuned.nats, "end_nats_base": base.end_nats,
            "end_nats_tuned": tuned.end_nats,
        }
    )  # fmt: skip


def _classes(material: Material, found: _Found) -> None:
    """Accuracy and macro F1 of the test records, beside the most frequent class of the training part."""
    documents, labels = material.documents, found.run.labels
    if not documents:
        found.missing["accuracy, test"] = NO_TEST
        return

    def measured(step: Step) -> Floats:
        return class_scores(found.run.model, documents, collator=material.collator, step=step)

    base, tuned = found.both("test", measured)
    right = np.array([document.label for document in documents])
    units = [material.groups[document.index] for document in documents]
    cells = [_cells(right, logs.argmax(1), len(labels)) for logs in (base, tuned)]
    given = Paired(base=cells[0], tuned=cells[1], units=units, unit="group", part="test")
    found.compare(given, {"accuracy": accuracy, "macro_f1": macro_f1})
    frequent = _most_frequent(material)
    constant = _cells(right, np.full(len(right), frequent), len(labels))
    over = Paired(
        base=constant, tuned=cells[1], units=units, unit="group", part=f"test, base = always {labels[frequent]}"
    )
    found.compare(over, {"accuracy": accuracy, "macro_f1": macro_f1})
    _tell_head(found)
    rows = np.arange(len(right))
    found.tables["predictions"] = pd.DataFrame(
        {
            "id": [document.id for document in documents], "group": units, "label": [labels[one] for one in right],
            "base": [labels[one] for one in base.argmax(1)], "tuned": [labels[one] for one in tuned.argmax(1)],
            "log_p_base": base[rows, right], "log_p_tuned": tuned[rows, right],
        }
    )  # fmt: skip


def _cells(right: "np.ndarray[tuple[int], np.dtype[np.int64]]", answers: Floats, classes: int) -> Floats:
    """[record, true × predicted], a one where the record stands."""
    found: Floats = np.zeros((len(right), classes * classes))
    found[np.arange(len(right)), right * classes + answers] = 1.0
    return found


def _most_frequent(material: Material) -> int:
    labels = Counter(str(row["label"]) for row in material.corpus.train)
    return max(range(len(material.run.labels)), key=lambda place: labels[material.run.labels[place]])


# ---- attention on pairs ----------------------------------------------------------------------------------------


def _pairs(material: Material, found: _Found) -> None:
    """Attention on the pairs of the test texts: those trained on, those held out."""
    placed = placed_pairs(material.documents)
    if not placed:
        there = "no test text holds a pair that the model can meet"
        found.missing["attention on pairs"] = there if material.documents else NO_TEST
        return
    heads: dict[str, Heads] = {"all heads": every_head(range(material.depths.layers), material.depths.heads)}
    if found.run.heads:
        heads = {"supervised heads": found.run.heads, **heads}

    def measured(step: Step) -> dict[str, Floats]:
        return pair_masses(
            found.run.model,
            material.documents,
            collator=material.collator,
            depths=material.depths,
            heads=heads,
            step=step,
        )

    base, tuned = found.both("attention on pairs", measured)
    parts = [material.parts[one.pair.rule] for one in placed]
    units = [material.unit_of(one.pair.rule, one.index) for one in placed]
    occurrences = pd.concat(
        [
            pd.DataFrame({"part": parts, "pair": units, "heads": name, "base": base[name], "tuned": tuned[name]})
            for name in heads
        ]
    ).dropna()
    rules = occurrences.groupby(["part", "heads", "pair"], sort=False)
    table = rules[["base", "tuned"]].mean().assign(places=rules.size()).reset_index()
    found.tables["pairs"] = table.assign(difference=table.tuned - table.base)
    for (part, name), group in table.groupby(["part", "heads"], sort=False):
        unit = "group" if part in (material.parts[OWN_RULE], material.parts[TARGET_RULE]) else "rule"
        arms = [np.stack([group[arm].to_numpy(), np.ones(len(group))], axis=1) for arm in ("base", "tuned")]
        pairs = Paired(base=arms[0], tuned=arms[1], units=list(group.pair), unit=unit, part=f"{part}, {name}")
        found.compare(pairs, {"attention": mean})
    _tell_absent(material, found, set(units))


def _tell_absent(material: Material, found: _Found, seen: set[str]) -> None:
    rules = material.book.pairs if material.book is not None else ()
    for part in ("train pairs", "held-out pairs"):
        names = [str(rule) for place, rule in enumerate(rules) if material.parts[place] == part]
        absent = [name for name in names if name not in seen]
        if names and len(absent) == len(names):
            found.missing[f"attention on pairs, {part}"] = "no test text holds one that the model can meet"
        elif absent:
            found.notes.append(f"{len(absent)} of {len(names)} {part} stand in no test text, the first {absent[0]}")


# ---- what an answer rests on -----------------------------------------------------------------------------------


def _cut_cues(material: Material, found: _Found) -> None:
    """Tasks with a marked word: the right class's log-probability when the target cannot see its cue, minus with it."""
    if found.run.config.task != "sense":
        if found.run.config.task != "causal-lm":
            found.missing["cut edge"] = f"task {found.run.config.task} has no target whose edge to a cue could be cut"
        return
    causal = material.depths.causal
    cues, unread = cues_of(material.documents, material.parts, causal=causal)
    if unread:
        found.notes.append(f"{unread} cues stand behind their target, which a causal model cannot read: not cut")
    if not cues:
        found.missing["cut edge"] = "no test text holds a pair with the target" if material.documents else NO_TEST
        return

    def measured(step: Step) -> tuple[Floats, Floats]:
        whole, cut = (
            right_class_logs(found.run.model, cues, collator=material.collator, cut=cut, step=step)
            for cut in (False, True)
        )
        return whole, cut

    arms = dict(zip(("base", "tuned"), found.both("cut edge", measured), strict=True))
    columns = {
        f"{what}_{arm}": logs for arm, pair in arms.items() for what, logs in zip(("whole", "cut"), pair, strict=True)
    }
    table = pd.DataFrame(
        {
            "id": [cue.document.id for cue in cues], "group": [material.groups[cue.document.index] for cue in cues],
            "part": [cue.part for cue in cues], **columns,
        }
    )  # fmt: skip
    found.tables["cuts"] = table
    for part, group in table.groupby("part", sort=False):
        changes = [(group[f"cut_{arm}"] - group[f"whole_{arm}"]).to_numpy() for arm in arms]
        _compare_means(found, "cut_edge_change", changes, list(group.group), part=f"target to cue, {part}")


def _questions(material: Material, found: _Found, source: str | None) -> None:
    """Causal models: right ending against wrong, and how much of the margin rests on the pair's word."""
    given = questions_for(material, source)
    if isinstance(given, str):
        found.missing["questions"] = given
        return
    questions, read = given
    found.read += read

    def measured(step: Step) -> list[Answered]:
        return answer(found.run.model, found.run.tokenizer, questions, progress=step)

    base, tuned = found.both("questions", measured)
    table = _questions_frame(material, questions, base, tuned)
    found.tables["questions"] = table
    for part, group in table.groupby("part", sort=False):
        units = list(group.group)
        right = [np.where(group[f"margin_{arm}"] > 0, 1.0, 0.0) for arm in ("base", "tuned")]
        _compare_means(found, "answer_accuracy", right, units, part=str(part))
        for name in ("margin", "moved"):
            known = group.dropna(subset=[f"{name}_base", f"{name}_tuned"])
            if len(known):
                values = [known[f"{name}_{arm}"].to_numpy() for arm in ("base", "tuned")]
                _compare_means(found, f"answer_{name}", values, list(known.group), part=str(part))
            else:
                found.missing[f"answer_{name}, {part}"] = "no question's prompt holds a word of its pair"


def _questions_frame(
    material: Material, questions: Sequence[Question], base: Sequence[Answered], tuned: Sequence[Answered]
) -> pd.DataFrame:
    corpus = material.corpus
    trained, dev, test = (groups_of(part) for part in (corpus.train, corpus.dev, corpus.test))
    columns: dict[str, list[object]] = {
        "id": [one.id for one in questions], "group": [one.group for one in questions],
        "part": [part_of_fact(one, trained=trained, dev=dev, test=test) for one in questions],
    }  # fmt: skip
    for arm, answers in (("base", base), ("tuned", tuned)):
        columns[f"margin_{arm}"] = [one.margin for one in answers]
        columns[f"moved_{arm}"] = [float("nan") if one.moved is None else one.moved for one in answers]
    return pd.DataFrame(columns)


def _compare_means(found: _Found, measure: str, values: Sequence[Floats], units: Sequence[str], *, part: str) -> None:
    """Means over items, drawn by group."""
    arms = [np.stack([one, np.ones(len(one))], axis=1) for one in values]
    found.compare(Paired(base=arms[0], tuned=arms[1], units=units, unit="group", part=part), {measure: mean})
