"""Capture: attention rows, hidden states and value norms of cases, streamed one Capture a case."""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probe.anatomy import adapters_in_use
from probe.captures import Capture, CaptureOptions, Prepared, load_cached, save_cached
from probe.cases import Case, CaseSet
from probe.edits import Edit
from probe.errors import BudgetError, CasesError, CijingError, ModelError, SpanError
from probe.fitting import cut_to_fit
from probe.given import callback, is_a, shown, size_in_bytes, truth
from probe.labels import Layer
from probe.models import LoadedModel
from probe.routes import Forward, Route, batch_for, forward_rows, route_of
from probe.rowrequest import RowRequest
from probe.spans import tokenize, tokens_of

Progress = Callable[[int, int], None]  # done, total

# Cases are sorted by length within a window, so that batches hold texts of like length and memory stays flat.
WINDOW = 32
_SHOWN_PROBLEMS = 20


def capture(
    loaded: LoadedModel,
    cases: Iterable[Case],
    *,
    options: CaptureOptions | None = None,
    route: Route | None = None,
    progress: Progress | None = None,
    on_layer: Progress | None = None,
) -> Iterator[Capture]:
    """Give one Capture a case, in the cases' order, streamed; a batch gives what single texts give.

    progress counts cases, on_layer the layers of the batch that is being computed.
    Raises ModelError or SpanError for cases that the model cannot take (all of them named at once, before any
    forward pass), BudgetError where a batch would need more memory than allowed. Arguments are checked and cases
    tokenised by the call itself, the rest as captures are drawn.
    """
    wanted = "CaptureOptions(...), or None"
    options = CaptureOptions() if options is None else is_a(options, CaptureOptions, "options", wanted=wanted)
    if route is not None:
        is_a(route, Route, "route", wanted="a Route, as route_of gives it, or None", error=ModelError)
    callback(progress, "progress")
    callback(on_layer, "on_layer")
    prepared = prepare(loaded, cases, cut=options.cut_to_fit)
    return capture_prepared(loaded, prepared, options=options, route=route, progress=progress, on_layer=on_layer)


def prepare(loaded: LoadedModel, cases: Iterable[Case], *, cut: bool | None = False) -> tuple[Prepared, ...]:
    """Tokenise the cases and find target and cues among the tokens; refuse all that cannot be captured at once.

    `cut` says whether a text that is too long is cut around its target; None where the caller has no such choice to
    offer, so that the refusal does not name it.
    """
    check_loaded(loaded)
    cut = None if cut is None else truth(cut, "cut")
    prepared, problems = [], []
    for case in _cases_of(cases):
        try:
            prepared.append(_prepare_one(loaded, case, cut=cut))
        except CijingError as error:
            problems.append(f"case {case.id!r}: {error}")
    if problems:
        head = problems[0] if len(problems) == 1 else f"{len(problems)} cases cannot be read by {loaded.name}:"
        rest = problems[:_SHOWN_PROBLEMS] if len(problems) > 1 else []
        more = [f"and {len(problems) - _SHOWN_PROBLEMS} more"] if len(problems) > _SHOWN_PROBLEMS else []
        raise SpanError("\n".join([head, *rest, *more]))
    return tuple(prepared)


def check_loaded(loaded: object) -> None:
    """Refuse what is no LoadedModel, as a model by itself (ModelError)."""
    wanted = "a LoadedModel, as load_model(...) or model_from_parts(model, tokenizer, name=...) gives it"
    is_a(loaded, LoadedModel, "loaded", wanted=wanted, error=ModelError)


def _cases_of(cases: object) -> Iterator[Case]:
    """The cases, each seen to be one: a single case, a text and a whole CaseSet are no list of them (CasesError)."""
    wanted = "a list of cases, as case_of gives them one by one"
    hint = {CaseSet: "load_cases(...).cases", Case: "a list of it: [case]"}.get(type(cases), wanted)
    if isinstance(cases, str | bytes | Mapping) or not isinstance(cases, Iterable):
        raise CasesError(f"cases is {shown(cases)}; allowed is {hint}")
    for case in cases:
        yield is_a(case, Case, "one of the cases", wanted="a Case, as case_of gives it", error=CasesError)


def capture_prepared(
    loaded: LoadedModel,
    prepared: Sequence[Prepared],
    *,
    options: CaptureOptions,
    route: Route | None = None,
    progress: Progress | None = None,
    on_layer: Progress | None = None,
) -> Iterator[Capture]:
    """As `capture`, for cases that are prepared already."""
    route = route or route_of(loaded)
    check_filters(route, options)
    check_budget(loaded, route, prepared, options)
    done = 0
    for window in _windows(prepared, WINDOW):
        ready: dict[int, Capture] = {}
        weights = _weights_now(loaded) if options.cache is not None else ""
        for place, item in enumerate(window):
            hit = load_cached(loaded, route, item, options, weights=weights)
            if hit is not None:
                ready[place] = hit
        missing = [place for place in range(len(window)) if place not in ready]
        for places in batches([len(window[place].tokens.ids) for place in missing], options.batch_tokens):
            members = [missing[place] for place in places]
            fresh = _run(loaded, route, [window[place] for place in members], options, on_layer=on_layer)
            for place, one in zip(members, fresh, strict=True):
                save_cached(loaded, route, window[place], options, one, weights=weights)
                ready[place] = one
            if progress:
                progress(done + len(ready), len(prepared))
        for place in range(len(window)):
            yield ready.pop(place)
        done += len(window)
        if progress:
            progress(done, len(prepared))


def _weights_now(loaded: LoadedModel) -> str:
    """What tells the numbers of one model apart over time: its weights and the adapters in use."""
    return f"{loaded.fingerprint_now()} {adapters_in_use(loaded.model)}"


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Group indices so that a padded batch holds at most `batch_tokens` tokens, like lengths together."""
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    group: list[int] = []
    for index in order:  # ascending, so the newcomer is the longest
        if group and lengths[index] * (len(group) + 1) > batch_tokens:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def rows_and_states(
    loaded: LoadedModel,
    route: Route,
    items: Sequence[Prepared],
    *,
    edits: Sequence[Edit] = (),
    options: CaptureOptions,
    on_layer: Progress | None = None,
) -> Forward:
    """One forward pass over a batch of prepared cases, with the rows that the options ask for."""
    request = RowRequest(
        [_queries(item, options) for item in items],
        layers=options.layers,
        heads=options.heads,
        edits=edits,
        value_norms=True,
        transformed_norms=options.transformed_norms,
        head_outputs=options.head_outputs,
        on_layer=None if on_layer is None else counting(on_layer, len(route.layers)),
    )
    batch = batch_for(loaded, [item.tokens.ids for item in items])
    return forward_rows(loaded, route, batch, request, states=options.states)


def check_filters(route: Route, options: CaptureOptions) -> None:
    """Refuse layers and heads that the model does not have."""
    have = {layer.index for layer in route.layers}
    wrong = sorted(set(options.layers or ()) - have)
    if wrong:
        raise ModelError(f"layers {_list(wrong)}: this model has attention layers {_ranges(sorted(have))}")
    wrong = sorted(set(options.heads or ()) - set(range(route.heads)))
    if wrong:
        raise ModelError(f"heads {_list(wrong)}: this model has heads 0-{route.heads - 1}")


def check_budget(loaded: LoadedModel, route: Route, prepared: Sequence[Prepared], options: CaptureOptions) -> None:
    """Refuse, before the first forward pass, what would need more memory than allowed (BudgetError)."""
    budget = budget_of(options.memory_budget, loaded.device)
    if not prepared:
        return
    worst = max(prepared, key=lambda item: len(item.tokens.ids))
    length = len(worst.tokens.ids)
    texts = max(1, min(len(prepared), options.batch_tokens // length))
    queries = len(_queries(worst, options))
    need = estimate_bytes(loaded, route, texts=texts, length=length, queries=queries, options=options)
    if need > budget:
        rows = f"{queries} row{'' if queries == 1 else 's'}"
        raise BudgetError(
            f"case {worst.case.id!r} ({length} tokens, {rows}) needs {readable_size(need)} in a batch of "
            f"{texts}; {readable_size(budget)} may be used: ask for fewer layers, smaller batches, or a larger "
            "memory budget"
        )


def budget_of(given: int | str | None, device: torch.device) -> int:
    """The bytes that may be used: those given, or half of what the device has free; BudgetError."""
    return free_memory(device) // 2 if given is None else size_in_bytes(given, "memory_budget", error=BudgetError)


def estimate_bytes(
    loaded: LoadedModel, route: Route, *, texts: int, length: int, queries: int, options: CaptureOptions
) -> int:
    """Estimate what a batch needs beyond the loaded model: rows kept, states kept, activations of one layer."""
    config = loaded.backbone.config.get_text_config()
    layers = sum(options.layers is None or layer.index in options.layers for layer in route.layers)
    heads = route.heads if options.heads is None else len(options.heads)
    width = int(config.hidden_size)
    item = torch.finfo(loaded.dtype).bits // 8
    kept_rows = layers * texts * heads * queries * length * 4
    if route.path == "eager":
        kept_rows += len(route.layers) * texts * route.heads * length * length * item
    passing_rows = 4 * texts * route.heads * queries * length * 4
    depth = len({(layer.stack, layer.index) for layer in route.layers}) + 1
    kept_states = 2 * depth * texts * length * width * item if options.states else 0
    inner = max(int(getattr(config, "intermediate_size", None) or 4 * width), width)
    written = 2 * layers * texts * heads * queries * width * 4 if options.head_outputs else 0
    activations = texts * length * (8 * width + 3 * inner) * item
    return kept_rows + passing_rows + kept_states + written + activations + _grids_bytes(config, texts, length, item)


def _grids_bytes(config: Any, texts: int, length: int, item: int) -> int:
    """What the model itself makes of text × query × key size: none where neither window nor padding needs a mask.

    A mask is a byte a pair, and once more a number a pair inside SDPA (gemma3-270m at 32,768 tokens: 5.4 GB).
    """
    window = getattr(config, "sliding_window", None)
    has_mask = texts > 1 or (window is not None and length > window)
    biases = 2 * int(config.num_attention_heads) if hasattr(config, "relative_attention_num_buckets") else 0
    return length * length * ((texts * (1 + item) if has_mask else 0) + biases * item)


def free_memory(device: torch.device) -> int:
    """Free bytes on a device; for the CPU, and MPS which shares its memory, what the system calls available."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # for its next tensors
        return int(torch.cuda.mem_get_info(device)[0]) + int(kept)
    import psutil

    return int(psutil.virtual_memory().available)


def _prepare_one(loaded: LoadedModel, case: Case, *, cut: bool | None) -> Prepared:
    tokens = tokenize(loaded.tokenizer, case.text)
    limit = loaded.max_positions
    was_cut = False
    if limit is not None and len(tokens.ids) > limit:
        if not cut:
            keeps = "cut_to_fit (--cut-to-fit) keeps the part around the target"
            advice = "choose a model with more" if cut is None else keeps
            raise ModelError(f"{len(tokens.ids)} tokens, but {loaded.name} has {limit} positions: {advice}")
        case, tokens = cut_to_fit(loaded.tokenizer, case, limit)
        was_cut = True
    target = tokens_of(case.target, tokens)
    if tokens.unknown[target].all():
        raise SpanError(f"the target {case.target.cut(case.text)!r} is unknown to the tokenizer of {loaded.name}")
    cues = tuple(tuple(int(i) for i in tokens_of(cue, tokens)) for cue in case.cues)
    return Prepared(case=case, tokens=tokens, target=tuple(int(i) for i in target), cues=cues, was_cut=was_cut)


def _queries(item: Prepared, options: CaptureOptions) -> list[int]:
    if options.whole_maps:
        return list(range(len(item.tokens.ids)))
    return sorted({*item.target, *itertools.chain.from_iterable(item.cues)})


def counting(progress: Progress, total: int) -> Callable[[Layer], None]:
    """What a row request calls for each layer, as a progress of `total` layers."""
    done = itertools.count(1)
    return lambda layer: progress(next(done), total)


def _run(
    loaded: LoadedModel,
    route: Route,
    items: Sequence[Prepared],
    options: CaptureOptions,
    *,
    on_layer: Progress | None,
) -> list[Capture]:
    forward = rows_and_states(loaded, route, items, options=options, on_layer=on_layer)
    layers = tuple(layer for layer in route.layers if layer in forward.rows)
    heads = tuple(sorted(options.heads)) if options.heads is not None else tuple(range(route.heads))
    rows = {layer: forward.rows[layer].float().cpu().numpy() for layer in layers}
    norms, projected, written = (
        {layer: found[layer].float().cpu().numpy() for layer in layers if found}
        for found in (forward.value_norms, forward.transformed_norms, forward.head_outputs)
    )
    states = {stack: [state.float().cpu().numpy() for state in layered] for stack, layered in forward.states.items()}
    captures = []
    for place, item in enumerate(items):
        asked, length = _queries(item, options), len(item.tokens.ids)
        queries = len(asked)
        one = Capture(
            case=item.case,
            tokens=item.tokens,
            target=item.target,
            cues=item.cues,
            layers=layers,
            heads=heads,
            queries=tuple(asked),
            rows=np.stack([rows[layer][place, :, :queries, :length] for layer in layers]),
            states={stack: np.stack([one[place, :length] for one in layered]) for stack, layered in states.items()},
            value_norms=_stacked(norms, layers, place, (slice(None), slice(length))),
            transformed_norms=_stacked(projected, layers, place, (slice(None), slice(length))),
            head_outputs=_stacked(written, layers, place, (slice(None), slice(queries))),
            final_norms=route.final_norms,
            path=route.path,
        )
        _check_finite(loaded, one)
        captures.append(one)
    return captures


def _stacked(
    found: Mapping[Layer, NDArray[np.float32]], layers: Sequence[Layer], place: int, part: tuple[Any, ...]
) -> NDArray[np.float32] | None:
    """One text's part of what every layer gave, [layer, ...]; None where nothing was asked for."""
    return np.stack([found[layer][place][part] for layer in layers]) if found else None


def _check_finite(loaded: LoadedModel, one: Capture) -> None:
    """Refuse NaN and infinite numbers, naming the first layer and head that has them (ModelError)."""
    norms = one.value_norms
    numbers = [("attention", one.rows), *([] if norms is None else [("value vectors", norms)])]
    found = [
        (int(layer), int(head), what)
        for what, grid in numbers
        for layer, head in np.argwhere(~np.isfinite(grid).all(axis=tuple(range(2, grid.ndim))))[:1]
    ]
    where = [f"{one.layers[layer].module}, head {one.heads[head]}: its {what}" for layer, head, what in sorted(found)]
    where += [
        f"the {stack}'s state {int(state)}"
        for stack, states in one.states.items()
        for state in np.flatnonzero(~np.isfinite(states).all(axis=(1, 2)))[:1]
    ]
    if where:
        kind = str(loaded.dtype).removeprefix("torch.")
        way_out = "" if kind == "float32" else f", or too large for {kind}: try dtype float32"
        raise ModelError(
            f"{loaded.name}: {where[0]}, on case {one.case.id!r}: not finite numbers; the weights are damaged{way_out}"
        )


def _windows(items: Sequence[Prepared], size: int) -> Iterator[Sequence[Prepared]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def readable_size(count: int) -> str:
    """A number of bytes with its unit, as an error says it."""
    units = ((1e8, 1e9, "GB"), (1e5, 1e6, "MB"), (-math.inf, 1e3, "kB"))
    return next(f"{count / unit:.1f} {name}" for least, unit, name in units if count >= least)


def _list(numbers: Collection[int]) -> str:
    return ",".join(str(number) for number in numbers)


def _ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] as "0-2,5"."""
    parts = []
    for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(parts)
