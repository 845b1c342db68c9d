"""Rows of generated tokens, stitched into one (row, key) matrix a head; a transcript made elsewhere, replayed."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.anatomy import base_of
from probe.capture import Progress, budget_of, check_filters, check_loaded, counting, readable_size
from probe.captures import CaptureOptions
from probe.errors import BudgetError, ModelError, TapError
from probe.given import callback, one_of, shown, truth, whole_number, whole_numbers
from probe.labels import Layer
from probe.models import LoadedModel
from probe.routes import Path, Route, forward_rows, route_of
from probe.rowrequest import RowRequest
from probe.rowtap import tap
from probe.spans import TokenMap
from probe.stitching import RowPlan, Stitching, check_calls, refuse_future, room_for
from probe.transcripts import AnswerBy, Boundary, Prompt, Transcript, answered, opened, transcript_of

Cache = Literal["dynamic", "static"]
PromptRows = Literal["all", "last"] | Collection[int]

# What `generate` may be told. Beams, assistants and prompt lookup are not among it: their calls are no single row of
# tokens, and some of what they compute is thrown away.
OPTIONS = frozenset({
    "bad_words_ids", "do_sample", "eos_token_id", "min_new_tokens", "min_p", "no_repeat_ngram_size",
    "prefill_chunk_size", "repetition_penalty", "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
})  # fmt: skip
_DECIMAL = ("min_p", "repetition_penalty", "temperature", "top_p", "typical_p")  # of these `generate` takes only floats
_LARGEST_SEED = 2**63 - 1
# What `generate` leaves on a model for its next static cache.
_LEFT_BEHIND = ("_previous_max_cache_length", "_cache")


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
    _check_generation(loaded, options, cache=cache, on_token=on_token)
    max_new_tokens = whole_number(max_new_tokens, "max_new_tokens", least=1, error=ModelError)
    seed = whole_number(seed, "seed", least=0, most=_LARGEST_SEED, error=ModelError)
    told = _told(loaded, options, max_new_tokens)
    filters = CaptureOptions(layers=layers, heads=heads, memory_budget=memory_budget)
    transcript = opened(loaded, prompt)
    route = route or route_of(loaded)
    if route.path == "eager":
        raise TapError(f"{loaded.name}: rows cannot be had while it generates ({route.reason}); replay_rows can")
    total = transcript.prompt_length + max_new_tokens
    plan = _plan(loaded, route, transcript, total=total, read=total - 1, filters=filters, prompt_rows=prompt_rows)
    _check_budget(plan, budget_of(filters.memory_budget, loaded.device))
    stitching = Stitching(plan, windows=_windows(loaded))
    ids = _generate(
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


def _check_generation(loaded: LoadedModel, options: Mapping[str, Any], *, cache: str, on_token: object) -> None:
    check_loaded(loaded)
    callback(on_token, "on_token")
    model = base_of(loaded.model)
    if loaded.kind != "encoder" and not (hasattr(model, "can_generate") and model.can_generate()):
        raise ModelError(f'{loaded.name} is loaded without its language-model head: load_model(..., head="lm")')
    one_of(cache, "cache", ("dynamic", "static"), error=ModelError)
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise ModelError(
            f"generation option {unknown[0]!r} is not allowed here; allowed are {', '.join(sorted(OPTIONS))}"
        )


def _told(loaded: LoadedModel, options: Mapping[str, Any], max_new_tokens: int) -> dict[str, Any]:
    """The options as `generate` takes them; ModelError for those that it would follow without a word, or misread."""
    told = {name: value for name, value in options.items() if value is not None}
    if "do_sample" in told:
        told["do_sample"] = truth(told["do_sample"], "do_sample", error=ModelError)
    if "min_new_tokens" in told:
        least = whole_number(told["min_new_tokens"], "min_new_tokens", least=0, most=max_new_tokens, error=ModelError)
        told["min_new_tokens"] = least
    for name, least in (("no_repeat_ngram_size", 0), ("prefill_chunk_size", 1), ("top_k", 0)):
        if name in told:
            told[name] = whole_number(told[name], name, least=least, error=ModelError)
    for name in (name for name in _DECIMAL if isinstance(told.get(name), Real) and not isinstance(told[name], bool)):
        told[name] = float(told[name])
    for name in ("min_p", "top_p", "typical_p"):
        if isinstance(told.get(name), float) and not 0 <= told[name] <= 1:
            raise ModelError(f"{name} {told[name]}: allowed is a share from 0 to 1")
    last = int(loaded.backbone.get_input_embeddings().weight.shape[0]) - 1
    for name in ("eos_token_id", "suppress_tokens"):
        if name in told:
            several = isinstance(told[name], Iterable) and getattr(told[name], "ndim", 1) > 0
            given = whole_numbers(told[name], name, error=ModelError) if several else (told[name],)
            told[name] = [whole_number(one, name, least=0, most=last, error=ModelError) for one in given]
    for word in told.get("bad_words_ids", ()):
        wrong = [one for one in whole_numbers(word, "bad_words_ids", least=0, error=ModelError) if one > last]
        if wrong:
            raise ModelError(f"bad_words_ids has {wrong[0]}: {loaded.name} has ids 0 to {last}")
    return told


def _generate(
    loaded: LoadedModel,
    transcript: Transcript,
    stitching: Stitching,
    *,
    seed: int,
    max_new_tokens: int,
    cache: Cache,
    options: Mapping[str, Any],
    on_token: Progress | None,
) -> list[int]:
    """Run `generate` through the tap; the ids of the answer."""
    model = base_of(loaded.model)
    read = transcript.tokens if transcript.source is None else transcript.source
    ids = torch.tensor([read.ids], device=loaded.device)
    fixed: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "pad_token_id": _pad(loaded),
        "cache_implementation": cache,
        "disable_compile": True,  # a compiled forward pass would not come through the tap again
        "use_cache": True,
        "num_beams": 1,
        "num_return_sequences": 1,
        "return_dict_in_generate": False,
        "streamer": None if on_token is None else _Counted(on_token, max_new_tokens),
    }
    if transcript.source is not None:
        fixed["decoder_input_ids"] = torch.tensor([transcript.tokens.ids], device=loaded.device)
    with _seeded(loaded.device, seed), torch.inference_mode(), _leaving_nothing(model), tap(model, stitching):
        told = {"do_sample": False, **fixed, **options}
        try:
            sequence = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **told)
        except (TypeError, ValueError) as error:
            if stitching.read or not options:  # it has begun to compute: not about what it was told
                raise
            raise ModelError(_refusal(loaded, options, error)) from error
    return [int(token) for token in sequence[0, len(transcript.tokens.ids) :].tolist()]


def _refusal(loaded: LoadedModel, options: Mapping[str, Any], error: Exception) -> str:
    """What `generate` says of its options, in one line: of the one that it names, or of all."""
    said = " ".join(str(error).split())
    about = [name for name in options if name in said and name != "do_sample"]  # which is only ever the way out
    if "`penalty`" in said and "repetition_penalty" in options:  # its own name for it
        about = ["repetition_penalty"]
    given = ", ".join(f"{name} {shown(options[name])}" for name in about or options)
    return f"{given}: {loaded.name} cannot generate with it ({said})"


class _Counted:
    """A streamer as `generate` knows them: told of the prompt once, then of each new token."""

    def __init__(self, on_token: Progress, total: int) -> None:
        self.on_token = on_token
        self.total = total
        self.done = -1

    def put(self, tokens: Tensor) -> None:
        """One more token, unless it is the prompt."""
        self.done += 1
        if self.done:
            self.on_token(self.done, self.total)

    def end(self) -> None:
        """Nothing is left to be told."""


@contextmanager
def _seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Within the block numbers are drawn from `seed`, on the CPU and on the device; both are left as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)  # manual_seed would seed every accelerator there is
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        if device.type != "mps":
            yield
            return
        state = torch.mps.get_rng_state()  # fork_rng knows no MPS
        torch.mps.manual_seed(seed)
        try:
            yield
        finally:
            torch.mps.set_rng_state(state)


@contextmanager
def _leaving_nothing(model: Any) -> Iterator[None]:
    before = {name: vars(model)[name] for name in _LEFT_BEHIND if name in vars(model)}
    try:
        yield
    finally:
        for name in _LEFT_BEHIND:
            vars(model).pop(name, None)
        vars(model).update(before)


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


def _pad(loaded: LoadedModel) -> int:
    """A padding id, which a batch of one does not use, but without which `generate` warns."""
    found = loaded.tokenizer.pad_token_id
    return 0 if found is None else int(found)
