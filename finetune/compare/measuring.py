"""One job: everything that is measured of one arm's model with one seed, as items that pair with every other arm's."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import exp

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finetune.compare.arms import ArmModel
from finetune.compare.asking import (
    MAP_COLUMNS,
    EditsOf,
    Put,
    attention_maps,
    biased,
    cut,
    score_endings,
    silenced,
    stops_of,
    write_answers,
)
from finetune.compare.items import Item
from finetune.compare.prompts import Before, prompt_for
from finetune.compare.states import GENERAL, state_items
from finetune.domains import Question
from finetune.edgemeasures import Cue, cues_of, masses_by_head, placed_pairs, right_class_logs
from finetune.encode import Encoded
from finetune.errors import DataError
from finetune.material import LANGUAGE_MODELS, Texts, groups_of
from finetune.prepare import Progress
from finetune.rag.answers import character_f1, exact_match
from finetune.rag.causes import answer_ids
from finetune.scoring import Step, class_scores, token_scores
from probe import Case, EdgeEdit, LoadedModel, part_shares

TEST = "test"
PAIR_OF_TEXT = "query → key"
SEEN, HELD_OUT, OTHER = "seen facts", "held-out facts", "other facts"
WRITTEN_COLUMNS = ("question", "answer", "text", "exact", "f1")


@dataclass(frozen=True, kw_only=True, eq=False)
class JobMaterial:
    """What every arm is measured on, the same for all: read once, with one tokenizer."""

    texts: Texts  # the test part, with all pairs that it holds
    general: tuple[Sequence[Encoded], Sequence[str]] | None = None  # texts of no domain, and their ids by index
    questions: Sequence[Question] = ()
    before: Before = field(default_factory=Before)
    edge_bias: float = 2.0  # added to the logits from the answer (of a sense: the target) to the pair's word
    cases: Sequence[Case] = ()  # of general word senses, as states.capped_cases gives them
    maps: int = 24  # questions (without any, pairs of the test texts) whose attention is kept
    max_new_tokens: int = 24  # of a written answer

    def question_parts(self) -> dict[str, str]:
        """Whether each question's fact stands in what is trained on or chosen by, in the test part, or nowhere.

        Which of the seen facts a checkpoint is chosen by depends on the seed, and items must not.
        """
        corpus = self.texts.corpus
        seen, held_out = groups_of(corpus.train) | groups_of(corpus.dev), groups_of(corpus.test)
        return {
            one.id: SEEN if one.group in seen else HELD_OUT if one.group in held_out else OTHER
            for one in self.questions
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """What one job gives."""

    items: tuple[Item, ...]
    maps: pd.DataFrame  # MAP_COLUMNS: of the first questions, or of the first pairs of the test texts
    written: pd.DataFrame  # WRITTEN_COLUMNS: the question's id, its right answer, what was written, how it was scored
    context_tokens: float  # of a prompt (of a test text, where there are no questions), mean


def measure_job(
    given: ArmModel, material: JobMaterial, *, known: Sequence[Item] = (), progress: Progress | None = None
) -> Measured:
    """Measure one arm's model; deterministic. Names of measures and parts are those of the comparison's items.

    An edge bias acts where a question is answered and a target's class is told; texts, states and masses of pairs are
    the model's own: of a language model they can be `known` from another arm with the same weights, and are not
    measured again. DataError for questions that the model cannot be asked, and for a bias where there is no edge.
    """
    tell = progress or (lambda stage, done, total: None)
    _check(given, material)
    loaded = replace(given.loaded, model=given.model)
    items, masses = list(known), None
    if not known:
        of_task = _text_items if material.texts.encoding.task in LANGUAGE_MODELS else _class_items
        items += of_task(given, material, tell)
        masses = _pair_masses(given, material, partial(tell, "attention on pairs"))
        items += _mass_items(material.texts, masses)
        items += state_items(loaded, material.cases, step=partial(tell, "word senses"))
    if masses is not None and not material.questions:
        lengths = [document.length for document in material.texts.documents]
        return Measured(
            items=tuple(items), maps=_pair_maps(material, masses),
            written=pd.DataFrame(columns=list(WRITTEN_COLUMNS)),
            context_tokens=float(np.mean(lengths)) if lengths else 0.0,
        )  # fmt: skip
    asked = _Questions(given, loaded, material, tell)
    written = asked.written()
    return Measured(
        items=(*items, *asked.items(written)), maps=asked.maps(), written=written,
        context_tokens=float(np.mean([len(one.prompt.tokens.ids) for one in asked.put])),
    )  # fmt: skip


def _check(given: ArmModel, material: JobMaterial) -> None:
    task = material.texts.encoding.task
    if task != "causal-lm" and material.questions:
        raise DataError(f"task {task}: questions are put to causal language models only")
    ids = [question.id for question in material.questions]
    if twice := [name for name in dict.fromkeys(ids) if ids.count(name) > 1]:
        raise DataError(f"question {twice[0]} is given twice; allowed is one of each id in all files together")
    if given.arm.edge_bias and task not in ("causal-lm", "sense"):
        raise DataError(f"task {task}: it has no answer or target whose edge to a pair's word could be biased")
    if given.arm.prompt != "plain" and not material.questions:
        raise DataError(f"an arm with {given.arm.prompt} before its questions: there are no questions")


# ---- texts -----------------------------------------------------------------------------------------------------


def _text_items(given: ArmModel, material: JobMaterial, tell: Progress) -> Iterator[Item]:
    """Nats a token of the test texts and of general texts, weighted by their tokens."""
    texts = material.texts
    parts = [("perplexity", TEST, texts.documents, texts.ids, texts.groups)]
    if material.general is not None:
        documents, ids = material.general
        parts.append(("general_perplexity", GENERAL, tuple(documents), list(ids), list(ids)))
    for measure, part, documents, ids, units in parts:
        learned = [document for document in documents if document.learned]
        if not learned:
            continue
        step = partial(tell, f"{part} texts")
        scores = token_scores(given.model, texts.tokenizer, learned, collator=texts.collator, step=step)
        for index, nats, tokens in zip(scores.index, scores.nats, scores.tokens, strict=True):
            if tokens:
                yield Item(
                    measure=measure, part=part, item=ids[index], unit=units[index], value=float(nats / tokens),
                    weight=float(tokens),
                )  # fmt: skip


def _class_items(given: ArmModel, material: JobMaterial, tell: Progress) -> Iterator[Item]:
    """Whether the right class is the likeliest; for a marked word also what its log-probability owes to the cue."""
    texts = material.texts
    if not texts.documents:
        return
    cues, _ = cues_of(texts.documents, texts.parts, causal=texts.depths.causal)
    bias = material.edge_bias if given.arm.edge_bias else 0.0
    edits = partial(_cue_edits, _cues_by_document(cues), exp(bias)) if bias else None
    step = partial(tell, "test")
    logs = class_scores(given.model, texts.documents, collator=texts.collator, edits=edits, step=step)
    for document, row in zip(texts.documents, logs, strict=True):
        right = float(row.argmax() == document.label)
        unit = texts.groups[document.index]
        yield Item(measure="accuracy", part=TEST, item=document.id, unit=unit, value=right)
    if texts.encoding.task == "sense" and cues:
        yield from _cut_cues(given, texts, cues, bias=bias, step=partial(tell, "cut edges"))


def _cues_by_document(cues: Sequence[Cue]) -> dict[int, tuple[int, ...]]:
    found: defaultdict[int, set[int]] = defaultdict(set)
    for cue in cues:
        found[cue.document.index].update(cue.places)
    return {index: tuple(sorted(places)) for index, places in found.items()}


def _cue_edits(places: dict[int, tuple[int, ...]], factor: float, document: Encoded, item: int) -> list[EdgeEdit]:
    """The edges from a document's target to its cues times a factor."""
    if document.index not in places:
        return []
    return [EdgeEdit(query=document.target, key=places[document.index], factor=factor, item=item)]


def _cut_cues(given: ArmModel, texts: Texts, cues: Sequence[Cue], *, bias: float, step: Step) -> Iterator[Item]:
    whole, without = (
        right_class_logs(given.model, cues, collator=texts.collator, cut=cut, bias=bias, step=step)
        for cut in (False, True)
    )
    for cue, lost in zip(cues, whole - without, strict=True):
        unit = texts.groups[cue.document.index]
        yield Item(measure="cut", part=cue.part, item=cue.document.id, unit=unit, value=float(lost))


Masses = list[dict[int, NDArray[np.float64]]]  # of each pair of the test texts, [head] by layer


def _pair_masses(given: ArmModel, material: JobMaterial, step: Step) -> Masses:
    """Attention on the pairs of the test texts, in the order of `placed_pairs`."""
    texts = material.texts
    layers = range(texts.depths.layers)
    return masses_by_head(
        given.model, texts.documents, collator=texts.collator, depths=texts.depths, layers=layers, step=step
    )  # fmt: skip


def _mass_items(texts: Texts, masses: Masses) -> Iterator[Item]:
    """An item a rule: mean over its places, and over all heads of the layers that can meet it."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for one, by_layer in zip(placed_pairs(texts.documents), masses, strict=True):
        if by_layer:
            mean = float(np.concatenate(list(by_layer.values())).mean())
            found[texts.parts[one.pair.rule], texts.unit_of(one.pair.rule, one.index)].append(mean)
    for (part, unit), values in found.items():
        yield Item(measure="mass", part=part, item=unit, unit=unit, value=float(np.mean(values)))


def _pair_maps(material: JobMaterial, masses: Masses) -> pd.DataFrame:
    """MAP_COLUMNS of the first pairs of the test texts; an item is a text and the number of its pair."""
    texts = material.texts
    seen: Counter[int] = Counter()
    rows = []
    for one, by_layer in list(zip(placed_pairs(texts.documents), masses, strict=True))[: material.maps]:
        seen[one.index] += 1
        name = f"{texts.ids[one.index]} {seen[one.index]}"
        rows += [
            (name, PAIR_OF_TEXT, layer, head, float(value))
            for layer, mass in by_layer.items()
            for head, value in enumerate(mass)
        ]
    return pd.DataFrame(rows, columns=list(MAP_COLUMNS))


# ---- questions -------------------------------------------------------------------------------------------------


class _Questions:
    """The questions put to one arm's model, behind what the arm puts before them."""

    def __init__(self, given: ArmModel, loaded: LoadedModel, material: JobMaterial, tell: Progress) -> None:
        self.given, self.loaded, self.material, self.tell = given, loaded, material, tell
        self.bias = material.edge_bias if given.arm.edge_bias else 0.0
        self.edits: list[EditsOf] = [biased(self.bias)] if self.bias else []
        self.parts = material.question_parts()
        self.put = [
            Put(
                question=question,
                prompt=prompt_for(loaded.tokenizer, question, given.arm.prompt, material.before),
            )
            for question in material.questions
        ]

    def items(self, written: pd.DataFrame) -> Iterator[Item]:
        """Margins, accuracy, what both rest on, written answers and what was looked at."""
        margins = self.margins(self.put, (), "questions")
        for one in self.put:
            margin = margins[one.question.id]
            yield self.item("margin", one, margin)
            yield self.item("accuracy", one, float(margin > 0))
        with_edge = [one for one in self.put if one.keys]
        yield from self.lost("cut", with_edge, margins, cut(), "cut edges")
        heads = self.given.run.heads if self.given.run is not None else {}
        if heads:
            yield from self.lost("ablated", self.put, margins, silenced(heads), "silenced heads")
        for one, exact, f1 in zip(self.put, written.exact, written.f1, strict=True):
            yield self.item("exact", one, float(exact))
            yield self.item("f1", one, float(f1))
        yield from self.shares()

    def item(self, measure: str, one: Put, value: float) -> Item:
        """A question's number."""
        question = one.question
        return Item(measure=measure, part=self.parts[question.id], item=question.id, unit=question.group, value=value)

    def margins(self, put: Sequence[Put], more: Sequence[EditsOf], stage: str) -> dict[str, float]:
        """Right minus wrong ending by question, nats a character."""
        step = partial(self.tell, stage)
        scores = score_endings(self.loaded, put, edits=[*self.edits, *more], step=step)
        return {one.question.id: score.margin for one, score in zip(put, scores, strict=True)}

    def lost(
        self, measure: str, put: Sequence[Put], margins: dict[str, float], edits: EditsOf, stage: str
    ) -> Iterator[Item]:
        """What margins lose by an edit."""
        after = self.margins(put, [edits], stage)
        for one in put:
            yield self.item(measure, one, margins[one.question.id] - after[one.question.id])

    def written(self) -> pd.DataFrame:
        """What the model writes after each prompt, and how it scores."""
        texts = write_answers(
            self.loaded, self.put, stops=stops_of(self.material.questions), bias=self.bias,
            max_new_tokens=self.material.max_new_tokens, step=partial(self.tell, "written answers"),
        )  # fmt: skip
        rows = []
        for one, text in zip(self.put, texts, strict=True):
            name, right = one.question.id, one.question.right
            rows.append((name, right, text, float(exact_match(text, right)), character_f1(text, right)))
        return pd.DataFrame(rows, columns=list(WRITTEN_COLUMNS))

    def shares(self) -> Iterator[Item]:
        """Of prompts with passages or glosses: the share of the right answer's rows that all of them get."""
        put = [one for one in self.put if one.prompt.parts_of("passage")]
        for done, one in enumerate(put, 1):
            ids = answer_ids(self.loaded, one.question.right, after=one.prompt)
            found = part_shares(self.loaded, one.prompt, answer=ids)
            names = [part.name for part in one.prompt.parts_of("passage")]
            share = sum(float(found.head_shares(name).mean()) for name in names)
            yield self.item("passage_share", one, share)
            self.tell("shares of passages", done, len(put))

    def maps(self) -> pd.DataFrame:
        """Attention on pairs' words of the first questions."""
        step: Callable[[int, int], None] = partial(self.tell, "attention maps")
        return attention_maps(self.loaded, self.put[: self.material.maps], edits=self.edits, step=step)
