"""The look at one model or several: cases in, a run folder out. Stages meet in files, so that numbers can be traced."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pandas as pd
import torch

from probe.capture import prepare
from probe.captures import Prepared
from probe.cases import CaseSet
from probe.cutsenses import cut_sense_results, cut_senses
from probe.experiments.causes import CutEffects, cut_effects, head_cut_effects
from probe.experiments.readings import Reading, reading_frame, word_readings
from probe.experiments.reference import TwinPlan, random_twin, twin_plan
from probe.findings import (
    Observed,
    crossed_frame,
    crossed_pairs,
    results_of,
)
from probe.messages import Language
from probe.models import LoadedModel, facts_of
from probe.observing import Progress, StudySettings, case_frame, observe
from probe.pages import page_of
from probe.polysemy import (
    EffectSizes,
    contrast_results,
    cut_contrasts,
    effect_sizes,
    head_contrasts,
    sense_states,
    state_frame,
    word_frame,
)
from probe.polysemy_story import Polysemy
from probe.report import render_report
from probe.routes import Route, route_of
from probe.runs import RunFolder
from probe.selfcheck import CheckReport, check_model
from probe.story import Page, Story
from probe.strongest import HeadScore, head_scores, plan_heads, score_results


def run_report(
    models: LoadedModel | Iterable[LoadedModel],
    case_set: CaseSet,
    *,
    settings: StudySettings,
    folder: RunFolder,
    progress: Progress | None = None,
) -> tuple[CheckReport, ...]:
    """Look at every case, write observations, results, figures, page and manifest; give each model's self-check.

    Several models are looked at one after another. From a generator that loads them, each is let go before the next
    comes, and before the random weights of its reference do, so that memory holds one at a time. Raises what
    `capture` raises; nothing is left under the folder's name then.
    """
    stories: list[Story] = []
    with folder.stream_table("observations") as append:
        for loaded in [models] if isinstance(models, LoadedModel) else models:
            named = _named_apart(loaded, [story.model.name for story in stories])
            tell = _teller(progress, named.name)
            story = _look(named, case_set, settings=settings, folder=folder, append=append, tell=tell)
            plan = twin_plan(named)
            del loaded, named
            stories.append(_with_twin(story, plan, settings=settings, folder=folder))
    _write_tables(folder, stories)
    _record(folder, stories, settings)
    with folder.stage("page"):
        write_page(folder, page_of(stories), language=settings.language)
    return tuple(story.check for story in stories)


def _named_apart(loaded: LoadedModel, names: Sequence[str]) -> LoadedModel:
    """Two folders may bear one name; the model column must tell them apart."""
    if loaded.name not in names:
        return loaded
    numbered = (f"{loaded.name} ({number})" for number in count(2))
    return replace(loaded, name=next(name for name in numbered if name not in names))


def _teller(progress: Progress | None, name: str) -> Progress:
    if progress is None:
        return lambda stage, done, total: None
    return lambda stage, done, total: progress(f"{name}: {stage}", done, total)


def _look(
    loaded: LoadedModel,
    case_set: CaseSet,
    *,
    settings: StudySettings,
    folder: RunFolder,
    append: Callable[[pd.DataFrame], None],
    tell: Progress,
) -> Story:
    """All that is found out about one model; its reference holds the model's own side only."""
    with folder.stage("self-check"):
        route = route_of(loaded)
        check = check_model(loaded)
    with folder.stage("tokenise"):
        items = prepare(loaded, case_set.cases, cut=settings.cut_to_fit)
    observed = observe(loaded, route, items, settings=settings, folder=folder, append=append, tell=tell)
    pairs = crossed_pairs(items, most=settings.sentences)
    with folder.stage("crossed pairs"):
        crossed = crossed_frame(observed, pairs, _crossed_effects(loaded, route, items, pairs, settings))
    with folder.stage("single heads"):
        scores = _head_scores(loaded, observed, settings, tell)
    with folder.stage("readings"):
        readings = _readings(loaded, route, items, settings, tell)
    with folder.stage("statistics"):
        polysemy = polysemy_of(observed, language=settings.language)
        results = [results_of(observed), contrast_results(observed, polysemy.heads, polysemy.cuts)]
        under_cuts = cut_senses(observed)
        if under_cuts is not None:
            results.append(cut_sense_results(observed, under_cuts))
        if scores and observed.cuts:
            results.append(score_results(observed, scores, stack=observed.cuts.stack))
    with folder.stage("reference"):
        own = _effect_sizes(loaded, items, settings=settings, folder=folder)
    return Story(
        model=facts_of(loaded), case_set=case_set, observed=observed, check=check, route=route,
        results=pd.concat([frame for frame in results if len(frame)], ignore_index=True), crossed=crossed,
        language=settings.language, polysemy=polysemy, scores=scores, under_cuts=under_cuts, readings=readings,
        reference=own,
    )  # fmt: skip


def _with_twin(story: Story, plan: TwinPlan, *, settings: StudySettings, folder: RunFolder) -> Story:
    """The story with the same numbers of random weights beside the model's own."""
    if not story.reference:
        return story
    with folder.stage("reference"):
        twin = random_twin(plan, seed=settings.seed)
        sizes = _effect_sizes(twin, story.observed.items, settings=settings, folder=folder)
    return replace(story, reference=(*story.reference, *sizes))


def _write_tables(folder: RunFolder, stories: Sequence[Story]) -> None:
    """The tables of all models, one file each."""
    folder.write_table("results", pd.concat([story.results for story in stories], ignore_index=True))
    states = [state_frame(s.model.name, s.polysemy.states) for s in stories if s.polysemy.states is not None]
    words = [word_frame(s.model.name, s.polysemy.states) for s in stories if s.polysemy.states is not None]
    readings = [reading_frame(s.readings, model=s.model.name) for s in stories if s.readings]
    crossed = [story.crossed.assign(model=story.model.name) for story in stories if len(story.crossed)]
    cases = [case_frame(story.observed.items).assign(model=story.model.name) for story in stories]
    tables = {"states": states, "words": words, "readings": readings, "crossed": crossed, "cases": cases}
    for name, frames in tables.items():
        if frames:
            folder.write_table(name, pd.concat(frames, ignore_index=True), formats=("csv",))


def polysemy_of(observed: Observed, *, language: Language) -> Polysemy:
    """The numbers about senses, as far as the cases allow any."""
    states = None
    if observed.states is not None and observed.context is not None:
        states = sense_states(
            observed.items, observed.states, observed.context, readout=observed.readout, seed=observed.seed
        )
    return Polysemy(
        observed=observed, heads=head_contrasts(observed), cuts=cut_contrasts(observed), states=states,
        language=language,
    )  # fmt: skip


def _effect_sizes(
    loaded: LoadedModel, items: tuple[Prepared, ...], *, settings: StudySettings, folder: RunFolder
) -> tuple[EffectSizes, ...]:
    """A few numbers on whole groups of the cases, to stand beside those of random weights; none where not asked for."""
    some = _whole_groups(items, settings.reference_cases)
    if not some:
        return ()
    small = replace(settings, sentences=0, layer_cut_cases=0, cache=None)
    observed = observe(
        loaded, route_of(loaded), some, settings=small, folder=folder,
        append=lambda frame: None, tell=lambda stage, done, total: None,
    )  # fmt: skip
    return (effect_sizes(observed, polysemy_of(observed, language=settings.language).states),)


def _whole_groups(items: Sequence[Prepared], most: int) -> tuple[Prepared, ...]:
    """At most `most` cases, spread over the set, no group torn apart."""
    groups: dict[str, list[Prepared]] = {}
    for place, item in enumerate(items):
        groups.setdefault(item.case.group or f"case {place}", []).append(item)
    members = list(groups.values())
    share = min(1.0, most / max(len(items), 1))
    chosen = (
        members
        if share == 1
        else [members[int(i)] for i in np.linspace(0, len(members) - 1, int(len(members) * share))]
    )
    return tuple(item for group in chosen for item in group)


def write_page(folder: RunFolder, page: Page, *, language: Language) -> None:
    """The page and its pictures, as files of the run folder."""
    for name, png in page.pictures.items():
        folder.write_bytes(f"figures/{name}", png)
    html = render_report(
        page.sections, title=page.title, subtitle=page.subtitle, language=language,
        manifest_rows=page.provenance,
    )  # fmt: skip
    folder.write_text("report.html", html)


def _head_scores(
    loaded: LoadedModel, observed: Observed, settings: StudySettings, tell: Progress
) -> tuple[HeadScore, ...]:
    """The strongest heads and as many others, judged by mass and by cutting the edge in each alone."""
    plan = plan_heads(observed, cases=settings.head_cut_cases) if observed.cuts is not None else None
    if plan is None:
        return ()
    cuts = head_cut_effects(
        loaded, [observed.items[place] for place in plan.cases], plan.heads,
        batch_tokens=settings.tokens_on(loaded.device),
        progress=lambda done, total: tell("single heads", done, total),
    )  # fmt: skip
    return head_scores(observed, plan, cuts)


def _readings(
    loaded: LoadedModel, route: Route, items: Sequence[Prepared], settings: StudySettings, tell: Progress
) -> tuple[Reading, ...]:
    """What the targets of cases without cues read."""
    if not settings.cut or route.path != "tap" or not settings.reading_cases:
        return ()
    return word_readings(
        loaded, route, items, most_cases=settings.reading_cases, batch_tokens=settings.tokens_on(loaded.device),
        memory_budget=settings.memory_budget, progress=lambda done, total: tell("readings", done, total),
    )  # fmt: skip


def _crossed_effects(
    loaded: LoadedModel,
    route: Route,
    items: Sequence[Prepared],
    pairs: Sequence[tuple[int, int]],
    settings: StudySettings,
) -> CutEffects | None:
    if not pairs or not settings.cut or route.path != "tap":
        return None
    others = [tuple(i for words in items[other].cues for i in words) for _, other in pairs]
    own = [items[place] for place, _ in pairs]
    return cut_effects(loaded, route, own, controls=others, by_layer=(), batch_tokens=settings.tokens_on(loaded.device))


def _record(folder: RunFolder, stories: Sequence[Story], settings: StudySettings) -> None:
    """What decides the numbers, into config and manifest; of several models, lists in their order."""
    case_set, models = stories[0].case_set, [story.model for story in stories]

    def listed(values: Sequence[Any]) -> Any:
        return values[0] if len(values) == 1 else list(values)

    folder.write_config(
        {
            **settings.shown(),
            "model": listed([model.name for model in models]),
            "cases": case_set.name,
            "device": listed([model.device for model in models]),
            "dtype": listed([model.dtype for model in models]),
        }
    )
    facts = [{"name": model.name, "fingerprint": model.fingerprint, **model.origin} for model in models]
    checks = [{"path": story.check.path, **{item.name: item.status for item in story.check.items}} for story in stories]
    names = [model.name for model in models]
    folder.record("model", facts[0] if len(facts) == 1 else dict(zip(names, facts, strict=True)))
    folder.record("data", {"name": case_set.name, "sha256": case_set.digest, "cases": len(case_set.cases)})
    folder.record("seeds", [settings.seed])
    folder.record("threads", torch.get_num_threads())
    folder.record("notes", [note for model in models for note in model.notes])
    folder.record("check", checks[0] if len(checks) == 1 else dict(zip(names, checks, strict=True)))
