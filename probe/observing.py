"""Everything that is measured on one model's cases: captures to numbers, observations streamed to their table."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from probe.capture import capture_prepared
from probe.captures import CaptureOptions, Prepared
from probe.contrasts import NEUTRAL
from probe.experiments.causes import CutEffects, cut_effects, edge_of
from probe.findings import Floats, Observed, cut_observation_frame, observation_frame
from probe.measures.focus import focus, merged_row
from probe.measures.states import context_embedding, default_readout, read_state
from probe.messages import Language
from probe.models import LoadedModel
from probe.routes import Route
from probe.runs import RunFolder

Progress = Callable[[str, int, int], None]  # stage, done, total

CPU_BATCH, DEVICE_BATCH = 512, 8192  # tokens
_CHUNK = 32  # cases of one chunk of the observations table


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
    reading_cases: int = 48
    """At most so many cases without cues have the edge from their target to every word cut: a pass a word."""
    reference_cases: int = 96
    """At most so many cases are also run through a model of random weights; 0 leaves the reference out."""
    sentences: int = 500
    """At most so many sentences stand on the page."""
    seed: int = 0
    batch_tokens: int | None = None
    """Tokens of a batch, padding included; None: CPU_BATCH, or DEVICE_BATCH on an accelerator."""
    memory_budget: int | None = None
    cut_to_fit: bool = False
    cache: Path | None = None

    def tokens_on(self, device: torch.device) -> int:
        """Tokens of a batch: on a CPU more of them only take more memory."""
        return self.batch_tokens or (CPU_BATCH if device.type == "cpu" else DEVICE_BATCH)

    def options(self, device: torch.device) -> CaptureOptions:
        """The part that captures read."""
        return CaptureOptions(
            layers=self.layers,
            heads=self.heads,
            states=False,
            batch_tokens=self.tokens_on(device),
            memory_budget=self.memory_budget,
            cut_to_fit=self.cut_to_fit,
            cache=self.cache,
        )

    def shown(self) -> dict[str, object]:
        """The settings as config.yaml has them: no path of this machine."""
        values = {name: sorted(v) if isinstance(v, frozenset) else v for name, v in asdict(self).items()}
        return {**values, "cache": self.cache is not None}


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
            loaded, items, options=replace(settings.options(loaded.device), states=with_states), route=route,
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
        loaded, route, items, batch_tokens=settings.tokens_on(loaded.device),
        by_layer=_spread(items, settings.layer_cut_cases),
        progress=lambda done, total: tell("cut edges", done, total),
    )  # fmt: skip


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
