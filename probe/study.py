"""The look at one model or several: cases in, a run folder out. Stages meet in files, so that numbers can be traced."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from probe.capture import capture_prepared, prepare
from probe.captures import CaptureOptions, Prepared
from probe.cases import CaseSet
from probe.contrasts import NEUTRAL
from probe.experiments.causes import CutEffects, cut_effects, edge_of, head_cut_effects
from probe.experiments.reference import TwinPlan, random_twin, twin_plan
from probe.findings import (
    Floats,
    Observed,
    crossed_frame,
    crossed_pairs,
    cut_observation_frame,
    observation_frame,
    results_of,
)
from probe.measures.focus import focus, merged_row
from probe.measures.states import context_embedding, default_readout, read_state
from probe.messages import Language
from probe.models import LoadedModel, facts_of
from probe.pages import page_of
from probe.polysemy import (
    EffectSizes,
    contrast_results,
    cut_contrasts,
    effect_sizes,
    head_contrasts,
    sense_states,
    state_frame,
)
from probe.polysemy_story import Polysemy
from probe.report import render_report
from probe.routes import Route, route_of
from probe.runs import RunFolder
from probe.selfcheck import CheckReport, check_model
from probe.story import Page, Story
from probe.strongest import HeadScore, head_scores, plan_heads, score_results

Progress = Callable[[str, int, int], None]  # stage, done, total

_CHUNK = 256  # cases of one chunk of the observations table


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """What to look at, and within which bounds; goes into config.yaml as it is."""

    language: Language = "en"
    layers: frozenset[int] | None = None
    heads: frozenset[int] | None = None
    cut: bool = True
    state_cases: int = 4000
    """With more cases states are not kept, since they would fill the memory."""
    cut_cases: int = 500
    """At most so many cases have their edges cut in every layer at once, spread over the set: three passes a case."""
    layer_cut_cases: int = 48
    """At most so many of these are also cut layer by layer: 2 × layers passes a case."""
    head_cut_cases: int = 24
    """In at most so many the edge is also cut in single heads, the strongest and as many others: 32 passes a case."""
    reference_cases: int = 96
    """At most so many cases are also run through a model of random weights; 0 leaves the reference out."""
    sentences: int = 500
    """At most so many sentences stand on the page."""
    seed: int = 0
    batch_tokens: int = 4096
    memory_budget: int | None = None
    cut_to_fit: bool = False
    cache: Path | None = None

    def options(self) -> CaptureOptions:
        """The part that captures read."""
        return CaptureOptions(
            layers=self.layers,
            heads=self.heads,
            states=False,
            batch_tokens=self.batch_tokens,
            memory_budget=self.memory_budget,
            cut_to_fit=self.cut_to_fit,
            cache=self.cache,
        )

    def shown(self) -> dict[str, object]:
        """The settings as config.yaml has them: no path of this machine."""
        values = {name: sorted(v) if isinstance(v, frozenset) else v for name, v in asdict(self).items()}
        return {**values, "cache": self.cache is not None}


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
    same = sum(name == loaded.name or name.startswith(f"{loaded.name} (") for name in names)
    return replace(loaded, name=f"{loaded.name} ({same + 1})") if same else loaded


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
    with folder.stage("statistics"):
        polysemy = polysemy_of(observed, language=settings.language)
        results = [results_of(observed), contrast_results(observed, polysemy.heads, polysemy.cuts)]
        if scores and observed.cuts:
            results.append(score_results(observed, scores, stack=observed.cuts.stack))
    with folder.stage("reference"):
        own = _effect_sizes(loaded, items, settings=settings, folder=folder)
    return Story(
        model=facts_of(loaded), case_set=case_set, observed=observed, check=check, route=route,
        results=pd.concat([frame for frame in results if len(frame)], ignore_index=True), crossed=crossed,
        language=settings.language, polysemy=polysemy, scores=scores, reference=own,
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
    crossed = [story.crossed.assign(model=story.model.name) for story in stories if len(story.crossed)]
    cases = [case_frame(story.observed.items).assign(model=story.model.name) for story in stories]
    for name, frames in (("states", states), ("crossed", crossed), ("cases", cases)):
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


def observe(
    loaded: LoadedModel,
    route: Route,
    items: tuple[Prepared, ...],
    *,
    settings: StudySettings,
    folder: RunFolder,
    append: Callable[[pd.DataFrame], None],
    tell: Progress,
) -> Observed:
    """Everything measured on one model's prepared cases; observations go to `append` as they come."""
    values = np.empty((0, 0, 0, 0), dtype=np.float32)  # [case, measure, layer, head]
    target_rows: dict[int, Floats] = {}
    cue_rows: dict[int, Floats] = {}
    layers, heads = route.layers, tuple(range(route.heads))
    with_states = _names_senses(items) and len(items) <= settings.state_cases
    readout = default_readout(causal=loaded.kind == "decoder")
    states: list[Floats] = []
    contexts: list[Floats] = []
    with folder.stage("capture"):
        stream = capture_prepared(
            loaded, items, options=replace(settings.options(), states=with_states), route=route,
            progress=lambda done, total: tell("capture", done, total),
        )  # fmt: skip
        for place, one in enumerate(stream):
            found = focus(one)
            if place == 0:
                layers, heads = one.layers, one.heads
                values = np.empty((len(items), *found.shape), dtype=np.float32)
            values[place] = found
            if place < settings.sentences:
                target_rows[place] = merged_row(one, one.target)
                edge = edge_of(items[place], causal=loaded.kind == "decoder")
                if edge is not None and edge.direction == "cue → target":
                    cue_rows[place] = merged_row(one, edge.query)
            if with_states:
                states.append(read_state(one, readout))
                contexts.append(context_embedding(one))
            if (place + 1) % _CHUNK == 0 or place + 1 == len(items):
                start = place // _CHUNK * _CHUNK
                append(
                    observation_frame(
                        values[start : place + 1], model=loaded.name, layers=layers, heads=heads,
                        cases=[item.case.id for item in items[start : place + 1]], seed=settings.seed,
                    )
                )  # fmt: skip
    with folder.stage("cut edges"):
        chosen = _spread(items, settings.cut_cases)
        cuts = _cut(loaded, route, [items[place] for place in chosen], settings, tell) if chosen else None
    observed = Observed(
        model=loaded.name, items=items, layers=layers, heads=heads, focus=values, cuts=cuts,
        cut_cases=tuple(chosen), target_rows=target_rows, cue_rows=cue_rows, seed=settings.seed, readout=readout,
        states=np.stack(states) if with_states else None, context=np.stack(contexts) if with_states else None,
    )  # fmt: skip
    if cuts is not None:
        append(cut_observation_frame(observed, cuts))
    return observed


def _names_senses(items: Sequence[Prepared]) -> bool:
    return len({item.case.sense for item in items} - {"", NEUTRAL}) > 1


def _cut(
    loaded: LoadedModel, route: Route, items: Sequence[Prepared], settings: StudySettings, tell: Progress
) -> CutEffects | None:
    if not settings.cut or route.path != "tap":
        return None
    return cut_effects(
        loaded, route, items, batch_tokens=settings.batch_tokens, by_layer=_spread(items, settings.layer_cut_cases),
        progress=lambda done, total: tell("cut edges", done, total),
    )  # fmt: skip


def _head_scores(
    loaded: LoadedModel, observed: Observed, settings: StudySettings, tell: Progress
) -> tuple[HeadScore, ...]:
    """The strongest heads and as many others, judged by mass and by cutting the edge in each alone."""
    plan = plan_heads(observed, cases=settings.head_cut_cases) if observed.cuts is not None else None
    if plan is None:
        return ()
    cuts = head_cut_effects(
        loaded, [observed.items[place] for place in plan.cases], plan.heads, batch_tokens=settings.batch_tokens,
        progress=lambda done, total: tell("single heads", done, total),
    )  # fmt: skip
    return head_scores(observed, plan, cuts)


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
    return cut_effects(loaded, route, own, controls=others, by_layer=(), batch_tokens=settings.batch_tokens)


def _spread(items: Sequence[Prepared], most: int) -> list[int]:
    """Places of at most `most` cases with a cue, evenly over the set, so that no part of it is favoured."""
    places = [place for place, item in enumerate(items) if item.cues]
    if len(places) <= most:
        return places
    return [places[int(index)] for index in np.linspace(0, len(places) - 1, most)]


def case_frame(items: Sequence[Prepared]) -> pd.DataFrame:
    """The cases table: one row a case, as this model's tokenizer has it."""
    return pd.DataFrame(
        {
            "case": [item.case.id for item in items],
            "text": [item.case.text for item in items],
            "target": [item.case.target.cut(item.case.text) for item in items],
            "cues": ["|".join(cue.cut(item.case.text) for cue in item.case.cues) for item in items],
            "sense": [item.case.sense for item in items],
            "group": [item.case.group for item in items],
            "tokens": [len(item.tokens.ids) for item in items],
            "target tokens": [len(item.target) for item in items],
            "cut to fit": [item.was_cut for item in items],
        }
    )


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
