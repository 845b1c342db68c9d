"""Rows of generated tokens, stitched into one (row, key) matrix a head; a transcript made elsewhere, replayed."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.answering import Cache, check_generation, generate_ids, told_options
from probe.capture import Progress, budget_of, check_filters, check_loaded, counting, readable_size
from probe.captures import CaptureOptions
from probe.errors import BudgetError, ModelError, TapError
from probe.given import callback, shown, truth, whole_number, whole_numbers
from probe.labels import Layer
from probe.models import LoadedModel
from probe.routes import Path, Route, forward_rows, route_of
from probe.rowrequest import RowRequest
from probe.spans import TokenMap
from probe.stitching import RowPlan, Stitching, check_calls, refuse_future, room_for
from probe.transcripts import AnswerBy, Boundary, Prompt, Transcript, answered, opened, transcript_of

PromptRows = Literal["all", "last"] | Collection[int]

_LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class GenerationRows:
    """Attention over prompt and answer, one (row, key) matrix a layer and head.

    A row is named by the token that looks, and a row at position p gave the token at p + 1: `predicting_row(t)` is
    the row at t - 1. The last generated token was never read by the model, so it has no row;
    `replay_rows(..., last_row=True)` reads it.
    """

    tokens: TokenMap
    """Prompt, then answer; in an encoder-decoder the start token, then the answer."""
    prompt_length: int
    text: str
    """The answer."""
    answer_by: AnswerBy
    layers: tuple[Layer, ...]
    heads: tuple[int, ...]
    queries: tuple[int, ...]
    """Token positions of the row axis."""
    rows: NDArray[np.float32]
    """[layer, head, row, key]; 0 for keys after the row's own token."""
    source: TokenMap | None = None
    """What an encoder-decoder's encoder read."""
    cross_layers: tuple[Layer, ...] = ()
    cross_rows: NDArray[np.float32] | None = None
    """[cross layer, head, row, source key]"""
    path: Path

    @property
    def ids(self) -> tuple[int, ...]:
        """The answer's token ids."""
        return self.tokens.ids[self.prompt_length :]

    def predicting_row(self, position: int) -> NDArray[np.float32]:
        """The row from which the token at `position` (counted from the first of the prompt) came: [layer, head, key].

        Raises TapError where that row was not kept; the very first token came from none.
        """
        position = whole_number(position, "position", error=TapError)
        if position - 1 not in self.queries:
            raise TapError(
                f"token {position} came from the row at {position - 1}, which is not kept; "
                f"kept are {len(self.queries)} rows from {self.queries[0]} to {self.queries[-1]}"
            )
        found: NDArray[np.float32] = self.rows[:, :, self.queries.index(position - 1)]
        return found


def generate_rows(
    loaded: LoadedModel,
    prompt: Prompt,
    *,
    max_new_tokens: int,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    prompt_rows: PromptRows = "all",
    cache: Cache = "dynamic",
    seed: int = 0,
    route: Route | None = None,
    memory_budget: int | str | None = None,
    on_token: Progress | None = None,
    **options: Any,
) -> GenerationRows:
    """Let the model (loaded with head="lm") answer, greedily by default, and give the rows as they were computed.

    prompt: a text, chat messages, or token ids. prompt_rows: rows of the prompt's tokens to keep; the last one, which
    predicts the first new token, is always kept. options: what `generate` is told, one of OPTIONS; with
    do_sample=True `seed` decides. on_token: told of each new token, and of max_new_tokens. Static caches are cut to
    the tokens that were read, windows put at their place. Raises ModelError, TapError where rows cannot be had
    exactly, and BudgetError before anything is computed.
    """
    check_generation(loaded, options, cache=cache, on_token=on_token)
    max_new_tokens = whole_number(max_new_tokens, "max_new_tokens", least=1, error=ModelError)
    seed = whole_number(seed, "seed", least=0, most=_LARGEST_SEED, error=ModelError)
    told = told_options(loaded, options, max_new_tokens)
    filters = CaptureOptions(layers=layers, heads=heads, memory_budget=memory_budget)
    transcript = opened(loaded, prompt)
    route = route or route_of(loaded)
    if route.path == "eager":
        raise TapError(f"{loaded.name}: rows cannot be had while it generates ({route.reason}); replay_rows can")
    total = transcript.prompt_length + max_new_tokens
    plan = _plan(loaded, route, transcript, total=total, read=total - 1, filters=filters, prompt_rows=prompt_rows)
    _check_budget(plan, budget_of(filters.memory_budget, loaded.device))
    stitching = Stitching(plan, windows=_windows(loaded))
    ids = generate_ids(
        loaded,
        transcript,
        stitching,
        seed=seed,
        max_new_tokens=max_new_tokens,
        cache=cache,
        options=told,
        on_token=on_token,
    )
    whole = answered(loaded, transcript, ids, by="generated")
    check_calls(stitching, len(whole.tokens.ids) - 1, device=loaded.device)
    return _rows_of(whole, plan, own=stitching.own, across=stitching.across, path=route.path)


def replay_rows(
    loaded: LoadedModel,
    prompt: Prompt,
    answer: str | Sequence[int],
    *,
    boundary: Boundary = "separate",
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    prompt_rows: PromptRows = "all",
    last_row: bool = False,
    route: Route | None = None,
    memory_budget: int | str | None = None,
    on_layer: Progress | None = None,
) -> GenerationRows:
    """Rows of a transcript, whoever wrote it, from one forward pass over prompt and answer.

    Equals what `generate_rows` gives for the same tokens. boundary: how an answer given as text becomes tokens, see
    `transcript_of`. last_row: also the row of the answer's last token, which generation never reads. on_layer: told
    of each layer as it is done, and of how many there are. Raises ModelError, SpanError and BudgetError before the
    pass.
    """
    check_loaded(loaded)
    callback(on_layer, "on_layer")
    last_row = truth(last_row, "last_row", error=TapError)
    filters = CaptureOptions(layers=layers, heads=heads, memory_budget=memory_budget)
    whole = transcript_of(loaded, prompt, answer, boundary=boundary)
    route = route or route_of(loaded)
    total = len(whole.tokens.ids)
    read = total if last_row else total - 1
    plan = _plan(loaded, route, whole, total=total, read=read, filters=filters, prompt_rows=prompt_rows)
    _check_budget(plan, budget_of(filters.memory_budget, loaded.device), copies=2)
    request = RowRequest(
        [plan.queries],
        layers=filters.layers,
        heads=filters.heads,
        stacks=plan.stacks,
        on_layer=None if on_layer is None else counting(on_layer, len(route.layers)),
    )
    forward = forward_rows(loaded, route, _batch(loaded, whole, read), request, states=False)
    own, across = room_for(plan)
    for layers_of, matrix in ((plan.own, own), (plan.cross, across)):
        for place, layer in enumerate(layers_of):
            rows = forward.rows[layer][0].cpu().numpy()  # [head, row, key]
            matrix[place, :, :, : rows.shape[2]] = rows
    return _rows_of(whole, plan, own=own, across=across, path=route.path)


def _plan(
    loaded: LoadedModel,
    route: Route,
    transcript: Transcript,
    *,
    total: int,
    read: int,
    filters: CaptureOptions,
    prompt_rows: PromptRows,
) -> RowPlan:
    """Rows of the first `read` of `total` tokens, filtered; ModelError where the model does not go that far."""
    check_filters(route, filters)
    source = 0 if transcript.source is None else len(transcript.source.ids)
    longest = max(read, source)
    if loaded.max_positions is not None and longest > loaded.max_positions:
        raise ModelError(f"{longest} tokens to read, but {loaded.name} has {loaded.max_positions} positions")
    kept = [layer for layer in route.layers if filters.layers is None or layer.index in filters.layers]
    return RowPlan(
        name=loaded.name,
        own=tuple(layer for layer in kept if layer.stack == "decoder"),
        cross=tuple(layer for layer in kept if layer.stack == "cross"),
        heads=tuple(range(route.heads)) if filters.heads is None else tuple(sorted(filters.heads)),
        queries=_queries(prompt_rows, prompt_length=transcript.prompt_length, read=read),
        keys=total,
        source_keys=source,
    )


def _queries(prompt_rows: PromptRows, *, prompt_length: int, read: int) -> tuple[int, ...]:
    named = isinstance(prompt_rows, str)
    if not (isinstance(prompt_rows, Iterable) and (not named or prompt_rows in ("all", "last"))):
        raise TapError(f"prompt_rows {shown(prompt_rows)} is unknown; allowed are all, last, or token positions")
    chosen = () if named else whole_numbers(prompt_rows, "prompt_rows", error=TapError)
    wrong = [place for place in chosen if not 0 <= place < prompt_length]
    if wrong:
        raise TapError(f"prompt_rows {wrong[0]}: the prompt has tokens 0 to {prompt_length - 1}")
    before = range(prompt_length) if named and prompt_rows == "all" else chosen
    return tuple(sorted({*before, *range(prompt_length - 1, read)}))


def _check_budget(plan: RowPlan, budget: int, *, copies: int = 1) -> None:
    need = copies * plan.size
    if need > budget:
        raise BudgetError(
            f"{len(plan.queries)} rows over up to {plan.keys} tokens need {readable_size(need)}; "
            f'{readable_size(budget)} may be used: prompt_rows="last", fewer layers or heads, or a larger memory budget'
        )


def _rows_of(
    whole: Transcript,
    plan: RowPlan,
    *,
    own: NDArray[np.float32],
    across: NDArray[np.float32],
    path: Path,
) -> GenerationRows:
    """The record, cut to the tokens that there are: an answer may end before max_new_tokens."""
    total = len(whole.tokens.ids)
    # A shorter answer's last token has no row either; a replay of all tokens has planned for one.
    queries = tuple(place for place in plan.queries if place < total - (plan.keys > total))
    own, across = own[:, :, : len(queries), :total], across[:, :, : len(queries)]
    refuse_future(plan.name, own, queries)
    return GenerationRows(
        tokens=whole.tokens,
        prompt_length=whole.prompt_length,
        text=whole.answer_text,
        answer_by=whole.answer_by,
        layers=plan.own,
        heads=plan.heads,
        queries=queries,
        rows=own,
        source=whole.source,
        cross_layers=plan.cross,
        cross_rows=across if plan.cross else None,
        path=path,
    )


def _windows(loaded: LoadedModel) -> frozenset[int]:
    """The widths of the model's windows, in tokens."""
    config = loaded.backbone.config.get_text_config(decoder=True)
    widths = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return frozenset(width for width in widths if isinstance(width, int))


def _batch(loaded: LoadedModel, whole: Transcript, length: int) -> dict[str, Tensor]:
    """One forward pass over the first `length` tokens of the transcript."""
    ids = torch.tensor([whole.tokens.ids[:length]], device=loaded.device)
    if whole.source is None:
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    source = torch.tensor([whole.source.ids], device=loaded.device)
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "decoder_input_ids": ids}
