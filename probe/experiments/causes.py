"""What an edge does: cut query → key through the tap and measure how far the query word's last state moves."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from probe.capture import batches
from probe.captures import Prepared
from probe.edits import EdgeEdit, Edit, Stack
from probe.errors import ModelError
from probe.measures.focus import matched_control, visible
from probe.models import LoadedModel
from probe.routes import Route, batch_for
from probe.rowtap import RowRequest, tap

EVERYWHERE = -1
Direction = Literal["target → cue", "cue → target"]


@dataclass(frozen=True, kw_only=True, eq=False)
class CutEffects:
    """How far the query word's last state moved when one edge was cut, relative to the state's own length.

    cue, control [case, 1 + layer]: column 0 with the edge cut in every layer, column 1 + k in layer k alone, all
    heads. NaN where the edge cannot exist (control: where the text has no matching word).
    """

    layers: tuple[int, ...]
    stack: Stack
    directions: tuple[Direction | None, ...]  # None: the case has no cue
    cue: NDArray[np.float32]
    control: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Edge:
    """One edge to judge: the query word, the cue it may read, and the control word it may read as well."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    control: tuple[int, ...] | None
    direction: Direction


@dataclass(frozen=True, kw_only=True)
class EditedRun:
    """One text run under edits of its own, and the word whose last state is asked for.

    The edits' `item` is filled in when the run gets its place in a batch.
    """

    item: Prepared
    word: tuple[int, ...]
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Cut:
    case: int
    column: int
    of: Literal["cue", "control", "nothing"]


def cut_effects(
    loaded: LoadedModel,
    route: Route,
    items: Sequence[Prepared],
    *,
    controls: Sequence[tuple[int, ...]] | None = None,
    by_layer: Collection[int] | None = None,
    batch_tokens: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> CutEffects:
    """Cut each case's edge everywhere and layer by layer, and the edge to its matched control beside it.

    The edge is target → cue; in a causal model whose cue comes after the target it is cue → target, since the later
    word is the one that can read. An encoder-decoder is judged in its encoder. `controls` names the control's tokens
    for each case instead of a matched word; `by_layer` names the cases that are also cut layer by layer (None: all).
    Raises TapError on the eager path.
    """
    stack: Stack = "decoder" if loaded.kind == "decoder" else "encoder"
    layers = tuple(sorted({layer.index for layer in route.layers if layer.stack == stack}))
    edges = [edge_of(item, causal=stack == "decoder") for item in items]
    if controls is not None:
        edges = [edge and replace(edge, control=control) for edge, control in zip(edges, controls, strict=True)]
    cuts = _planned(edges, layers=len(layers), by_layer=range(len(items)) if by_layer is None else by_layer)
    runs = [_run_of(items[cut.case], edges[cut.case], cut, layers=layers, stack=stack) for cut in cuts]
    found = last_states(loaded, runs, batch_tokens=batch_tokens, progress=progress)
    states = dict(zip(cuts, found, strict=True))
    tables = {of: _moved(states, of, shape=(len(items), 1 + len(layers))) for of in ("cue", "control")}
    return CutEffects(
        layers=layers,
        stack=stack,
        directions=tuple(edge.direction if edge else None for edge in edges),
        cue=tables["cue"],
        control=tables["control"],
    )


def edge_of(item: Prepared, *, causal: bool) -> Edge | None:
    """The edge of a case that can exist under the model's mask, or None where the case has no cue."""
    cue = tuple(index for words in item.cues for index in words)
    if not cue:
        return None
    forward = visible(item, query=item.target, key=cue, causal=causal)
    query, key = (item.target, cue) if forward else (cue, item.target)
    control = matched_control(item, query=query, cue=key, causal=causal)
    direction: Direction = "target → cue" if forward else "cue → target"
    return Edge(query=query, key=key, control=control, direction=direction)


def last_states(
    loaded: LoadedModel,
    runs: Sequence[EditedRun],
    *,
    batch_tokens: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[NDArray[np.float32]]:
    """Each run's last state of its word, in the runs' order: mean over the word's tokens, [dim].

    Raises TapError on the eager path, ModelError where a state is not finite.
    """
    states: dict[int, NDArray[np.float32]] = {}
    for group in batches([len(run.item.tokens.ids) for run in runs], batch_tokens):
        states.update(zip(group, _batch_states(loaded, [runs[index] for index in group]), strict=True))
        if progress:
            progress(len(states), len(runs))
    return [states[index] for index in range(len(runs))]


def moved(state: NDArray[np.float32], plain: NDArray[np.float32]) -> float:
    """How far a state lies from the untouched one, in the latter's length; NaN where that has none."""
    length = np.linalg.norm(plain)
    return float(np.linalg.norm(state - plain) / length) if length > 0 else np.nan


def _batch_states(loaded: LoadedModel, runs: Sequence[EditedRun]) -> list[NDArray[np.float32]]:
    edits = [replace(edit, item=place) for place, run in enumerate(runs) for edit in run.edits]
    request = RowRequest([[0]] * len(runs), layers=(), edits=edits)
    batch = batch_for(loaded, [run.item.tokens.ids for run in runs])
    with torch.inference_mode(), tap(loaded.backbone, request):
        output = loaded.backbone(**batch)
    last = output.encoder_last_hidden_state if loaded.kind == "encoder-decoder" else output.last_hidden_state
    states = []
    for place, run in enumerate(runs):
        states.append(last[place, list(run.word)].float().mean(0).cpu().numpy())
        if not np.isfinite(states[-1]).all():
            case = run.item.case.id
            raise ModelError(f"{loaded.name}: the last state of case {case!r} has numbers that are not finite")
    return states


def _planned(edges: Sequence[Edge | None], *, layers: int, by_layer: Collection[int]) -> list[_Cut]:
    cuts = []
    for case, edge in enumerate(edges):
        if edge is None:
            continue
        cuts.append(_Cut(case=case, column=0, of="nothing"))
        for column in range(1 + layers * (case in by_layer)):
            cuts.append(_Cut(case=case, column=column, of="cue"))
            if edge.control is not None:
                cuts.append(_Cut(case=case, column=column, of="control"))
    return cuts


def _run_of(item: Prepared, edge: Edge | None, cut: _Cut, *, layers: tuple[int, ...], stack: Stack) -> EditedRun:
    assert edge is not None
    if cut.of == "nothing":
        return EditedRun(item=item, word=edge.query)
    key = edge.key if cut.of == "cue" else edge.control
    assert key is not None
    where = None if cut.column == 0 else frozenset({layers[cut.column - 1]})
    edit = EdgeEdit(query=edge.query, key=key, layers=where, stacks=frozenset({stack}))
    return EditedRun(item=item, word=edge.query, edits=(edit,))


def _moved(states: dict[_Cut, NDArray[np.float32]], of: str, *, shape: tuple[int, int]) -> NDArray[np.float32]:
    table = np.full(shape, np.nan, dtype=np.float32)
    for cut, state in states.items():
        if cut.of == of:
            plain = states[_Cut(case=cut.case, column=0, of="nothing")]
            table[cut.case, cut.column] = moved(state, plain)
    return table
