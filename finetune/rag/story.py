"""A study as a page: verdict first, then retrieval, refusals, use of passages, and which heads look at them."""

import shlex
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finetune.rag.evaluation import UseOfContext
from finetune.rag.manifest import library_versions
from finetune.rag.messages import Language, heading, message, word
from finetune.rag.study import MOST_REFUSED, Study, StudySettings
from finetune.rag.thresholds import threshold_text
from probe import Picture, RunFolder, Section, Table, bootstrap, head_map, layer_curve, png_bytes, render_report

EXAMPLES = 12
CONDITIONS = ("none", "wrong", "gold", "contradicting", "retrieved")
_SHOWN = ("recall@1", "recall@5", "mrr@10", "ndcg@10")
_NAMES = ("mode", "measure", "arm", "score", "condition", "against")  # columns of names, of which there are few


def page_of(study: Study, settings: StudySettings, *, model: str, language: Language) -> str:
    """Give the study as one page."""
    return render_report(
        sections_of(study, settings, language),
        title=message("title.found" if study.use is None else "title", language),
        subtitle=_subtitle(study, model, language),
        language=language,
        manifest_rows=_made_by(study, settings, model, language),
        made_note=message("made", language),
    )


def _subtitle(study: Study, model: str, language: Language) -> str:
    """Model or encoder, and how many questions of which kind."""
    return message(
        "subtitle" if study.use is None else "subtitle.asked", language, model=_name(model), asked=study.questions,
        questions=study.judged + study.unanswerable, judged=study.judged, unanswerable=study.unanswerable,
        elsewhere=study.elsewhere, passages=study.passages,
    )  # fmt: skip


def _made_by(study: Study, settings: StudySettings, model: str, language: Language) -> tuple[tuple[str, str], ...]:
    """Give what the foot of the page says of how it was made."""
    asked = None if study.use is None else _name(model)
    rows = {
        "model": asked or "–", "encoder": _name(settings.encoder or "–"), "passages": study.passages,
        "questions": study.judged + study.unanswerable, "seed": settings.seed,
        "version": f"cijing {library_versions().get('cijing', '–')}",
        "command": command_of(study, settings, model=asked),
    }  # fmt: skip
    return tuple((message(f"made.{name}", language), str(value)) for name, value in rows.items())


def command_of(study: Study, settings: StudySettings, *, model: str | None) -> str:
    """Give the command that makes this page, with names of files and folders in place of their paths."""
    use = settings.use
    parts = [study.name] if study.name else []
    parts += ["--model", model or "none", "--encoder", _name(settings.encoder or "none")]
    parts += [] if settings.terms is None else ["--terms", settings.terms.name]
    options: list[tuple[str, object]] = [
        ("--k", settings.k),
        ("--limit", settings.limit),
        ("--order", use.writing.order),
    ]
    options += [("--language", use.writing.language), ("--max-new-tokens", use.writing.max_new_tokens)]
    options += [("--seed", settings.seed)]
    parts += [str(part) for option in options if option[1] is not None for part in option]
    left = {"delimiters": use.writing.delimiters, "places": use.places, "effects": use.left_out, "answers": use.answers}
    parts += [f"--no-{name}" for name, kept in left.items() if not kept]
    return f"cijing-finetune passages {shlex.join(parts)}"


def _name(given: str) -> str:
    """A model's name, of a folder its last part."""
    return Path(given).name if Path(given).exists() else given


def write_study(study: Study, settings: StudySettings, run: RunFolder, *, page: str) -> None:
    """Write page, tables, settings and the threshold to answer other questions by to a run folder."""
    tables = {
        "retrieval": study.retrieval, "retrieval_against": study.against, "rankings": study.rankings,
        "thresholds": study.thresholds,
    }  # fmt: skip
    use = study.use
    if use is not None:
        tables |= {"results": use.results, "conditions": use.conditions, "heads": use.heads}
        tables |= {"places": use.places, "by_place": by_place(use, seed=settings.seed)} if len(use.places) else {}
        tables |= {"left_out": use.left_out} if len(use.left_out) else {}
    for name, frame in tables.items():
        if len(frame):
            run.write_table(name, frame)
    if study.trials:
        run.write_text("threshold.json", threshold_text(study.kept_trial(), study.made_from))
    run.record("seeds", {"seed": settings.seed})
    run.write_config({**asdict(settings), "terms": None if settings.terms is None else str(settings.terms)})
    run.write_text("report.html", page)


def sections_of(study: Study, settings: StudySettings, language: Language) -> list[Section]:
    """Give the page's sections; those on answers only where a model was asked."""
    sections = [_retrieval(study, language)]
    if len(study.thresholds):
        sections.append(_thresholds(study, language))
    if study.use is None:
        return sections
    use = study.use
    found = [_verdict(use, language), *sections, _conditions(use, settings, language)]
    found += _places(use, settings, language)
    found += _left_out(use, settings, language)
    found += _heads(use, language)
    found += _examples(use, language)
    return found


def _verdict(use: UseOfContext, language: Language) -> Section:
    shown = use.results[(use.results["against"] != "") & use.results["measure"].isin(["margin", "exact", "f1"])]
    return Section(
        key="verdict",
        title=message("verdict.title", language),
        text=(message("verdict.text", language), *verdicts(use, language)),
        tables=(_table(shown, message("verdict.caption", language), source="tables/results.csv", language=language),),
    )


def verdicts(use: UseOfContext, language: Language) -> tuple[str, ...]:
    """What the differences in margin come to, a sentence each; none is called better within its interval."""
    rows = use.results[(use.results["against"] != "") & (use.results["measure"] == "margin")]
    return tuple(_sentence(row, language) for row in rows.to_dict("records"))


def _sentence(row: Mapping[Hashable, Any], language: Language) -> str:
    low, high = float(row["low"]), float(row["high"])
    if np.isnan(low):  # below five units; NaN is neither above 0 nor below it
        key, interval = "few", ""
    else:
        key = "right" if low > 0 else "wrong" if high < 0 else "none"
        interval = f" ({low:+.3f} – {high:+.3f})"
    one, other = (word(row[name], language) for name in ("condition", "against"))
    return message(
        f"verdict.{key}", language, one=one, other=other, questions=row["questions"], units=row["units"],
        estimate=f"{row['estimate']:+.3f}{interval}",
    )  # fmt: skip


def _retrieval(study: Study, language: Language) -> Section:
    shown, against = (frame[frame["measure"].isin(_SHOWN)] for frame in (study.results(), study.against))
    columns = ["mode", "measure", "estimate", "low", "high", "queries"]
    caption = message("retrieval.caption", language, queries=int(shown["queries"].max()))
    source = "tables/retrieval.csv"
    tables = [_table(shown[columns], caption, source=source, language=language, whole=True)]
    if len(against):
        names = ["measure", "arm", "estimate", "low", "high", "queries"]
        better = word(str(against["better"].iloc[0]), language)
        caption, source = message("retrieval.against", language, better=better), "tables/retrieval_against.csv"
        tables.append(_table(against[names], caption, source=source, language=language, whole=True))
    text = tuple(_told_of_retrieval(study, language))
    return Section(key="retrieval", title=message("retrieval.title", language), text=text, tables=tuple(tables))


def _told_of_retrieval(study: Study, language: Language) -> Iterator[str]:
    if study.weight is None:
        fused = (study.retrieval["mode"] == "hybrid").any()
        yield message("retrieval.alike" if fused else "retrieval.words", language)
        return
    weight, chosen = study.weight.weight, study.weight.queries
    told = {"weight": f"{weight:.2f}", "chosen": chosen, "other": study.judged - chosen}
    yield message("retrieval.text", language, **told)
    if weight in (0, 1):
        yield message("retrieval.single", language, mode=word("dense" if weight else "lexical", language), **told)


def _thresholds(study: Study, language: Language) -> Section:
    return Section(
        key="threshold",
        title=message("threshold.title", language),
        text=(message("threshold.text", language, unanswerable=study.unanswerable, most=f"{MOST_REFUSED:.0%}"),),
        tables=(
            _table(
                study.thresholds,
                message("threshold.caption", language),
                source="tables/thresholds.csv",
                language=language,
            ),
        ),
    )


def _conditions(use: UseOfContext, settings: StudySettings, language: Language) -> Section:
    shown = use.results[use.results["against"] == ""].drop(columns="against")
    return Section(
        key="use",
        title=message("use.title", language),
        text=(message("use.text", language, k=settings.k),),
        tables=(_table(shown, message("use.caption", language), source="tables/results.csv", language=language),),
    )


def by_place(use: UseOfContext, *, seed: int = 0) -> pd.DataFrame:
    """Log-probability of the right answer and attention on the gold passage by its place, with 95 % intervals."""
    rows = []
    for place, group in use.places.groupby("place"):
        for measure in ("right", "share", "per_token"):
            found = bootstrap(group[measure].to_numpy(dtype=np.float64), group["unit"].astype(str).tolist(), seed=seed)
            numbers = (float(found.mean), float(found.low), float(found.high), int(found.units), len(group))
            rows.append((int(str(place)), measure, *numbers))
    return pd.DataFrame(rows, columns=["place", "measure", "estimate", "low", "high", "units", "questions"])


def _places(use: UseOfContext, settings: StudySettings, language: Language) -> Iterator[Section]:
    if not len(use.places):
        return
    found = by_place(use, seed=settings.seed)
    right = found[found["measure"] == "right"]
    figure = layer_curve(
        right, x="place", y="estimate", low="low", high="high", title=message("places.figure", language),
        label=word("right", language), across=message("places.across", language), language=language,
    )  # fmt: skip
    picture = Picture(
        caption=message("places.figure", language), png=png_bytes(figure), alt=message("places.alt", language),
        source="tables/by_place.csv",
    )  # fmt: skip
    yield Section(
        key="places", title=message("places.title", language), text=(message("places.text", language),),
        tables=(_table(found, message("places.figure", language), source="tables/by_place.csv", language=language),),
        figures=(picture,),
    )  # fmt: skip


def _left_out(use: UseOfContext, settings: StudySettings, language: Language) -> Iterator[Section]:
    if not len(use.left_out):
        return
    by = {column: effects_by(use, column, seed=settings.seed) for column in ("gold", "used")}
    for column, frame in by.items():
        frame[column] = [word(value, language) for value in frame[column]]
    tables = (
        _table(by["gold"], message("left_out.caption", language), source="tables/left_out.csv", language=language),
        _table(by["used"], message("left_out.used", language), source="tables/left_out.csv", language=language),
    )
    text = message("left_out.text", language, least=f"{settings.use.least:g}")
    yield Section(key="left-out", title=message("left_out.title", language), text=(text,), tables=tables)


def effects_by(use: UseOfContext, column: str, *, seed: int = 0) -> pd.DataFrame:
    """Mean effect and share of retrieved passages, apart for those with and without `column` (gold, used)."""
    rows = []
    for value, group in use.left_out.groupby(column):
        for measure in ("dropped", "swapped", "cut", "used", "share"):
            if measure == column:
                continue
            found = bootstrap(group[measure].to_numpy(dtype=np.float64), group["unit"].astype(str).tolist(), seed=seed)
            numbers = (float(found.mean), float(found.low), float(found.high), int(found.units), len(group))
            rows.append((str(bool(value)).lower(), measure, *numbers))
    return pd.DataFrame(rows, columns=[column, "measure", "estimate", "low", "high", "units", "passages"])


def _heads(use: UseOfContext, language: Language) -> Iterator[Section]:
    if not len(use.heads):
        return
    grid = use.heads.pivot(index="layer", columns="head", values="share")
    gold = use.conditions[use.conditions["condition"] == "gold"]
    tokens = float((gold["share"] / gold["per_token"]).mean())
    figure = head_map(
        grid.to_numpy(), title=message("heads.figure", language), layers=[str(layer) for layer in grid.index],
        label=word("share", language), heads=[str(head) for head in grid.columns], language=language,
    )  # fmt: skip
    picture = Picture(
        caption=message("heads.figure", language), png=png_bytes(figure), alt=message("heads.alt", language),
        source="tables/heads.csv",
    )  # fmt: skip
    text = message("heads.text", language, tokens=f"{tokens:.0%}")
    yield Section(key="heads", title=message("heads.title", language), text=(text,), figures=(picture,))


def _examples(use: UseOfContext, language: Language) -> Iterator[Section]:
    if "answer" not in use.conditions:
        return
    asked = use.conditions[["question", "asked", "right_answer"]].drop_duplicates().head(EXAMPLES)
    written = use.conditions.pivot(index="question", columns="condition", values="answer")
    written = written[[name for name in CONDITIONS if name in written]]
    shown = asked.join(written.rename(columns=lambda name: word(name, language)), on="question")
    yield Section(
        key="examples",
        title=message("examples.title", language),
        text=(message("examples.text", language, count=len(shown)),),
        tables=(
            _table(shown, message("examples.caption", language), source="tables/conditions.csv", language=language),
        ),
    )


def _table(frame: pd.DataFrame, caption: str, *, source: str, language: Language, whole: bool = False) -> Table:
    columns = [list(frame[name]) for name in frame.columns]
    for name, values in zip(frame.columns, columns, strict=True):
        if name in _NAMES:
            values[:] = [word(str(value), language) for value in values]
    rows = tuple(tuple(cell_of(value) for value in row) for row in zip(*columns, strict=True))
    headings = tuple(heading(str(name), language) for name in frame.columns)
    return Table(caption=caption, columns=headings, rows=rows, source=source, whole=whole)


def cell_of(value: object) -> str | float | int | None:
    """A value of a pandas table as a page's table takes it: None for what is not known."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return None
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, float | np.floating) else str(value)


def table_rows(frame: pd.DataFrame, columns: Sequence[str]) -> list[list[str]]:
    """Give rows of words for a terminal, numbers to three figures, a dash for one that is not known."""
    chosen = frame[list(columns)].itertuples(index=False)
    return [[_shown(value) for value in row] for row in chosen]


def _shown(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return "–" if np.isnan(value) else f"{value:.3g}"
