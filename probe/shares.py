"""How a row's attention is shared among the parts of a prompt: sink, template, question, each passage, the answer."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.capture import Progress, budget_of, check_filters, check_loaded, counting, readable_size
from probe.captures import CaptureOptions
from probe.casefiles import nearest
from probe.errors import BudgetError, CijingError, ModelError, PromptError, TapError
from probe.generation import generate_rows
from probe.given import callback, is_a, one_of, whole_number, whole_numbers
from probe.labels import Layer
from probe.models import LoadedModel
from probe.prompts import MappedPrompt, PartKind, check_tokenizer
from probe.routes import Path, Route, batch_for, forward_rows, route_of
from probe.rowrequest import AttentionCall, RowRequest
from probe.rows import allowed_keys
from probe.spans import TokenMap, tokenize, tokens_of
from probe.transcripts import AnswerBy, Transcript, answered, check_ids

Rows = Literal["answer", "target", "last"]
ShareKind = Literal["sink", "answer"] | PartKind
_KINDS: tuple[PartKind, ...] = ("template", "instruction", "question", "passage")
_AT_ONCE = 7  # copies of one layer's rows: products, scaled, masked, weights, and what is checked and summed


@dataclass(frozen=True, kw_only=True)
class SharePart:
    """One column of the shares: all tokens of one kind or, of passages, of one name."""

    kind: ShareKind
    name: str = ""  # of a passage its id
    tokens: int

    @property
    def label(self) -> str:
        """What it is called: a passage by its id, anything else by its kind."""
        return self.name if self.kind == "passage" else self.kind


@dataclass(frozen=True, kw_only=True, eq=False)
class PartShares:
    """Attention of some rows, summed over the tokens of each part: every row's shares make 1.

    A share grows with the tokens of its part: a passage of 200 tokens gets more than one of 20 by its length alone.
    So there are two numbers to hold it against, what even attention would give, and `per_token`, the share over the
    part's share of the tokens.
    """

    prompt: str
    """Its id."""
    rows_of: Rows
    parts: tuple[SharePart, ...]
    """Sink, template, instruction, question, each passage in its order, answer so far: those that there are."""
    layers: tuple[Layer, ...]
    heads: tuple[int, ...]
    queries: tuple[int, ...]
    """Token positions of the rows; a row at p gives the token at p + 1."""
    shares: NDArray[np.float32]
    """[layer, head, row, part]"""
    token_shares: NDArray[np.float64]
    """Each part's share of the tokens up to the row's own (of an encoder, of all): [row, part]."""
    uniform: NDArray[np.float64]
    """The shares of a row that is even over all tokens that its layer lets it see: [layer, row, part].

    `token_shares` again, but for windows. On the eager path windows are not known, and it is `token_shares`.
    """
    tokens: TokenMap
    """Prompt, then answer."""
    prompt_length: int
    answer: str
    """The answer as text, "" without one."""
    path: Path

    @property
    def per_token(self) -> NDArray[np.float64]:
        """Shares over shares of the tokens: 1 where a token of the part gets as much as the row's tokens on average.

        [layer, head, row, part]; NaN where a part has no token before the row.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio: NDArray[np.float64] = self.shares / np.where(self.token_shares > 0, self.token_shares, np.nan)
        return ratio

    def part(self, label: str) -> int:
        """The place of a part on the last axis, by a passage's id or a kind; PromptError for one that is not there."""
        labels = [part.label for part in self.parts]
        passages = [place for place, part in enumerate(self.parts) if part.kind == "passage" and part.name == label]
        if not passages and label not in labels:
            raise PromptError(f"prompt {self.prompt}: no part {label!r}{nearest(label, labels)}")
        return passages[0] if passages else labels.index(label)

    def head_shares(self, label: str) -> NDArray[np.float64]:
        """A part's share in each head, mean over the rows: [layer, head]."""
        found: NDArray[np.float64] = self.shares[..., self.part(label)].mean(-1, dtype=np.float64)
        return found

    def strongest(self, label: str, count: int = 3) -> list[tuple[Layer, int, float]]:
        """The heads that give a part the most, the strongest first, of equal ones the first: layer, head, share."""
        grid = self.head_shares(label)
        order = np.argsort(-grid, axis=None, kind="stable")[:count]
        places = (divmod(int(place), len(self.heads)) for place in order)
        return [(self.layers[layer], self.heads[head], float(grid[layer, head])) for layer, head in places]

    def summary(self) -> pd.DataFrame:
        """A row a part: kind, part, tokens, and means over layers, heads and rows: share, uniform, per_token.

        per_token is the mean share over the mean share of the tokens.
        """
        share, uniform = self.shares.mean((0, 1, 2), dtype=np.float64), self.uniform.mean((0, 1))
        of_tokens = self.token_shares.mean(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            per_token = share / np.where(of_tokens > 0, of_tokens, np.nan)
        names = {
            "kind": [part.kind for part in self.parts],
            "part": [part.label for part in self.parts],
            "tokens": [part.tokens for part in self.parts],
        }
        return pd.DataFrame({**names, "share": share, "uniform": uniform, "per_token": per_token})

    def table(self) -> pd.DataFrame:
        """Every share in one row: prompt, layer, head, row (its token's position), row_token, kind, part, numbers."""
        layer, head, row, part = (grid.ravel() for grid in np.indices(self.shares.shape, dtype=np.int32))
        at = np.array(self.queries, dtype=np.int32)[row]
        kinds, labels = ([getattr(one, name) for one in self.parts] for name in ("kind", "label"))
        return pd.DataFrame(
            {
                "prompt": self.prompt,
                "layer": np.array([one.index for one in self.layers], dtype=np.int32)[layer],
                "head": np.array(self.heads, dtype=np.int32)[head],
                "row": at,
                "row_token": np.array(self.tokens.labels, dtype=object)[at],
                "kind": np.array(kinds, dtype=object)[part],
                "part": np.array(labels, dtype=object)[part],
                "tokens": np.array([one.tokens for one in self.parts], dtype=np.int32)[part],
                "share": self.shares.ravel(),
                "uniform": self.uniform[layer, row, part],
                "per_token": self.per_token.ravel(),
            }
        )


def part_shares(
    loaded: LoadedModel,
    prompt: MappedPrompt,
    *,
    answer: str | Sequence[int] | None = None,
    generate: int = 0,
    rows: Rows | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    route: Route | None = None,
    memory_budget: int | str | None = None,
    on_layer: Progress | None = None,
    on_token: Progress | None = None,
) -> PartShares:
    """How the attention of some rows is shared among the prompt's parts, by layer, head and row.

    rows: "answer", those that give the answer's tokens; "target", those of the prompt's target word; "last", the
    prompt's last, which gives the first new token. None takes the first of these that there is. A decoder's answer is
    a text, ids, or is generated, greedily, with at most `generate` tokens (loaded with head="lm"); what was generated
    is read again in one pass, whose rows are those of generation. An encoder has only rows of a target; it reads the
    prompt's token types.
    The sink is the first token alone, of a pair the first special one; families with a learned sink have what that
    takes counted in. Rows are summed layer by layer as they come, so the peak is some seven copies of one layer's:
    180 MB for 100 rows of 32 heads on 2,000 tokens, whatever the number of layers. The eager path needs whole maps.
    Raises ModelError, PromptError, SpanError, TapError and BudgetError, each naming the prompt.
    """
    check_loaded(loaded)
    is_a(prompt, MappedPrompt, "prompt", wanted="a MappedPrompt, as load_prompts gives them", error=PromptError)
    try:
        return _shares(
            loaded,
            prompt,
            answer=answer,
            generate=whole_number(generate, "generate", least=0, error=ModelError),
            rows=rows,
            filters=CaptureOptions(layers=layers, heads=heads, memory_budget=memory_budget),
            route=route or route_of(loaded),
            on_layer=callback(on_layer, "on_layer"),
            on_token=callback(on_token, "on_token"),
        )
    except CijingError as error:
        raise type(error)(f"prompt {prompt.id}: {error}") from error


def _shares(
    loaded: LoadedModel,
    prompt: MappedPrompt,
    *,
    answer: str | Sequence[int] | None,
    generate: int,
    rows: Rows | None,
    filters: CaptureOptions,
    route: Route,
    on_layer: Progress | None,
    on_token: Progress | None,
) -> PartShares:
    rows_of = _rows_asked(loaded, prompt, rows, has_answer=answer is not None or generate > 0)
    if answer is not None and generate:
        raise ModelError("an answer and a number of tokens to generate are given; allowed is one of both")
    check_ids(loaded, prompt.tokens.ids, what="prompt")
    check_tokenizer(prompt, loaded.tokenizer)
    check_filters(route, filters)
    types = _token_types(loaded, prompt)
    _check_length(loaded, len(prompt.tokens.ids) + max(generate - 1, 0))
    if generate:
        answer = _generated(loaded, prompt, generate, route=route, on_token=on_token)
    whole = _transcript(loaded, prompt, answer, by="generated" if generate else "ids")
    queries = _queries(prompt, whole, rows_of)
    read = len(whole.tokens.ids) - (rows_of == "answer")  # the last token's row gives none of the answer's
    _check_length(loaded, read)
    parts, groups = _parts(prompt, read, has_answer=rows_of == "answer")
    plan = _Plan(
        loaded=loaded,
        route=route,
        layers=tuple(layer for layer in route.layers if filters.layers is None or layer.index in filters.layers),
        heads=tuple(range(route.heads)) if filters.heads is None else tuple(sorted(filters.heads)),
        queries=queries,
        groups=groups,
        keys=read,
    )
    plan.check_budget(filters)
    batch = batch_for(loaded, [whole.tokens.ids[:read]], token_types=None if types is None else [types])
    shares, uniform = _summed(plan, batch, on_layer=on_layer)
    return PartShares(
        prompt=prompt.id,
        rows_of=rows_of,
        parts=parts,
        layers=plan.layers,
        heads=plan.heads,
        queries=queries,
        shares=shares,
        token_shares=plan.token_shares,
        uniform=uniform,
        tokens=whole.tokens,
        prompt_length=whole.prompt_length,
        answer=whole.tokens.text[len(prompt.tokens.text) :],
        path=route.path,
    )


# ---- what is asked ---------------------------------------------------------------------------------------------


def _rows_asked(loaded: LoadedModel, prompt: MappedPrompt, rows: Rows | None, *, has_answer: bool) -> Rows:
    """Which rows to sum; ModelError and PromptError for those that this model or prompt does not have."""
    if loaded.kind == "encoder-decoder":
        raise ModelError(
            f"{loaded.name} reads its prompt apart from its answer; allowed are decoders, and encoders with a target"
        )
    if loaded.kind == "encoder" and has_answer:
        raise ModelError(f"{loaded.name} is an encoder, it writes no answers; allowed are rows of a target")
    default = "answer" if has_answer else "target" if prompt.target or loaded.kind == "encoder" else "last"
    asked = cast("Rows", default if rows is None else one_of(rows, "rows", get_args(Rows), error=PromptError))
    if asked == "answer" and not has_answer:
        raise PromptError('rows "answer" need an answer: give its text or ids, or a number of tokens to generate')
    if asked != "answer" and has_answer:
        raise PromptError(f'rows "{asked}" stand in the prompt, before any answer: leave the answer out')
    if asked == "target" and prompt.target is None:
        raise PromptError('rows "target" need a target, and the prompt names none')
    if asked == "last" and loaded.kind == "encoder":
        raise ModelError(f"{loaded.name} is an encoder, its last row gives no token; allowed are rows of a target")
    return asked


def _token_types(loaded: LoadedModel, prompt: MappedPrompt) -> tuple[int, ...] | None:
    """The prompt's token types where the model has an embedding for them; ModelError where it lacks one."""
    if prompt.token_types is None:
        return None
    config = loaded.backbone.config
    known = int(getattr(config, "type_vocab_size", 0) or 0) if loaded.kind == "encoder" else 0
    highest = max(prompt.token_types)
    if highest >= max(known, 1):
        has = f"token types 0 to {known - 1}" if known else "no token types"
        raise ModelError(f"the prompt has token type {highest}, but {loaded.name} has {has}")
    return prompt.token_types if known else None


def _check_length(loaded: LoadedModel, length: int) -> None:
    if loaded.max_positions is not None and length > loaded.max_positions:
        raise ModelError(f"{length} tokens to read, but {loaded.name} has {loaded.max_positions} positions")


def _generated(
    loaded: LoadedModel, prompt: MappedPrompt, count: int, *, route: Route, on_token: Progress | None
) -> tuple[int, ...]:
    """The model's own answer; of its rows only one head's are kept."""
    first = {route.layers[0].index}
    found = generate_rows(
        loaded,
        prompt.tokens.ids,
        max_new_tokens=count,
        layers=first,
        heads={0},
        prompt_rows="last",
        route=route,
        on_token=on_token,
    )
    return found.ids


def _transcript(
    loaded: LoadedModel, prompt: MappedPrompt, answer: str | Sequence[int] | None, *, by: AnswerBy
) -> Transcript:
    """The prompt with its answer, which is tokenised apart from it where it is a text."""
    opened = Transcript(tokens=prompt.tokens, prompt_length=len(prompt.tokens.ids), answer_by=by)
    if answer is None:
        return opened
    if isinstance(answer, str):
        if not answer:
            raise PromptError("the answer is empty; allowed is a text or token ids, at least one")
        return answered(loaded, opened, tokenize(loaded.tokenizer, answer, add_special_tokens=False).ids, by="separate")
    ids = whole_numbers(answer, "the answer", error=PromptError)
    check_ids(loaded, ids, what="answer")
    return answered(loaded, opened, ids, by=by)


def _queries(prompt: MappedPrompt, whole: Transcript, rows: Rows) -> tuple[int, ...]:
    if rows == "target" and prompt.target is not None:
        return tuple(tokens_of(prompt.target, prompt.tokens).tolist())
    last = len(prompt.tokens.ids) - 1
    return (last,) if rows == "last" else tuple(range(last, len(whole.tokens.ids) - 1))


def _parts(
    prompt: MappedPrompt, read: int, *, has_answer: bool
) -> tuple[tuple[SharePart, ...], tuple[tuple[int, ...], ...]]:
    """The parts and the token positions of each: every position that is read stands in exactly one."""
    sink = _sink_of(prompt)
    groups: dict[tuple[ShareKind, str], list[int]] = {("sink", ""): [sink]}
    for kind in _KINDS:
        for part in prompt.parts_of(kind):
            own = groups.setdefault((kind, part.name if kind == "passage" else ""), [])
            own += [place for place in range(part.first, part.stop) if place != sink]
    if has_answer:
        groups["answer", ""] = list(range(len(prompt.tokens.ids), read))
    parts = (SharePart(kind=kind, name=name, tokens=len(group)) for (kind, name), group in groups.items())
    return tuple(parts), tuple(map(tuple, groups.values()))


def _sink_of(prompt: MappedPrompt) -> int:
    special = np.flatnonzero(prompt.tokens.special)
    return int(special[0]) if prompt.form == "pair" and len(special) else 0


# ---- rows, summed as they come ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class _Plan:
    """Which rows of which heads, over which groups of tokens."""

    loaded: LoadedModel
    route: Route
    layers: tuple[Layer, ...]
    heads: tuple[int, ...]
    queries: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    keys: int

    @property
    def causal(self) -> bool:
        """Whether a row may see nothing after its own token."""
        return self.loaded.kind != "encoder"

    @property
    def token_shares(self) -> NDArray[np.float64]:
        """Each group's share of the tokens up to the row's own, or of all: [row, part]."""
        ends = np.array(self.queries)[:, None] if self.causal else np.full((len(self.queries), 1), self.keys)
        counts = np.concatenate([(np.array(group) <= ends).sum(1, keepdims=True) for group in self.groups], axis=1)
        shares: NDArray[np.float64] = counts / counts.sum(1, keepdims=True)
        return shares

    def check_budget(self, filters: CaptureOptions) -> None:
        """BudgetError, before the pass, where sums and one layer's rows (all whole maps, where eager) are too large."""
        one = 4 * len(self.heads) * len(self.queries) * self.keys
        kept = 4 * len(self.layers) * len(self.heads) * len(self.queries) * len(self.groups)
        need = _AT_ONCE * one + kept
        if self.route.path == "eager":
            item = torch.finfo(self.loaded.dtype).bits // 8
            need += len(self.route.layers) * self.route.heads * self.keys**2 * item + len(self.layers) * one
        budget = budget_of(filters.memory_budget, self.loaded.device)
        if need > budget:
            raise BudgetError(
                f"{len(self.queries)} rows over {self.keys} tokens need {readable_size(need)}; "
                f"{readable_size(budget)} may be used: fewer heads or rows, or a larger memory budget"
            )


class _PartSums(RowRequest):
    """Sums each layer's rows over the groups as soon as they are there, and keeps nothing else of them."""

    def __init__(self, plan: _Plan, *, on_layer: Progress | None) -> None:
        super().__init__(
            [plan.queries],
            layers={layer.index for layer in plan.layers},
            heads=plan.heads,
            inspect=self.look,
            on_layer=None if on_layer is None else counting(on_layer, len(plan.route.layers)),
        )
        self.plan = plan
        self.uniform: dict[Layer, NDArray[np.float64]] = {}  # [row, part]
        self.learned_sinks: set[Layer] = set()

    def keep(self, layer: Layer, rows: Tensor) -> None:
        """Store a layer's sums, [batch, head, query, part]."""
        _check_keys(self.plan, layer, rows)
        super().keep(layer, _over(self.plan.groups, rows))

    def look(self, call: AttentionCall) -> None:
        """Note which tokens the layer lets each row see, and whether a learned sink takes part."""
        if call.rows is None:
            return
        if call.terms.sinks is not None:
            self.learned_sinks.add(call.layer)
        positions = self.positions_in(call.layer, call.query)
        seen = allowed_keys(call.terms, positions, queries=call.query.shape[2], keys=call.key.shape[2])
        if seen is None:
            seen = torch.ones_like(call.rows[:, :1], dtype=torch.bool)
        elif seen.dtype != torch.bool:
            seen = seen > torch.finfo(seen.dtype).min / 2
        counts = _over(self.plan.groups, seen.float())[0].double()  # [1 or head, row, part]
        self.uniform[call.layer] = (counts / counts.sum(-1, keepdim=True)).mean(0).cpu().numpy()


def _summed(
    plan: _Plan, batch: dict[str, Tensor], *, on_layer: Progress | None
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """One forward pass: shares [layer, head, row, part] and uniform [layer, row, part]."""
    request = _PartSums(plan, on_layer=on_layer)
    forward = forward_rows(plan.loaded, plan.route, batch, request, states=False)
    shares, uniform = [], []
    for layer in plan.layers:
        found = forward.rows.pop(layer)
        if plan.route.path == "eager":
            _check_keys(plan, layer, found)
            found = _over(plan.groups, found)
        own = found[0].cpu().numpy()
        if layer in request.learned_sinks:
            own[..., 0] += 1 - own.sum(-1)
        _check_sums(plan, layer, own)
        shares.append(own)
        uniform.append(request.uniform.get(layer, plan.token_shares))
    return np.stack(shares), np.stack(uniform)


def _over(groups: Sequence[Sequence[int]], grid: Tensor) -> Tensor:
    """A grid's last axis summed over groups of its positions."""
    index = (torch.tensor(group, dtype=torch.int64, device=grid.device) for group in groups)
    return torch.stack([grid.index_select(-1, group).sum(-1) for group in index], dim=-1)


def _check_keys(plan: _Plan, layer: Layer, rows: Tensor) -> None:
    """TapError where columns are not the prompt's tokens, or a decoder's row sees tokens after its own."""
    if rows.shape[-1] != plan.keys:
        raise TapError(f"{layer.module} sees {rows.shape[-1]} places, but {plan.keys} tokens were read")
    if plan.causal:
        after = torch.arange(plan.keys, device=rows.device) > torch.tensor(plan.queries, device=rows.device)[:, None]
        if bool((rows[0].masked_fill(~after, 0.0) > 0).any()):
            raise TapError(f"{layer.module}: a row sees tokens after its own, so there is no answer so far")


def _check_sums(plan: _Plan, layer: Layer, shares: NDArray[np.float32]) -> None:
    """Refuse shares that are not finite (ModelError) or of which a row's do not make 1 (TapError)."""
    if not np.isfinite(shares).all():
        raise ModelError(f"{layer.module}: its attention holds numbers that are not finite; the weights are damaged")
    exact = plan.route.path == "tap" or plan.loaded.dtype == torch.float32
    off = float(np.abs(shares.sum(-1) - 1).max())
    if off > (1e-4 if exact else 3e-2):
        raise TapError(f"{layer.module}: a row's weights are {off:.3f} away from a sum of 1; shares need whole rows")
