"""A comparison as a page: the verdict, what could be shown, task, forgetting, attention, causes, cost, examples."""

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from finetune.compare.gathered import Facts, Gathered
from finetune.compare.items import BASE, MEASURES, Family
from finetune.compare.licences import OURS
from finetune.compare.markdown import markdown, picture_files
from finetune.compare.messages import Language, sentence, word
from finetune.compare.page_messages import named, page_text
from finetune.compare.pictures import (
    DIFFERENCES,
    RESULTS,
    VALUES,
    forest_picture,
    map_pictures,
    separation_picture,
    undrawn_maps,
)
from finetune.compare.power import SEEDS_TO_CLAIM
from finetune.compare.statistics import changed
from finetune.compare.tables import (
    GROUPS,
    claim_table,
    contrast_name,
    contrast_table,
    cost_table,
    difference_table,
    groups_of,
    leading_measure,
    measure_names,
    rows_of_group,
    state_rows,
    table_of,
    value_table,
    verdict_frame,
    verdict_matrix,
    visible_table,
)
from finetune.compare.verdicts import claims
from finetune.tasks import READING
from probe import RunFolder, Section, Table, render_report

EXAMPLES = 8  # of each kind
FAMILIES: tuple[Family, ...] = ("task", "forgetting", "attention", "causes")
_CLAIM = ("lora-attention", "lora-random")


def page_of(gathered: Gathered, language: Language) -> str:
    """Give the comparison as one page."""
    return _html(gathered, sections_of(gathered, language), language)


def write_comparison(gathered: Gathered, run: RunFolder, *, language: Language) -> None:
    """Write tables, pictures, the page as HTML and as Markdown, and the settings to a run folder."""
    facts, sections = gathered.facts, sections_of(gathered, language)
    for name, frame in tables_of(gathered, language).items():
        if len(frame):
            run.write_table(name, frame)
    for file, picture in picture_files(sections).items():
        run.write_bytes(file, picture.png)
    run.record("seeds", {"resampling": gathered.seed, "training": list(facts.seeds)})
    run.record("model", facts.model)
    terms = [{"name": one.name, "role": one.role, "licence": one.licence} for one in facts.terms]
    run.record("data", {"inputs": dict(facts.inputs), "terms": terms, "non_commercial": list(facts.marked)})
    run.record("notes", [*([_mark(facts, "en")] if facts.marked else []), *facts.notes])
    run.write_config(facts.config)
    run.write_text("report.html", _html(gathered, sections, language))
    text = markdown(
        sections, title=page_text("title", language), subtitle=_subtitle(gathered, language),
        foot=_foot(facts, language), made=page_text("made", language), language=language,
    )  # fmt: skip
    run.write_text("report.md", text)


def tables_of(gathered: Gathered, language: Language) -> dict[str, pd.DataFrame]:
    """Every table of the run folder by its name; those without rows are not written."""
    facts = gathered.facts
    return {
        "verdicts": verdict_frame(gathered.verdicts, language), "results": gathered.results, "values": gathered.values,
        "visible": gathered.visible, "items": gathered.items, "attention": gathered.means,
        "attention_differences": gathered.differences, "cost": gathered.cost, "changed": changed_items(gathered),
        "questions": gathered.questions, "written": gathered.written, "passages": gathered.passages,
        "jobs": state_rows(facts.jobs, "en"), "inputs": _pairs_frame(facts.inputs, "file", "sha256"),
        "versions": _pairs_frame(facts.versions, "name", "version"), "terms": _terms_frame(facts),
    }  # fmt: skip


def sections_of(gathered: Gathered, language: Language) -> list[Section]:
    """Give the page's sections; a part that was not measured has none."""
    found = [_verdict(gathered, language), _visible(gathered, language)]
    for family in FAMILIES:
        found += _family(gathered, family, language)
    found += _cost(gathered, language)
    found += _changed(gathered, language)
    found += _passages(gathered, language)
    found.append(_how(gathered.facts, language))
    return found


def changed_items(gathered: Gathered) -> pd.DataFrame:
    """Items whose answer changes between right and wrong, for each contrast whose examples are shown."""
    found = [
        changed(gathered.items, arm, against).assign(arm=arm, against=against)
        for arm, against in _told_by_examples(gathered)
    ]  # fmt: skip
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


# ---- head and foot -------------------------------------------------------------------------------------------------


def _html(gathered: Gathered, sections: Sequence[Section], language: Language) -> str:
    return render_report(
        sections, title=page_text("title", language), subtitle=_subtitle(gathered, language), language=language,
        manifest_rows=_foot(gathered.facts, language), made_note=page_text("made", language),
    )  # fmt: skip


def _subtitle(gathered: Gathered, language: Language) -> str:
    facts, items = gathered.facts, gathered.items
    task = items[items["measure"].isin([name for name, one in MEASURES.items() if one.family == "task"])]
    counted = task if len(task) else items
    told = page_text(
        "subtitle", language, model=facts.model, task=named(facts.task, language), arms=len(facts.arms),
        seeds=", ".join(map(str, facts.seeds)), items=counted["item"].nunique(), units=counted["unit"].nunique(),
    )  # fmt: skip
    return f"{told} · {page_text('marked.short', language)}" if facts.marked else told


def _foot(facts: Facts, language: Language) -> tuple[tuple[str, str], ...]:
    between = "、" if language == "zh" else ", "
    rows = {
        "model": facts.model, "task": named(facts.task, language),
        "arms": between.join(word(arm, language) for arm in facts.arms), "seeds": ", ".join(map(str, facts.seeds)),
        "command": facts.command, "versions": ", ".join(f"{name} {value}" for name, value in facts.versions.items()),
    }  # fmt: skip
    if facts.marked:
        rows["terms"] = _mark(facts, language)
    return tuple((page_text(f"foot.{name}", language), value) for name, value in rows.items() if value)


def _mark(facts: Facts, language: Language) -> str:
    return page_text("marked", language, names=("、" if language == "zh" else ", ").join(facts.marked))


# ---- sections --------------------------------------------------------------------------------------------------------


def _verdict(gathered: Gathered, language: Language) -> Section:
    verdicts, source = gathered.verdicts, "tables/verdicts.csv"
    tables = [contrast_table(verdicts, source=source, language=language)]
    tables.append(claim_table(claims(verdicts), source=source, language=language))
    tables.append(verdict_matrix(verdicts, source=source, language=language))
    return Section(
        key="verdict", title=page_text("verdict.title", language), text=tuple(_told_of_verdicts(gathered, language)),
        tables=tuple(table for table in tables if table is not None and table.rows),
    )  # fmt: skip


def _told_of_verdicts(gathered: Gathered, language: Language) -> Iterator[str]:
    claimed, leading = claims(gathered.verdicts), leading_measure(gathered.verdicts)
    if leading is None:
        yield page_text("verdict.unmeasured", language)
    yield from (sentence(one, language) for one in claimed if (one.measure, one.part) == leading)
    if not claimed:
        yield page_text("verdict.no_claim", language)
    if gathered.facts.marked:
        yield _mark(gathered.facts, language)
    if gathered.facts.task in READING and BASE in gathered.facts.arms:
        yield page_text("verdict.head", language)
    yield page_text("verdict.how", language)
    seeds = int(gathered.results["seeds"].max()) if len(gathered.results) else 0
    if seeds:
        yield page_text("verdict.seeds" if seeds < SEEDS_TO_CLAIM else "verdict.across", language, seeds=seeds)


def _visible(gathered: Gathered, language: Language) -> Section:
    table = visible_table(gathered.visible, source="tables/visible.csv", language=language)
    key = "visible.text" if table.rows else "visible.none"
    return Section(
        key="visible", title=page_text("visible.title", language), text=(page_text(key, language),),
        tables=(table,) if table.rows else (),
    )  # fmt: skip


def _family(gathered: Gathered, family: Family, language: Language) -> Iterator[Section]:
    groups, mapped = groups_of(family, gathered.values), family == "attention" and len(gathered.maps) > 0
    if not groups and not mapped:
        return
    text, tables, figures = [page_text(f"{family}.text", language)], [], []
    for group in groups:
        values = rows_of_group(gathered.values, family, group)
        results = rows_of_group(gathered.results, family, group)
        measures = measure_names(values, language)
        if group == "separation":
            figures.append(separation_picture(values, language=language))
        else:
            verdicts = [one for one in gathered.verdicts if one.family == family and GROUPS[one.measure] == group]
            unit = page_text(f"group.{group}", language)
            figures.append(forest_picture(verdicts, unit=unit, language=language))
            caption = page_text("caption.values", language, measures=measures)
            tables.append(value_table(values, caption, source=VALUES, language=language))
        tables += _differences(results, language)
        text += _not_compared(results, language)
    if mapped:
        figures += map_pictures(gathered.maps, gathered.differences, language=language)
        text += _told_of_maps(gathered, language)
        tables.append(_compared_maps(gathered, language))
    yield Section(
        key=family, title=page_text(f"{family}.title", language), text=tuple(text),
        tables=tuple(table for table in tables if table.rows),
        figures=tuple(figure for figure in figures if figure is not None),
    )  # fmt: skip


def _differences(results: pd.DataFrame, language: Language) -> Iterator[Table]:
    """A table a measure; of one that is told layer by layer one for all layers."""
    for _, rows in results.groupby("measure", sort=False):
        caption = page_text("caption.differences", language, measures=measure_names(rows, language))
        yield difference_table(rows, caption, source=RESULTS, language=language)


def _not_compared(results: pd.DataFrame, language: Language) -> Iterator[str]:
    """Count the contrasts that have nothing to be compared by."""
    rows = results[results["missing"] != ""].drop_duplicates(["measure", "arm", "against"])
    if len(rows):
        counts = rows["measure"].value_counts(sort=False).items()
        names = [page_text("apart.count", language, measure=word(str(name), language), count=n) for name, n in counts]
        yield page_text("apart", language, names=("、" if language == "zh" else ", ").join(names), file=RESULTS)


def _told_of_maps(gathered: Gathered, language: Language) -> Iterator[str]:
    yield page_text("maps.text", language)
    if more := undrawn_maps(gathered.differences):
        yield page_text("maps.more", language, count=more, file=DIFFERENCES)


def _compared_maps(gathered: Gathered, language: Language) -> Table:
    """How many items each difference of maps is over."""
    keys = ["role", "arm", "against"]
    rows = gathered.differences.groupby(keys, sort=False, as_index=False)[["items", "items_left_out", "seeds"]].max()
    frame = pd.DataFrame(
        {
            "role": [named(role, language) for role in rows["role"]],
            "contrast": [contrast_name(*pair, language) for pair in zip(rows["arm"], rows["against"], strict=True)],
            "items": rows["items"], "left out": rows["items_left_out"], "seeds": rows["seeds"],
        }
    )  # fmt: skip
    return table_of(frame, page_text("maps.caption", language), source=DIFFERENCES, language=language)


def _cost(gathered: Gathered, language: Language) -> Iterator[Section]:
    if len(gathered.cost):
        table = cost_table(gathered.cost, gathered.facts.arms, source="tables/cost.csv", language=language)
        text = page_text("cost.text", language)
        yield Section(key="cost", title=page_text("cost.title", language), text=(text,), tables=(table,))


def _told_by_examples(gathered: Gathered) -> tuple[tuple[str, str], ...]:
    """The claim; and against base the supervised arm, or else the trained one, or any."""
    there = set(gathered.items.loc[gathered.items["measure"] == "accuracy", "arm"])
    furthest = next((arm for arm in ("lora-attention", "lora", *gathered.facts.arms) if arm in there - {"base"}), None)
    wanted = [_CLAIM] + ([(furthest, "base")] if furthest is not None else [])
    return tuple(pair for pair in wanted if set(pair) <= there)


def _changed(gathered: Gathered, language: Language) -> Iterator[Section]:
    text, tables = [], []
    frame, told_by = changed_items(gathered), _told_by_examples(gathered)
    for arm, against in told_by:
        rows = frame[(frame["arm"] == arm) & (frame["against"] == against)]
        right, wrong = rows[rows["to_right"] > rows["to_wrong"]], rows[rows["to_wrong"] > rows["to_right"]]
        told = {"one": word(arm, language), "other": word(against, language)}
        counts = {"right": len(right), "wrong": len(wrong)}
        text.append(page_text("changed.text" if len(rows) else "changed.none", language, **told, **counts))
        for key, chosen in (("changed.to_right", right), ("changed.to_wrong", wrong)):
            shown = _with_texts(gathered, chosen.head(EXAMPLES), key.removeprefix("changed."))
            caption = page_text(key, language, **told)
            tables.append(table_of(shown, caption, source="tables/changed.csv", language=language))
    if told_by:
        yield Section(
            key="changed", title=page_text("changed.title", language), text=(*text, page_text("changed.how", language)),
            tables=tuple(table for table in tables if table.rows),
        )  # fmt: skip


def _with_texts(gathered: Gathered, rows: pd.DataFrame, direction: str) -> pd.DataFrame:
    """Examples with their question, its answers, and what both arms wrote with their first seed."""
    texts = gathered.questions.set_index("item").reindex(rows["item"])
    frame = pd.DataFrame({"item": rows["item"].tolist()})
    for column, name in (("asked", "asked"), ("right", "right answer"), ("wrong", "wrong answer")):
        if texts[column].notna().any():
            frame[name] = texts[column].tolist()
    for column, name in (("against", "before"), ("arm", "after")):
        written = _written(gathered, rows, column)
        if any(text is not None for text in written):
            frame[name] = written
    frame["seeds"] = [
        f"{moved} / {seeds}" for moved, seeds in zip(rows[direction], rows["seeds"], strict=True)
    ]  # fmt: skip
    return frame


def _written(gathered: Gathered, rows: pd.DataFrame, column: str) -> list[str | None]:
    """What an arm wrote to each item with the first seed that it has."""
    first = gathered.written.sort_values("seed", kind="stable").drop_duplicates(["arm", "item"])
    found = {(arm, item): text for arm, item, text in zip(first["arm"], first["item"], first["text"], strict=True)}
    return [found.get(key) for key in zip(rows[column], rows["item"], strict=True)]


def _passages(gathered: Gathered, language: Language) -> Iterator[Section]:
    if not len(gathered.passages):
        return
    items = list(dict.fromkeys(gathered.passages["item"]))[:EXAMPLES]
    rows = gathered.passages[gathered.passages["item"].isin(items)]
    asked = dict(zip(gathered.questions["item"], gathered.questions["asked"], strict=True))
    frame = pd.DataFrame({"asked": [asked.get(item, item) for item in rows["item"]]})
    frame = frame.join(rows[["place", "document", "passage"]].reset_index(drop=True))
    caption = page_text("passages.caption", language)
    yield Section(
        key="passages", title=page_text("passages.title", language),
        text=(page_text("passages.text", language, count=len(items)),),
        tables=(table_of(frame, caption, source="tables/passages.csv", language=language),),
    )  # fmt: skip


def _how(facts: Facts, language: Language) -> Section:
    text = [page_text("how.text", language)]
    if facts.unfinished:
        names = ", ".join(facts.unfinished)
        text.append(page_text("how.unfinished", language, count=len(facts.unfinished), names=names))
    frames = {
        "licences": ("terms", _terms_shown(facts, language)), "jobs": ("jobs", state_rows(facts.jobs, language)),
        "inputs": ("inputs", _pairs_frame(facts.inputs, "file", "SHA-256")),
        "versions": ("versions", _pairs_frame(facts.versions, "name", "version")),
    }  # fmt: skip
    tables = [
        table_of(frame, page_text(f"how.{name}", language), source=f"tables/{file}.csv", language=language)
        for name, (file, frame) in frames.items()
        if len(frame)
    ]
    return Section(
        key="how", title=page_text("how.title", language), text=(*text, *facts.notes), tables=tuple(tables)
    )  # fmt: skip


def _terms_frame(facts: Facts) -> pd.DataFrame:
    rows = [(one.role, one.name, one.licence, one.non_commercial) for one in facts.terms]
    return pd.DataFrame(rows, columns=["role", "name", "licence", "non_commercial"])


def _terms_shown(facts: Facts, language: Language) -> pd.DataFrame:
    rows = [
        (
            page_text(f"terms.{one.role}", language), one.name, _licence(one.licence, language),
            page_text("marked.short", language) if one.non_commercial else None,
        )
        for one in facts.terms
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["kind", "name", "terms", "mark"])
    return frame if facts.marked else frame.drop(columns="mark")


def _licence(licence: str, language: Language) -> str:
    if not licence:
        return page_text("terms.unknown", language)
    return page_text("terms.ours", language) if licence == OURS else licence


def _pairs_frame(given: Mapping[str, str], name: str, value: str) -> pd.DataFrame:
    return pd.DataFrame(list(given.items()), columns=[name, value])
