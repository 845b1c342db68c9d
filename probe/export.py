"""Captures in the forms that other tools read: BertViz, TransformerLens' names, a long table, safetensors.

Whole maps are needed where a tool expects every query: capture with CaptureOptions(whole_maps=True).
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor

from probe.captures import Capture, one_capture, write_whole
from probe.edits import Stack
from probe.errors import OutputError
from probe.given import is_a, path_of, shown

_PREFIX = {"encoder": "encoder", "decoder": "decoder", "cross": "decoder"}  # of blocks in an encoder-decoder
_FORMAT = "cijing-export-1"


def bertviz_arguments(capture: Capture) -> dict[str, Any]:
    """Keyword arguments of BertViz's head_view and model_view: `head_view(**bertviz_arguments(capture))`.

    An encoder or a decoder gives attention (tuple over layers of [1, head, query, key]) and tokens; an
    encoder-decoder gives encoder_attention, decoder_attention, cross_attention, encoder_tokens and decoder_tokens.
    Tokens are slices of the text. BertViz counts layers and heads by their place, so OutputError where the capture
    holds a choice of them, or not every row.
    """
    _check_whole(capture)
    tokens = list(capture.tokens.labels)
    stacks = {layer.stack for layer in capture.layers}
    maps = {stack: _maps_by_place(capture, stack) for stack in stacks}
    if len(stacks) == 1:
        return {"attention": maps.popitem()[1], "tokens": tokens}
    named = {f"{stack}_attention": found for stack, found in sorted(maps.items())}
    return {**named, "encoder_tokens": tokens, "decoder_tokens": tokens}


def hooked_tensors(capture: Capture) -> dict[str, Tensor]:
    """Maps and states under TransformerLens' names, with a batch of one.

    `blocks.{l}.attn.hook_pattern` [1, head, query, key]; `blocks.{l}.hook_resid_pre` and `hook_resid_post` [1, token,
    model], the states before and after block l; `hook_embed` [1, token, model], the state before block 0. An
    encoder-decoder has `encoder.{l}` and `decoder.{l}` in place of `blocks.{l}`, and `decoder.{l}.cross_attn`.

    Three differences from TransformerLens: `hook_embed` holds learned positions as well, where a family adds them;
    after a block that ends in a norm (BERT) `hook_resid_post` is the normalised state; and where the last state
    stands behind the model's final norm, as in most decoders, it is no residual: it is named `final_state`, and the
    last `hook_resid_post` is left out. OutputError where the capture does not hold every row.
    """
    _check_whole(capture)
    named: dict[str, Tensor] = {}
    both = len({layer.stack for layer in capture.layers}) > 1
    for layer, rows in zip(capture.layers, capture.rows, strict=True):
        block = f"{_PREFIX[layer.stack]}.{layer.index}" if both else f"blocks.{layer.index}"
        attention = "cross_attn" if layer.stack == "cross" else "attn"
        named[f"{block}.{attention}.hook_pattern"] = _batch_of_one(rows)
    for stack, states in capture.states.items():
        blocks, embed = (f"{stack}.", f"{stack}.hook_embed") if both else ("blocks.", "hook_embed")
        named |= _residuals(states, blocks, embed, normed=capture.final_norms is None or stack in capture.final_norms)
    return named


def attention_table(captures: Iterable[Capture]) -> pd.DataFrame:
    """Every captured weight in one row: case, stack, layer, head, query and key (token positions), their texts, weight.

    A capture of chosen rows gives those; text repeats, so that positions are what names a token.
    """
    if isinstance(captures, str | bytes | dict) or not isinstance(captures, Iterable):
        raise OutputError(f"captures is {shown(captures)}; allowed is a list of Captures, of one too: [capture]")
    wanted = "a Capture, as capture_cases gives them"
    each = (is_a(one, Capture, "one of the captures", wanted=wanted, error=OutputError) for one in captures)
    frames = [_long(capture) for capture in each]
    if not frames:
        raise OutputError("attention_table was given no capture")
    return pd.concat(frames, ignore_index=True)


def save_tensors(capture: Capture, path: str | Path) -> None:
    """Write `hooked_tensors` as a safetensors file; its metadata names the case, text, tokens and modules as JSON.

    Any reader of safetensors opens it; `safetensors.safe_open(path, "pt").metadata()` gives the metadata.
    """
    path = path_of(path, "path")
    tensors = {name: tensor.numpy() for name, tensor in hooked_tensors(capture).items()}
    write_whole(path, save(tensors, _metadata(capture)), what="the export")


def _check_whole(capture: Capture) -> None:
    count = len(one_capture(capture).tokens.ids)
    if capture.queries != tuple(range(count)):
        raise OutputError(
            f"case {capture.case.id!r} holds {len(capture.queries)} of {count} rows: "
            "capture with CaptureOptions(whole_maps=True)"
        )


def _maps_by_place(capture: Capture, stack: Stack) -> tuple[Tensor, ...]:
    """The stack's maps, refused where a layer or head would be shown under another's number."""
    places = [place for place, layer in enumerate(capture.layers) if layer.stack == stack]
    indices = [capture.layers[place].index for place in places]
    for what, found in (("layers", indices), ("heads", list(capture.heads))):
        if found != list(range(len(found))):
            raise OutputError(
                f"case {capture.case.id!r} holds {what} {', '.join(map(str, found))} of its {stack}, "
                f"but BertViz numbers {what} from 0 by their place: capture all of them"
            )
    return tuple(_batch_of_one(capture.rows[place]) for place in places)


def _residuals(states: NDArray[np.float32], blocks: str, embed: str, *, normed: bool) -> dict[str, Tensor]:
    named = {embed: _batch_of_one(states[0])}
    last = len(states) - 1
    for place, state in enumerate(states):
        if place < last:
            named[f"{blocks}{place}.hook_resid_pre"] = _batch_of_one(state)
        if place > 0 and not (normed and place == last):
            named[f"{blocks}{place - 1}.hook_resid_post"] = _batch_of_one(state)
    if normed:
        named[f"{embed.removesuffix('hook_embed')}final_state"] = _batch_of_one(states[last])
    return named


def _batch_of_one(array: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(array.copy())[None]


def _long(capture: Capture) -> pd.DataFrame:
    layers, heads, queries, keys = capture.rows.shape
    layer, head, query, key = (grid.ravel() for grid in np.indices((layers, heads, queries, keys), dtype=np.int32))
    labels = np.array(capture.tokens.labels, dtype=object)
    at = np.array(capture.queries, dtype=np.int32)[query]
    return pd.DataFrame(
        {
            "case": capture.case.id,
            "stack": np.array([one.stack for one in capture.layers], dtype=object)[layer],
            "layer": np.array([one.index for one in capture.layers], dtype=np.int32)[layer],
            "head": np.array(capture.heads, dtype=np.int32)[head],
            "query": at,
            "key": key,
            "query_token": labels[at],
            "key_token": labels[key],
            "weight": capture.rows.ravel(),
        }
    )


def _metadata(capture: Capture) -> dict[str, str]:
    said = {
        "case": capture.case.id,
        "text": capture.case.text,
        "tokens": capture.tokens.labels,
        "ids": capture.tokens.ids,
        "modules": {f"{one.stack}.{one.index}": one.module for one in capture.layers},
        "heads": capture.heads,
        "path": capture.path,
    }
    return {"format": _FORMAT, **{name: json.dumps(value, ensure_ascii=False) for name, value in said.items()}}
