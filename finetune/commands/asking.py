"""Questions put to a model with passages: ask, passages."""

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from finetune.commands.configuring import Device
from finetune.commands.printing import json_line
from finetune.commands.retrieving import ENCODER, INDEX_FOLDER, HowMany, IndexFolder, ModeName, RerankerName, Weight
from finetune.errors import RetrievalError
from probe import say

if TYPE_CHECKING:
    from finetune.rag.ask import Reply, Source
    from finetune.rag.chunks import Chunk
    from finetune.rag.hits import Hit, Mode
    from finetune.rag.opened import Index
    from finetune.rag.study import Study
    from finetune.rag.threshold import Field, Threshold
    from probe import LoadedModel

DECODER = "builtin:gemma3-270m"
AUTO, NONE = "auto", "none"
_SHOWN = 40  # characters of a passage that was found and not put before the model

Model = Annotated[
    str, typer.Option("--model", "-m", metavar="MODEL", help="builtin:NAME, hub id, folder or run folder.")
]
Order = Annotated[
    Literal["best-first", "edges", "best-last"], typer.Option(help="Of the passages; edges: the best at both ends.")
]
Language = Annotated[Literal["zh", "en"], typer.Option(help="Of the words around passages and question.")]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, max=4096, help="The longest answer.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the marks around passages, and of resamples.")]
Remote = Annotated[bool, typer.Option("--trust-remote-code", help="Run Python code that the model brings along.")]


def ask(
    question: Annotated[str, typer.Argument(help="The question, for example 苹果酸脱氢酶催化什么反应？")],
    folder: IndexFolder = INDEX_FOLDER,
    model: Model = DECODER,
    k: HowMany = 3,
    mode: ModeName = None,
    weight: Weight = 0.5,
    reranker: RerankerName = None,
    threshold: Annotated[
        str,
        typer.Option(
            metavar="FILE|NUMBER|none",
            help="From which cosine (without vectors, BM25) on passages answer. [default: chosen on the shipped set]",
        ),
    ] = AUTO,
    budget: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the prompt. [default: 2048, or what fits]")
    ] = None,
    order: Order = "best-first",
    form: Annotated[
        Literal["plain", "chat"] | None, typer.Option(help="[default: chat where the model has a template]")
    ] = None,
    language: Language = "zh",
    no_delimiters: Annotated[
        bool, typer.Option("--no-delimiters", help="No marks around passages; they can then pose as the prompt.")
    ] = False,
    max_new_tokens: NewTokens = 64,
    effects: Annotated[
        bool, typer.Option("--effects", help="Also drop, swap and hide each passage: how far does the answer move?")
    ] = False,
    right: Annotated[str | None, typer.Option(metavar="TEXT", help="The right answer, to measure effects on.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt", metavar="FILE", help="Write the prompt with its map, for `probe prompt`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object in place of the table.")] = False,
    seed: Seed = 0,
    trust_remote_code: Remote = False,
    device: Device = "auto",
) -> None:
    """Answer a question from an index: answer, sources with their characters, each one's share of the attention."""
    from finetune.rag.answers import normalised
    from finetune.rag.ask import ask as put_question
    from finetune.rag.index import open_index
    from finetune.rag.rerank import Reranker
    from probe import load_model, save_prompts, show_progress

    if right is not None and not (effects and normalised(right)):
        raise RetrievalError(
            "--right is a text with letters that --effects are measured on; allowed is both, or neither"
        )
    if prompt_file is not None:
        _check_can_be_written(prompt_file)
    with open_index(folder, device=device) as opened:
        least = _threshold(threshold, opened, mode)
        loaded = load_model(model, head="lm", device=device, trust_remote_code=trust_remote_code)
        for note in loaded.notes:
            say(f"note: {note}")
        _tell_other_tokens(opened, loaded)
        with show_progress() as progress:
            reply = put_question(
                loaded, opened, question, k=k, mode=mode, weight=weight,
                reranker=Reranker(reranker, device=device) if reranker else None, threshold=least, budget=budget,
                order=order, form=form, language=language, delimiters=not no_delimiters, seed=seed,
                max_new_tokens=max_new_tokens, effects=effects, right=right,
                progress=lambda done, total: progress("answering", done, total),
            )  # fmt: skip
    _tell_effects(reply, right)
    if as_json:
        print(json_line(_as_object(reply)))
    else:
        _print_reply(reply, language=language, threshold=least)
    if prompt_file is not None and reply.injection is not None:  # after the answer, which a full disk would lose
        save_prompts([reply.injection.prompt], prompt_file)
    elif prompt_file is not None:
        say(f"note: {prompt_file} was not written, since no prompt was made")


def _check_can_be_written(file: Path) -> None:
    """RetrievalError for a file that could not be written, before minutes of work."""
    if file.suffix.lower() != ".jsonl":
        raise RetrievalError(f"--prompt {file}: allowed is a file ending in .jsonl")
    above = next(one for one in file.absolute().parents if one.exists())
    if (file.exists() and not file.is_file()) or not above.is_dir() or not os.access(above, os.W_OK):
        raise RetrievalError(f"--prompt {file}: allowed is a file in a folder that can be written")


def _tell_other_tokens(opened: "Index", loaded: "LoadedModel") -> None:
    """A note where the index's chunks were sized in the tokens of another model than the one that reads them."""
    from probe import tokenizer_hash

    sized_in = opened.manifest.made_from["tokenizer"]
    if sized_in["sha256"] != tokenizer_hash(loaded.tokenizer):
        say(f"note: the index's chunks were sized in tokens of {sized_in['name']}, not of {loaded.name}")


def _threshold(given: str, opened: "Index", mode: "Mode | None") -> "Threshold | None":
    """The threshold that was asked for; without one the shipped, where it was chosen on scores that this search has."""
    from finetune.rag.threshold import Threshold
    from finetune.rag.thresholds import SHIPPED_FILE, load_threshold

    fields, made_from = _fields_of(mode, has_dense=opened.has_dense), opened.manifest.made_from
    if given == NONE:
        return None
    if given == AUTO:
        try:
            shipped = load_threshold(SHIPPED_FILE, made_from)
        except RetrievalError:
            say("note: no threshold was chosen for this index's encoder; `finetune passages` chooses one")
            return None
        if shipped.field not in fields:
            say(f"note: no threshold is applied: the shipped one is of {shipped.field} scores, which this search lacks")
            return None
        return shipped
    try:
        score = float(given)
    except ValueError:
        return _of_file(Path(given), made_from, fields)
    if not math.isfinite(score):
        raise RetrievalError(f"--threshold {given}: allowed are a finite number, a file, or none")
    return Threshold(score=score, false_refusals=math.nan, false_answers=math.nan, field=fields[0])


def _fields_of(mode: "Mode | None", *, has_dense: bool) -> "tuple[Field, ...]":
    """The single scores that the hits of a search have; a threshold of another one would refuse every question."""
    chosen = mode or ("hybrid" if has_dense else "lexical")
    return ("dense", "lexical") if chosen == "hybrid" else (chosen,)


def _of_file(file: Path, made_from: Mapping[str, Any], fields: "tuple[Field, ...]") -> "Threshold":
    from finetune.rag.thresholds import load_threshold

    found = load_threshold(file, made_from)
    if found.field not in fields:
        raise RetrievalError(
            f"{file}: is a threshold of {found.field} scores, which this search lacks; allowed are {', '.join(fields)}"
        )
    if found.field == "lexical":
        say(f"note: {file} was chosen on BM25 scores, which depend on the collection that was searched")
    return found


def _print_reply(reply: "Reply", *, language: "Language", threshold: "Threshold | None") -> None:
    from finetune.rag.ask import NO_ANSWER
    from probe import open_console, text_table, visible

    print(visible(reply.answer) or NO_ANSWER[language])  # a model may write what a document had in it
    if reply.refused is not None:
        say(f"refused: {_refusal(reply, threshold)}")
    console = open_console(sys.stdout)
    if reply.sources:
        effects = ("dropped", "swapped", "unseen", "used") if reply.effects is not None else ()
        columns = ("source", "where", "score", "share", "per token", *effects)
        console.print(text_table(columns, [_source_row(one) for one in reply.sources]))
    elif reply.hits:
        console.print(text_table(("rank", "where", "score", "passage"), [_found_row(one) for one in reply.hits]))
    for left in reply.injection.left_out if reply.injection else ():
        say(f"left out: {_place(left.chunk)}: {left.reason}")


def _tell_effects(reply: "Reply", right: str | None) -> None:
    """What the effects are of, where they were measured."""
    from finetune.rag.documents import one_line

    if reply.effects is not None:
        whose = "the model's own answer; --right gives another" if right is None else "the right answer, as given"
        say(f"effects: nats that the log-probability of “{one_line(reply.effects.answer)}” loses ({whose})")


def _refusal(reply: "Reply", threshold: "Threshold | None") -> str:
    """Why no answer was given, of a threshold with the best score that it was held against."""
    from finetune.rag.threshold import NOTHING

    if reply.refused != "below the threshold" or threshold is None or reply.worth is None:
        return str(reply.refused)
    kind = {"dense": "cosine", "lexical": "BM25"}.get(threshold.field, threshold.field)
    best = f"no passage has a {kind}" if reply.worth == NOTHING else f"the best {kind} is {reply.worth:.4g}"
    return f"{reply.refused}: {best}, the threshold {threshold.score:.4g}"


def _found_row(hit: "Hit") -> list[str]:
    from finetune.rag.documents import one_line

    return [str(hit.rank), _place(hit.chunk), f"{hit.score:.4g}", one_line(hit.chunk.text, _SHOWN)]


def _place(chunk: "Chunk") -> str:
    return f"{chunk.document} [{chunk.start}–{chunk.end}]"


def _source_row(one: "Source") -> list[str]:
    row = [f"[{one.rank}]", _place(one.passage), f"{one.score:.4g}", _number(one.share), _number(one.per_token)]
    if (effect := one.effect) is None:
        return row
    used = "–" if effect.used is None else "yes" if effect.used else "no"
    return [*row, _number(effect.dropped), _number(effect.swapped), _number(effect.cut), used]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _as_object(reply: "Reply") -> dict[str, Any]:
    """What is written as JSON: answer, refusal, sources, what was left out."""
    left = reply.injection.left_out if reply.injection else ()
    return {
        "question": reply.question, "answer": reply.answer, "refused": reply.refused,
        "sources": [asdict(one) for one in reply.sources], "found": [asdict(hit) for hit in reply.hits],
        "left_out": [asdict(one) for one in left],
    }  # fmt: skip


def passages(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[SET]", help="corpus.jsonl, queries.jsonl, qrels.tsv. [default: shipped]")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="MODEL", help="Whose answers; none for retrieval alone.")
    ] = DECODER,
    encoder: Annotated[str, typer.Option(metavar="MODEL", help="Whose vectors; none for words alone.")] = ENCODER,
    terms: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A dictionary: words of the domain, not to be cut apart.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Run folder.")] = Path("runs/passages"),
    k: HowMany = 3,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many questions are put to the model.")] = None,
    order: Order = "best-first",
    language: Annotated[
        Literal["zh", "en"], typer.Option(help="Of the words around passages and question, and of the page.")
    ] = "zh",
    no_delimiters: Annotated[bool, typer.Option("--no-delimiters", help="No marks around passages.")] = False,
    no_places: Annotated[bool, typer.Option("--no-places", help="Without the gold passage at other places.")] = False,
    no_effects: Annotated[bool, typer.Option("--no-effects", help="No passage dropped, swapped or hidden.")] = False,
    no_answers: Annotated[
        bool, typer.Option("--no-answers", help="Log-probabilities alone; nothing is written.")
    ] = False,
    max_new_tokens: NewTokens = 32,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier run.")] = False,
    seed: Seed = 0,
    trust_remote_code: Remote = False,
    device: Device = "auto",
) -> None:
    """Measure a set: what is found, when to refuse, and what passages do to the answers. Writes a page and tables."""
    from finetune.rag.ask import Writing
    from finetune.rag.beir import SHIPPED
    from finetune.rag.evaluation import UseSettings
    from finetune.rag.story import page_of, write_study
    from finetune.rag.study import StudySettings, study_passages
    from probe import load_model, open_run, show_progress

    writing = Writing(
        order=order, language=language, delimiters=not no_delimiters, seed=seed, max_new_tokens=max_new_tokens
    )
    settings = StudySettings(
        encoder=None if encoder == NONE else encoder, terms=terms, k=k, limit=limit,
        tokenizer=next((name for name in (model, encoder) if name != NONE), ENCODER),
        use=UseSettings(writing=writing, answers=not no_answers, places=None if no_places else 5,
            left_out=not no_effects, seed=seed), seed=seed,
    )  # fmt: skip
    asked = model if model != NONE else "BM25" if encoder == NONE else encoder  # whose numbers the page has
    with open_run(out, force=force) as run:
        loaded = None
        if model != NONE:
            loaded = load_model(model, head="lm", device=device, trust_remote_code=trust_remote_code)
        with show_progress() as progress:
            study = study_passages(loaded, folder or SHIPPED, settings=settings, progress=progress, device=device)
        run.record("model", asked)
        write_study(study, settings, run, page=page_of(study, settings, model=asked, language=language))
    _print_study(study)
    print(out)


def _print_study(study: "Study") -> None:
    from finetune.rag.story import table_rows
    from probe import open_console, text_table

    console = open_console(sys.stdout)
    shown = study.results()
    shown = shown[shown["measure"].isin(["recall@1", "recall@5", "ndcg@10"])]
    columns = ["mode", "measure", "estimate", "low", "high", "queries"]
    console.print(text_table(columns, table_rows(shown, columns)))
    if (chosen := study.weight) is not None:
        alone = {0.0: "; hybrid is lexical alone", 1.0: "; hybrid is dense alone"}.get(chosen.weight, "")
        print(f"weight {chosen.weight:.2f} on vectors, chosen on {chosen.queries} other questions{alone}")
    if study.use is not None:
        results = study.use.results
        shown = results[results["measure"].isin(["margin", "contains"])]
        columns = ["measure", "condition", "against", "estimate", "low", "high", "questions"]
        console.print(text_table(columns, table_rows(shown, columns)))
