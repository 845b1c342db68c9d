"""Whether a model uses what it is given: its answers with the gold passage, another, none, and one that contradicts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from finetune.errors import RetrievalError
from finetune.rag.answers import character_f1, contains, exact_match
from finetune.rag.ask import Writing, generate, put_before
from finetune.rag.causes import (
    LEAST,
    Rebuild,
    answer_ids,
    answer_log_probability,
    check_writes,
    passage_effects,
    rebuilding,
    swaps_for,
)
from finetune.rag.chunks import Chunk
from finetune.rag.inject import Injection
from finetune.rag.puzzles import Puzzle, conditions, places
from probe import LoadedModel, bootstrap, part_shares

Progress = Callable[[str, int, int], None]
MEASURES = ("margin", "right", "exact", "contains", "f1", "share", "per_token")
AGAINST = (("gold", "none"), ("gold", "wrong"), ("wrong", "none"), ("contradicting", "none"), ("retrieved", "none"))


@dataclass(frozen=True, kw_only=True)
class UseSettings:
    """What is measured; None leaves a part out."""

    writing: Writing = field(default_factory=Writing)
    answers: bool = True  # let the model write, and score what it wrote
    places: int | None = 5  # passages of the sweep of the gold one's place
    left_out: bool = True  # each retrieved passage dropped, swapped and unseen
    least: float = LEAST  # nats
    seed: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class UseOfContext:
    """One row a question and condition, and what follows of them.

    conditions: question, asked, right_answer, unit, condition, passages, tokens, right and wrong (log-probability of
    both answers, each in nats a character of its own), margin (right less wrong), prefers_right; where answers were
    written: answer, exact, contains, f1; of the passages judged to help, or the contradicting one, where one stands in
    the prompt: share, per_token (attention of the right answer's rows, mean over layers and heads; over the passages'
    share of the tokens). Condition retrieved has no passages where a search found none.
    places: question, unit, place, passages, right, share, per_token, with the gold passage first, in the middle, last.
    left_out: one row a question and retrieved passage: dropped, swapped, cut (nats that the right answer loses), used,
    share, gold (judged to help).
    heads: layer, head, share (of the gold passage, mean over questions in condition gold), questions.
    results: measure, condition, against ("" for the mean itself, else the difference, over the questions that have
    both), estimate (mean over units), low, high (95 %, over units; NaN below five), units, questions.
    """

    conditions: pd.DataFrame
    places: pd.DataFrame
    left_out: pd.DataFrame
    heads: pd.DataFrame
    results: pd.DataFrame


def measure_use(
    loaded: LoadedModel,
    puzzles: Sequence[Puzzle],
    *,
    retrieved: Mapping[str, Sequence[Chunk]] | None = None,
    settings: UseSettings | None = None,
    progress: Progress | None = None,
) -> UseOfContext:
    """Put every question in every condition to a model; deterministic.

    retrieved: by question what a search found, best first; the condition retrieved and `left_out` need it, and put of
    it what `ask` would, in its order. RetrievalError for a model that writes no answers, and where a passage has no
    room in its prompt.
    """
    check_writes(loaded)
    asked = _Asked(loaded, settings or UseSettings())
    rows: list[dict[str, Any]] = []
    swept: list[dict[str, Any]] = []
    dropped: list[dict[str, Any]] = []
    for done, puzzle in enumerate(puzzles, 1):
        found = None if retrieved is None else asked.as_asked(puzzle, retrieved.get(puzzle.id, ()))
        prompts = asked.prompts(puzzle)
        rows += asked.in_conditions(puzzle, found, prompts)
        swept += asked.at_places(puzzle, prompts)
        dropped += asked.without_each(puzzle, found or (), prompts)
        if progress:
            progress("questions with and without passages", done, len(puzzles))
    table = pd.DataFrame(rows)
    return UseOfContext(
        conditions=table,
        places=pd.DataFrame(swept),
        left_out=pd.DataFrame(dropped),
        heads=asked.head_table(),
        results=results_of(table, seed=asked.settings.seed),
    )


class _Asked:
    """Puts puzzles to one model, and keeps the sums of its heads' shares."""

    def __init__(self, loaded: LoadedModel, settings: UseSettings) -> None:
        self.loaded, self.settings = loaded, settings
        self.head_sums: dict[tuple[int, int], list[float]] = {}

    def as_asked(self, puzzle: Puzzle, retrieved: Sequence[Chunk]) -> tuple[Chunk, ...]:
        """Of what was found what `ask` puts before the question, in the prompt's order."""
        if not retrieved:
            return ()
        return put_before(self.loaded, puzzle.question, retrieved, self.settings.writing).passages

    def prompts(self, puzzle: Puzzle) -> Rebuild:
        """What puts passages before the question, all of them or RetrievalError, between the gold prompt's marks.

        So the conditions differ in their passages alone, and none depends on what a search found.
        """
        loaded, writing = self.loaded, self.settings.writing
        gold = put_before(loaded, puzzle.question, [puzzle.gold], writing)
        rebuild = rebuilding(
            loaded, puzzle.question, gold, instruction=writing.instruction, language=writing.language
        )  # fmt: skip
        room = None if loaded.max_positions is None else loaded.max_positions - writing.max_new_tokens

        def put(passages: Sequence[Chunk]) -> Injection:
            found = rebuild(passages)
            for left in found.left_out:  # else the condition would be another one under its name
                raise RetrievalError(f"question {puzzle.id}: passage {left.chunk.id} {left.reason}")
            if room is not None and (read := len(found.prompt.tokens.ids)) > room:
                raise RetrievalError(
                    f"question {puzzle.id}: its prompt has {read} tokens, and {loaded.name} room for {room} before an "
                    "answer: fewer passages, or shorter ones"
                )
            return found

        return put

    def in_conditions(
        self, puzzle: Puzzle, retrieved: Sequence[Chunk] | None, prompts: Rebuild
    ) -> Iterator[dict[str, Any]]:
        for name, passages in conditions(puzzle, retrieved).items():
            injection = prompts(passages)
            row = {**self._scored(puzzle, injection), "condition": name}
            if self.settings.answers:
                row |= self._written(puzzle, injection)
            yield row | self._looked(puzzle, injection, heads=name == "gold")

    def at_places(self, puzzle: Puzzle, prompts: Rebuild) -> Iterator[dict[str, Any]]:
        if self.settings.places is None:
            return
        for place, passages in places(puzzle, self.settings.places).items():
            injection = prompts(passages)
            row = {"question": puzzle.id, "unit": puzzle.unit, "place": place, "passages": len(passages)}
            yield row | {"right": self._nats(puzzle.answer, injection)} | self._looked(puzzle, injection)

    def without_each(self, puzzle: Puzzle, retrieved: Sequence[Chunk], prompts: Rebuild) -> Iterator[dict[str, Any]]:
        """What each retrieved passage does to the right answer."""
        if not self.settings.left_out or not retrieved:
            return
        injection = prompts(retrieved)
        shares = part_shares(self.loaded, injection.prompt, answer=self._ids(puzzle.answer, injection))
        by_name = {chunk.id: float(shares.head_shares(chunk.id).mean()) for chunk in injection.passages}
        found = passage_effects(
            self.loaded, injection, puzzle.answer, rebuild=prompts,
            swaps=swaps_for(injection.passages, puzzle.others, answer=puzzle.answer), shares=by_name,
            least=self.settings.least,
        )  # fmt: skip
        for one in found.passages:
            yield {
                "question": puzzle.id, "unit": puzzle.unit, "passage": one.passage.document,
                "gold": one.passage.document in puzzle.relevant, "dropped": one.dropped, "swapped": one.swapped,
                "cut": one.cut, "used": one.used, "share": one.share,
            }  # fmt: skip

    def _ids(self, answer: str, injection: Injection) -> tuple[int, ...]:
        return answer_ids(self.loaded, answer, after=injection.prompt)

    def _nats(self, answer: str, injection: Injection) -> float:
        """An answer's log-probability after a prompt, in nats a character."""
        nats = answer_log_probability(self.loaded, injection.prompt, self._ids(answer, injection))
        return nats / len(answer.strip())

    def _scored(self, puzzle: Puzzle, injection: Injection) -> dict[str, Any]:
        right, wrong = (self._nats(text, injection) for text in (puzzle.answer, puzzle.wrong))
        return {
            "question": puzzle.id, "asked": puzzle.question, "right_answer": puzzle.answer, "unit": puzzle.unit,
            "passages": len(injection.passages), "tokens": len(injection.prompt.tokens.ids), "right": right,
            "wrong": wrong, "margin": right - wrong, "prefers_right": float(right > wrong),
        }  # fmt: skip

    def _written(self, puzzle: Puzzle, injection: Injection) -> dict[str, Any]:
        text = generate(
            self.loaded, injection, max_new_tokens=self.settings.writing.max_new_tokens,
            lines=injection.prompt.form == "chat",
        ).text  # fmt: skip
        return {
            "answer": text, "exact": float(exact_match(text, puzzle.answer)),
            "contains": float(contains(text, puzzle.answer)), "f1": character_f1(text, puzzle.answer),
        }  # fmt: skip

    def _looked(self, puzzle: Puzzle, injection: Injection, *, heads: bool = False) -> dict[str, float]:
        """The share that the right answer's rows give the passages judged to help, or one under the gold one's name."""
        names = [chunk.id for chunk in injection.passages if chunk.document in puzzle.relevant]
        if not names:
            return {}
        shares = part_shares(self.loaded, injection.prompt, answer=self._ids(puzzle.answer, injection))
        grid = np.sum([shares.head_shares(name) for name in names], axis=0)  # [layer, head]
        columns = [shares.part(name) for name in names]
        tokens = float(shares.token_shares[:, columns].sum(-1).mean())
        if heads:
            for (layer, head), value in np.ndenumerate(grid):
                key = (shares.layers[layer].index, shares.heads[head])
                self.head_sums.setdefault(key, []).append(float(value))
        return {"share": float(grid.mean()), "per_token": float(grid.mean()) / tokens}

    def head_table(self) -> pd.DataFrame:
        """Layer, head, share (mean over questions), questions."""
        rows = [(layer, head, float(np.mean(values)), len(values)) for (layer, head), values in self.head_sums.items()]
        return pd.DataFrame(rows, columns=["layer", "head", "share", "questions"])


def results_of(table: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """Give means of each condition, and differences of two over the questions that both have, by `UseOfContext`."""
    measures = [name for name in (*MEASURES, "prefers_right") if name in table]
    rows: list[tuple[Any, ...]] = []
    by_condition = {str(name): group.set_index("question") for name, group in table.groupby("condition", sort=False)}
    for name, group in by_condition.items():
        for measure in measures:
            rows += _row(measure, name, "", group[measure], group["unit"], seed=seed)
    for name, against in AGAINST:
        if name not in by_condition or against not in by_condition:
            continue
        one, other = by_condition[name], by_condition[against]
        both = one.index.intersection(other.index)
        for measure in measures:
            moved = one.loc[both, measure] - other.loc[both, measure]
            rows += _row(measure, name, against, moved, one.loc[both, "unit"], seed=seed)
    columns = ["measure", "condition", "against", "estimate", "low", "high", "units", "questions"]
    return pd.DataFrame(rows, columns=columns)


def _row(
    measure: str, condition: str, against: str, values: "pd.Series[float]", units: "pd.Series[str]", *, seed: int
) -> Iterator[tuple[Any, ...]]:
    known = values.notna().to_numpy()
    if not known.any():
        return
    found = bootstrap(values.to_numpy(dtype=np.float64)[known], units.to_numpy(dtype=str)[known].tolist(), seed=seed)
    yield (
        measure, condition, against, float(found.mean), float(found.low), float(found.high), int(found.units),
        int(known.sum()),
    )  # fmt: skip
