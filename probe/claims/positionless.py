"""Positions taken out of a model, and whether they are really gone: seen by what the model does without them."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from probe.switching import eagerly

Left = Literal["", "no_positions", "placed_rows", "placed_states", "no_double"]
_TABLES = ("position_embeddings", "embed_positions", "wpe")
_FLAT = 1e-4  # nats: rows that are no more uneven than this know nothing of places
_ALIKE = 1e-5  # relative: some norms compute in single precision whatever they are given


@contextmanager
def without_positions(backbone: nn.Module) -> Iterator[int]:
    """Take all positions out for a while; gives how many tables and rotations were found.

    Learned tables become zero. Fixed ones hold their first row throughout, which is one vector everywhere or, in a
    table of rotations, a turn by 0. Rotations computed from frequencies turn by 0.
    """
    tables = [m.weight for name, m in backbone.named_modules() if name.endswith(_TABLES) and hasattr(m, "weight")]
    turns = [buffer for name, buffer in backbone.named_buffers() if name.endswith("inv_freq")]
    kept = [(tensor, tensor.detach().clone()) for tensor in (*tables, *turns)]
    with torch.no_grad():
        for tensor, before in kept:
            fixed = before.dim() == 2 and not tensor.requires_grad
            tensor.copy_(before[:1].expand_as(before) if fixed else torch.zeros_like(before))
    try:
        yield len(kept)
    finally:
        with torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(before)


def doubled(backbone: Any) -> Any:
    """A copy of the model in double precision on the CPU; the model itself stays bit for bit as it is.

    To cast the model and cast it back would round what does not have its main number format: the float32 frequencies
    of a bfloat16 model's rotations, of which no later number would be right.
    """
    return copy.deepcopy(backbone).to(device="cpu", dtype=torch.float64)


def is_causal(backbone: Any) -> bool:
    """Whether a late token leaves the early states alone, seen by changing the last token."""
    width = int(backbone.get_input_embeddings().weight.shape[0])
    ids = [token % width for token in range(5, 11)]
    gap = (last_states(backbone, ids) - last_states(backbone, [*ids[:-1], 12 % width]))[:-1].abs().max()
    return bool(gap < 1e-6)


def last_states(backbone: Any, ids: Sequence[int]) -> Tensor:
    """Last states of one text, [token, dim]."""
    with torch.inference_mode():
        output = backbone(input_ids=torch.tensor([list(ids)], device=backbone.device))
    found: Tensor = output.last_hidden_state[0]
    return found


def left_of_positions(backbone: Any, *, token: int, length: int, causal: bool) -> Left:
    """Why the order may still show in a model once tables and rotations are out, or "" where it cannot.

    Over one repeated token, a model without positions reads every visible token alike, and all its states are equal.
    A bias on the scores or a window shows in the rows only, since all that they read is alike: both are looked at.
    """
    ids = torch.full((1, length), token, device=backbone.device)
    try:
        with without_positions(backbone) as found, eagerly(backbone), torch.inference_mode():
            output = backbone(input_ids=ids, output_attentions=True)
    except RuntimeError:  # kernels that exist in single precision only, as those of experts
        return "no_double"
    if any(_is_placed(maps[0], causal=causal) for maps in output.attentions if maps is not None):
        return "placed_rows"
    states = output.last_hidden_state[0]
    if not float((states - states[:1]).norm()) <= _ALIKE * float(states.norm()):
        return "placed_states"
    return "" if found else "no_positions"


def _is_placed(maps: Tensor, *, causal: bool) -> bool:
    """Whether rows [head, query, key] weigh what they may see unevenly; to a causal row that is all up to its query."""
    seen = torch.ones(maps.shape[1:], dtype=torch.bool, device=maps.device)
    logs = maps.clamp_min(torch.finfo(maps.dtype).tiny).log()
    own = logs.diagonal(dim1=-2, dim2=-1)[..., None]
    logs = torch.where(seen.tril() if causal else seen, logs, own)
    return not float((logs.amax(-1) - logs.amin(-1)).max()) <= _FLAT
