"""One word in one text, looked at at once: where each layer's attention goes from the target."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.capture import Progress, capture_prepared
from probe.captures import Capture, CaptureOptions, Prepared
from probe.labels import Layer
from probe.models import LoadedModel
from probe.spans import labels_of, merge_rows, words_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Glance:
    """The target's attention over the smallest pieces of the text, a row for each layer or head."""

    labels: tuple[str, ...]  # [piece], slices of the text
    weights: NDArray[np.float32]  # [row, piece]; each row sums to one
    rows: tuple[str, ...]
    target: tuple[int, ...]  # pieces
    cues: tuple[int, ...]  # pieces
    special: tuple[int, ...]  # pieces


def glance(loaded: LoadedModel, item: Prepared, *, options: CaptureOptions, on_layer: Progress | None = None) -> Glance:
    """Look at one prepared text: the mean over heads a layer, or each head where `options` names heads."""
    (captured,) = capture_prepared(loaded, [item], options=options, on_layer=on_layer)
    pieces = words_of(captured.tokens)
    places = [captured.queries.index(token) for token in captured.target]
    weights = merge_rows(captured.rows, [places], pieces)[:, :, 0]  # [layer, head, piece]
    each_head = options.heads is not None
    return Glance(
        labels=labels_of(pieces, captured.tokens),
        weights=(weights.reshape(-1, len(pieces)) if each_head else weights.mean(axis=1)).astype(np.float32),
        rows=_row_names(captured, each_head=each_head),
        target=_pieces_with(captured.target, pieces),
        cues=_pieces_with([token for cue in captured.cues for token in cue], pieces),
        special=_pieces_with(np.flatnonzero(captured.tokens.special).tolist(), pieces),
    )


def _row_names(captured: Capture, *, each_head: bool) -> tuple[str, ...]:
    stacks = {layer.stack for layer in captured.layers}
    names = [_layer_name(layer, several=len(stacks) > 1) for layer in captured.layers]
    if not each_head:
        return tuple(names)
    return tuple(f"{name} head {head}" for name in names for head in captured.heads)


def _layer_name(layer: Layer, *, several: bool) -> str:
    return f"{layer.stack} layer {layer.index}" if several else f"layer {layer.index}"


def _pieces_with(tokens: Sequence[int], pieces: Sequence[NDArray[np.int64]]) -> tuple[int, ...]:
    wanted = set(tokens)
    return tuple(place for place, piece in enumerate(pieces) if wanted & set(piece.tolist()))
