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
from probe.rowrequest import RowRequest
from probe.rowtap import tap

EVERYWHERE = -1
Direction = Literal["target → cue", "cue → target"]


@dataclass(frozen=True, kw_only=True, eq=False)
class CutEffects:
    """How far the query word's last state moved when one edge was cut, relative to the state's own length.

    cue, control [case, 1 + layer]: column 0 with the edge cut in every layer, column 1 + k in layer k alone, all
    heads. NaN where the edge cannot exist (control: where the text has no matching word). last [case, 3, dim]: the
    reading word's last state itself: untouched, with the cue's edge cut in every layer, with the control's.
    """

    layers: tuple[int, ...]
    stack: Stack
    directions: tuple[Direction | None, ...]  # None: the case has no cue
    cue: NDArray[np.float32]
    control: NDArray[np.float32]
    last: NDArray[np.float32]


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


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadCuts:
    """The same with the edge cut in one head of one layer: cue, control [case, head]."""

    heads: tuple[tuple[int, int], ...]  # layer and head, as the model counts them
    stack: Stack
    cue: NDArray[np.float32]
    control: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class _Site:
    """Where an edge is cut; None stands for every layer, every head."""

    layers: frozenset[int] | None = None
    heads: frozenset[int] | None = None


@dataclass(frozen=True, kw_only=True)
class _Cut:
    case: int
    column: int  # which of the sites
    of: Literal["cue", "control", "nothing"]


def cut_effects(
    loaded: LoadedModel,
    route: Route,
    items: Sequence[Prepared],
    *,
    controls: Sequence[tuple[int, ...] | None] | None = None,
    by_layer: Collection[int] | None = None,
    batch_tokens: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> CutEffects:
    """Cut each case's edge everywhere and layer by layer, and the edge to its matched control beside it.

    The edge is target → cue; in a causal model whose cue comes after the target it is cue → target, since the later
    word is the one that can read. An encoder-decoder is judged in its encoder. `controls` names the control's tokens
    for each case instead of a matched word, None for no control; `by_layer` names the cases that are also cut layer by
    layer (None: all).
    Raises TapError on the eager path.
    """
    stack = _stack(loaded)
    layers = tuple(sorted({layer.index for layer in route.layers if layer.stack == stack}))
    edges = [edge_of(item, causal=stack == "decoder") for item in items]
    if controls is not None:
        edges = [edge and replace(edge, control=control) for edge, control in zip(edges, controls, strict=True)]
    sites = [_Site(), *(_Site(layers=frozenset({layer})) for layer in layers)]
    deep = range(len(items)) if by_layer is None else by_layer
    cuts = _planned(edges, columns=[len(sites) if case in deep else 1 for case in range(len(items))])
    runs = [_run_of(items[cut.case], edges[cut.case], cut, sites=sites, stack=stack) for cut in cuts]
    states = last_states(loaded, runs, batch_tokens=batch_tokens, progress=progress)
    cue, control = _tables(cuts, states, shape=(len(items), len(sites)))
    directions = tuple(edge.direction if edge else None for edge in edges)
    last = _last_of_each(cuts, states, cases=len(items))
    return CutEffects(layers=layers, stack=stack, directions=directions, cue=cue, control=control, last=last)


def head_cut_effects(
    loaded: LoadedModel,
    items: Sequence[Prepared],
    heads: Sequence[tuple[int, int]],
    *,
    batch_tokens: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> HeadCuts:
    """Cut each case's edge, and the edge to its matched control, in one head at a time; heads are (layer, head).

    The direction of the edge is that of `cut_effects`. Raises TapError on the eager path.
    """
    stack = _stack(loaded)
    edges = [edge_of(item, causal=stack == "decoder") for item in items]
    sites = [_Site(layers=frozenset({layer}), heads=frozenset({head})) for layer, head in heads]
    cuts = _planned(edges, columns=[len(sites)] * len(items))
    runs = [_run_of(items[cut.case], edges[cut.case], cut, sites=sites, stack=stack) for cut in cuts]
    states = last_states(loaded, runs, batch_tokens=batch_tokens, progress=progress)
    cue, control = _tables(cuts, states, shape=(len(items), len(sites)))
    return HeadCuts(heads=tuple(heads), stack=stack, cue=cue, control=control)


def _stack(loaded: LoadedModel) -> Stack:
    return "decoder" if loaded.kind == "decoder" else "encoder"


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


def _planned(edges: Sequence[Edge | None], *, columns: Sequence[int]) -> list[_Cut]:
    """The runs of all cases: one untouched, and the first `columns` sites of each for cue and control."""
    cuts = []
    for case, (edge, count) in enumerate(zip(edges, columns, strict=True)):
        if edge is None:
            continue
        cuts.append(_Cut(case=case, column=0, of="nothing"))
        for column in range(count):
            cuts.append(_Cut(case=case, column=column, of="cue"))
            if edge.control is not None:
                cuts.append(_Cut(case=case, column=column, of="control"))
    return cuts


def _run_of(item: Prepared, edge: Edge | None, cut: _Cut, *, sites: Sequence[_Site], stack: Stack) -> EditedRun:
    assert edge is not None
    if cut.of == "nothing":
        return EditedRun(item=item, word=edge.query)
    key, site = edge.key if cut.of == "cue" else edge.control, sites[cut.column]
    assert key is not None
    edit = EdgeEdit(query=edge.query, key=key, layers=site.layers, heads=site.heads, stacks=frozenset({stack}))
    return EditedRun(item=item, word=edge.query, edits=(edit,))


def _tables(
    cuts: Sequence[_Cut], states: Sequence[NDArray[np.float32]], *, shape: tuple[int, int]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Effects of cutting the cue's edge and the control's: each [case, site], NaN where nothing was cut."""
    plain = {cut.case: state for cut, state in zip(cuts, states, strict=True) if cut.of == "nothing"}
    tables = {of: np.full(shape, np.nan, dtype=np.float32) for of in ("cue", "control")}
    for cut, state in zip(cuts, states, strict=True):
        if cut.of != "nothing":
            tables[cut.of][cut.case, cut.column] = moved(state, plain[cut.case])
    return tables["cue"], tables["control"]


def _last_of_each(cuts: Sequence[_Cut], states: Sequence[NDArray[np.float32]], *, cases: int) -> NDArray[np.float32]:
    """The last states with nothing, the cue's edge and the control's cut at the first site: [case, 3, dim]."""
    last = np.full((cases, 3, len(states[0]) if states else 0), np.nan, dtype=np.float32)
    for cut, state in zip(cuts, states, strict=True):
        if cut.column == 0:
            last[cut.case, ("nothing", "cue", "control").index(cut.of)] = state
    return last
