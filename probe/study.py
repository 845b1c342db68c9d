"""The look at one model: cases in, a run folder out. Stages meet in files, so that each number can be traced."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from probe.capture import capture_prepared, prepare
from probe.captures import CaptureOptions, Prepared
from probe.cases import CaseSet
from probe.contrasts import NEUTRAL
from probe.experiments.causes import CutEffects, cut_effects, edge_of
from probe.experiments.reference import random_twin
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
from probe.models import LoadedModel
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
from probe.story import Page, Story, page_of

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
    loaded: LoadedModel,
    case_set: CaseSet,
    *,
    settings: StudySettings,
    folder: RunFolder,
    progress: Progress | None = None,
) -> CheckReport:
    """Look at every case, write observations, results, figures, page and manifest; give the self-check.

    Raises what `capture` raises; nothing is left under the folder's name then.
    """
    tell = progress or (lambda stage, done, total: None)
    with folder.stage("self-check"):
        route = route_of(loaded)
        check = check_model(loaded)
    with folder.stage("tokenise"):
        items = prepare(loaded, case_set.cases, cut=settings.cut_to_fit)
    with folder.stream_table("observations") as append:
        observed = observe(loaded, route, items, settings=settings, folder=folder, append=append, tell=tell)
    pairs = crossed_pairs(items, most=settings.sentences)
    with folder.stage("crossed pairs"):
        crossed = crossed_frame(observed, pairs, _crossed_effects(loaded, route, items, pairs, settings))
    with folder.stage("statistics"):
        polysemy = polysemy_of(observed, language=settings.language)
        contrasts = contrast_results(observed, polysemy.heads, polysemy.cuts)
        results = results_of(observed)
    with folder.stage("random reference"):
        reference = _reference(loaded, items, settings=settings, folder=folder)
    folder.write_table("results", pd.concat([results, contrasts], ignore_index=True))
    if polysemy.states is not None:
        folder.write_table("states", state_frame(loaded.name, polysemy.states), formats=("csv",))
    if len(crossed):
        folder.write_table("crossed", crossed, formats=("csv",))
    folder.write_table("cases", case_frame(items), formats=("csv",))
    _record(folder, loaded, case_set, settings, check)
    story = Story(
        loaded=loaded, case_set=case_set, observed=observed, results=results, crossed=crossed, check=check,
        route=route, language=settings.language, polysemy=polysemy,
        reference=reference,
    )  # fmt: skip
    with folder.stage("page"):
        write_page(folder, page_of(story), language=settings.language)
    return check


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


def _reference(
    loaded: LoadedModel, items: tuple[Prepared, ...], *, settings: StudySettings, folder: RunFolder
) -> tuple[EffectSizes, ...]:
    """The same few numbers of this model and of one with random weights, on the same cases, whole groups of them."""
    some = _whole_groups(items, settings.reference_cases)
    if not some:
        return ()
    small = replace(settings, sentences=0, layer_cut_cases=0, cache=None)
    sizes = []
    for model in (loaded, random_twin(loaded, seed=settings.seed)):
        observed = observe(
            model, route_of(model), some, settings=small, folder=folder,
            append=lambda frame: None, tell=lambda stage, done, total: None,
        )  # fmt: skip
        sizes.append(effect_sizes(observed, polysemy_of(observed, language=settings.language).states))
    return tuple(sizes)


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


def _record(
    folder: RunFolder, loaded: LoadedModel, case_set: CaseSet, settings: StudySettings, check: CheckReport
) -> None:
    config = {
        **settings.shown(),
        "model": loaded.name,
        "cases": case_set.name,
        "device": loaded.device.type,
        "dtype": str(loaded.dtype).removeprefix("torch."),
    }
    folder.write_config(config)
    folder.record("model", {"name": loaded.name, "fingerprint": loaded.fingerprint, **loaded.origin})
    folder.record("data", {"name": case_set.name, "sha256": case_set.digest, "cases": len(case_set.cases)})
    folder.record("seeds", [settings.seed])
    folder.record("threads", torch.get_num_threads())
    folder.record("notes", list(loaded.notes))
    folder.record("check", {"path": check.path, **{item.name: item.status for item in check.items}})
