"""The look at two models: the same cases shown to both, a run folder out."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import torch

from probe.capture import prepare
from probe.cases import CaseSet
from probe.comparison import SIDES, Comparison, comparison_results, cut_gaps, head_gaps, same_texts
from probe.comparison_senses import sense_gap_results, sense_gaps
from probe.comparison_states import StateGap, StateReading, read_states, state_gap_frame, state_gaps
from probe.comparison_story import comparison_page
from probe.comparison_words import ComparisonStory, Told
from probe.findings import Observed
from probe.models import LoadedModel
from probe.observing import Progress, StudySettings, case_frame, observe
from probe.polysemy import state_frame
from probe.routes import route_of
from probe.runs import RunFolder
from probe.selfcheck import CheckReport, check_model
from probe.study import write_page
from probe.wordsenses import senses_to_tell

Readings = tuple[StateReading | None, StateReading | None]  # of A and B


def run_comparison(
    a: LoadedModel,
    b: LoadedModel,
    case_set: CaseSet,
    *,
    settings: StudySettings,
    folder: RunFolder,
    progress: Progress | None = None,
) -> tuple[CheckReport, CheckReport]:
    """Show every case to both models, write tables, figures, page and manifest; give both self-checks.

    Raises what `capture` raises for either model; nothing is left under the folder's name then.
    """
    # A is B's reference, not random weights.
    settings = replace(settings, reference_cases=0, reading_cases=0, head_cut_cases=0)
    a, b = _with_two_names(a, b)
    told = []
    for loaded in (a, b):
        with folder.stage("self-check"):
            told.append(Told(loaded=loaded, route=route_of(loaded), check=check_model(loaded)))
    comparison, readings = _observe_both(told, case_set, settings=settings, folder=folder, progress=progress)
    with folder.stage("statistics"):
        heads, cuts, senses = head_gaps(comparison), cut_gaps(comparison), sense_gaps(comparison)
        results = comparison_results(comparison, heads, cuts)
        contrasts = sense_gap_results(comparison, senses)
        states = _state_gaps(readings, seed=settings.seed)
    folder.write_table("results", pd.concat([results, contrasts], ignore_index=True))
    _write_states(folder, comparison, readings, states)
    _write_cases(folder, comparison)
    _record(folder, told, case_set, settings)
    story = ComparisonStory(
        comparison=comparison, heads=heads, cuts=cuts, senses=senses, readings=readings, states=states,
        states_left_out=len(comparison.a.items) > settings.state_cases and bool(senses_to_tell(comparison.a.items)[0]),
        a=told[0], b=told[1], case_set=case_set, language=settings.language,
    )  # fmt: skip
    with folder.stage("page"):
        write_page(folder, comparison_page(story), language=settings.language)
    return told[0].check, told[1].check


def _with_two_names(a: LoadedModel, b: LoadedModel) -> tuple[LoadedModel, LoadedModel]:
    """Two adapters may lie in folders of one name; the model column must tell them apart."""
    if a.name != b.name:
        return a, b
    return replace(a, name=f"{a.name} (A)"), replace(b, name=f"{b.name} (B)")


def _observe_both(
    told: list[Told], case_set: CaseSet, *, settings: StudySettings, folder: RunFolder, progress: Progress | None
) -> tuple[Comparison, Readings]:
    """Observe A, then B; states are read and dropped before the next model's come, which would double the memory."""
    observed: list[Observed] = []
    readings: list[StateReading | None] = []
    with folder.stage("tokenise"):
        prepared = [prepare(one.loaded, case_set.cases, cut=settings.cut_to_fit) for one in told]
    compared = same_texts(*prepared)
    with folder.stream_table("observations") as append:
        for side, one, items in zip(SIDES, told, prepared, strict=True):

            def tell(stage: str, done: int, total: int, side: str = side) -> None:
                if progress:
                    progress(f"{side}: {stage}", done, total)

            found = observe(one.loaded, one.route, items, settings=settings, folder=folder, append=append, tell=tell)
            with folder.stage("statistics"):
                readings.append(read_states(found, compared))
            observed.append(replace(found, states=None, context=None))
    return Comparison(a=observed[0], b=observed[1]), (readings[0], readings[1])


def _state_gaps(readings: Readings, *, seed: int) -> tuple[StateGap, ...]:
    a, b = readings
    return () if a is None or b is None else state_gaps(a, b, seed=seed)


def _write_states(folder: RunFolder, comparison: Comparison, readings: Readings, gaps: Sequence[StateGap]) -> None:
    """The states of both in one table, and what was tested of them in another."""
    frames = [
        state_frame(comparison.side(side).model, one.states)
        for side, one in zip(SIDES, readings, strict=True)
        if one is not None
    ]
    if frames:
        folder.write_table("states", pd.concat(frames, ignore_index=True), formats=("csv",))
    if gaps:
        folder.write_table("state_differences", state_gap_frame(gaps), formats=("csv",))


def _write_cases(folder: RunFolder, comparison: Comparison) -> None:
    """One row a case, the tokens of both models beside each other."""
    a, b = case_frame(comparison.a.items), case_frame(comparison.b.items)
    own = ["tokens", "target tokens", "cut to fit"]
    frame = a.rename(columns={name: f"{name} A" for name in own})
    for name in own:
        frame[f"{name} B"] = b[name]
    frame["compared"] = comparison.same_text
    folder.write_table("cases", frame, formats=("csv",))


def _record(folder: RunFolder, told: list[Told], case_set: CaseSet, settings: StudySettings) -> None:
    both = list(zip(SIDES, told, strict=True))
    config: dict[str, object] = {**settings.shown(), "cases": case_set.name}
    for side, one in both:
        config[f"model {side}"] = one.loaded.name
        config[f"device {side}"] = one.loaded.device.type
        config[f"dtype {side}"] = str(one.loaded.dtype).removeprefix("torch.")
    folder.write_config(config)
    folder.record(
        "model",
        {side: {"name": o.loaded.name, "fingerprint": o.loaded.fingerprint, **o.loaded.origin} for side, o in both},
    )
    folder.record("data", {"name": case_set.name, "sha256": case_set.digest, "cases": len(case_set.cases)})
    folder.record("seeds", [settings.seed])
    folder.record("threads", torch.get_num_threads())
    folder.record("notes", [f"{side}: {note}" for side, one in both for note in one.loaded.notes])
    folder.record(
        "check",
        {s: {"path": o.check.path, **{item.name: item.status for item in o.check.items}} for s, o in both},
    )
