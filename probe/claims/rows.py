"""Claims about where attention goes: heads with nothing to refer to, a noun and its verb, near and far by layer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.capture import prepare
from probe.captures import Capture, CaptureOptions, Prepared
from probe.cases import Case, case_of, load_cases
from probe.claims.bench import Bench
from probe.claims.records import (
    Finding,
    Grid,
    Part,
    Range,
    Rule,
    exact,
    hits_number,
    mean_number,
    more_than,
    not_testable,
)
from probe.experiments.causes import cut_effects
from probe.findings import crossed_pairs, unit_of
from probe.measures.focus import entropy, merged_row
from probe.measures.states import context_embedding
from probe.spans import Span

Floats = NDArray[np.float64]
_LISTS, _LIST_WORDS = 24, 10
_PEAKED = 30.0
_NEAR_ZERO = 1e-20  # scores so small are equal in every number format
_ROWS_ONLY = CaptureOptions(states=False, batch_tokens=2048)
CROSSED = "我喜欢苹果但讨厌梨子"
FIVE = ("我喜欢苹果", "他讨厌菠菜", "我们热爱和平", "苹果公司发布了新品", "牛顿被苹果砸中")


# --- heads without a referent --------------------------------------------------------------------------------------


def idle_heads(bench: Bench) -> Finding:
    """Rows of a word after unrelated words: how near to uniform, and how much lies on special and first tokens."""
    parts, grids = [], []
    for loaded in (bench.encoder, bench.decoder):
        items = prepare(loaded, word_lists(seed=bench.seed), cut=None)
        found = bench.captures(loaded, items, "word lists", options=_ROWS_ONLY)
        with scaled_scores(loaded.backbone, 0.0) as switches:
            flat = bench.captures(loaded, items, "the same, scores 0", options=_ROWS_ONLY)
        with scaled_scores(loaded.backbone, _PEAKED):
            sharp = bench.captures(loaded, items, "the same, scores raised", options=_ROWS_ONLY)
        units = [item.case.id for item in items]
        even, level, peaked = (_entropies(each) for each in (found, flat, sharp))  # [case, layer, head]
        parked, left = (_parked(each) for each in (found, flat))
        judged = [
            Part(
                key="uniform",
                model=loaded.name,
                rule=Rule(confirmed=Range(above=0.95), refuted=Range(below=0.8), between="qualified"),
                unit="share",
                number=mean_number(even.mean((1, 2)), units, seed=bench.seed),
                planted=mean_number(level.mean((1, 2)), units, seed=bench.seed),
                nothing=mean_number(peaked.mean((1, 2)), units, seed=bench.seed),
            ),
            Part(
                key="parked",
                model=loaded.name,
                bears="against",
                rule=more_than(0.1, refuted_below=0.1),
                unit="share",
                number=mean_number(parked.mean((1, 2)), units, seed=bench.seed),
                planted=mean_number(1 - np.array([_uniform_share(one) for one in found]), units, seed=bench.seed),
                nothing=mean_number(left.mean((1, 2)), units, seed=bench.seed),
            ),
        ]
        parts += judged if switches else [not_testable(part, "fixed_scores") for part in judged]
        grids.append(_idle_grid(loaded.name, even, parked))
    return Finding(key="idle", parts=tuple(parts), grids=tuple(grids))


def word_lists(*, seed: int) -> list[Case]:
    """Lists of words that have nothing to do with each other; the last one is the word that is looked at."""
    words = list(dict.fromkeys(case.target.cut(case.text) for case in load_cases("relations").cases))
    rng = np.random.default_rng(seed)
    cases = []
    for number in range(_LISTS):
        drawn = [words[int(i)] for i in rng.choice(len(words), size=_LIST_WORDS, replace=False)]
        text = "、".join([*drawn, "苹果"])
        cases.append(case_of(text, target=Span(len(text) - 2, len(text)), id=f"list {number}"))
    return cases


@contextmanager
def scaled_scores(backbone: Any, factor: float) -> Iterator[int]:
    """Multiply all attention scores by a factor for a while, 0 makes rows uniform; gives how many layers have it.

    A scale of 0 itself would multiply the minus infinity of SDPA's own causal mask, which gives NaN on the CPU.
    """
    found = [module for module in backbone.modules() if isinstance(getattr(module, "scaling", None), float)]
    before = [module.scaling for module in found]
    for module, scaling in zip(found, before, strict=True):
        module.scaling = scaling * (factor or _NEAR_ZERO)
    try:
        yield len(found)
    finally:
        for module, scaling in zip(found, before, strict=True):
            module.scaling = scaling


def sinks_of(one: Capture | Prepared) -> NDArray[np.bool_]:
    """The tokens that heads park on: special ones and the first, [key]."""
    sinks: NDArray[np.bool_] = one.tokens.special.copy()
    sinks[0] = True
    return sinks


def _entropies(captures: Sequence[Capture]) -> Floats:
    return np.array([entropy(merged_row(one, one.target)) for one in captures], dtype=np.float64)


def _parked(captures: Sequence[Capture]) -> Floats:
    """Mass on the sinks above what a uniform row has there, [case, layer, head]."""
    return np.array(
        [merged_row(one, one.target)[..., sinks_of(one)].sum(-1) - _uniform_share(one) for one in captures],
        dtype=np.float64,
    )


def _uniform_share(one: Capture) -> float:
    """The share of the sinks in a uniform row over the keys that the target may see."""
    seen = (merged_row(one, one.target) > 0).any((0, 1))
    return float((seen & sinks_of(one)).sum() / seen.sum())


def _idle_grid(model: str, even: Floats, parked: Floats) -> Grid:
    rows = tuple(
        (layer, float(even[:, layer].mean()), float(parked[:, layer].mean()), float(even[:, layer].mean(0).max()))
        for layer in range(even.shape[1])
    )
    return Grid(caption="idle", model=model, columns=("layer", "entropy", "parked_above", "most_uniform"), rows=rows)


# --- a noun and its verb ------------------------------------------------------------------------------------------


def verbs(bench: Bench) -> Finding:
    """What cutting the edge to the noun's own verb or modifier does, against other words and against the other verb."""
    loaded = bench.encoder
    cases = sorted(load_cases("relations").cases, key=lambda case: not (case.group or case.text in FIVE))
    items = prepare(loaded, cases[: max(bench.sizes.relations, 12)], cut=None)
    route = bench.route(loaded)
    told = bench.told("edges of relations")
    effects = cut_effects(loaded, route, items, by_layer=(), progress=told)
    own, matched = (each[:, 0].astype(np.float64) for each in (effects.cue, effects.control))
    pairs = crossed_pairs(items, most=1000)
    rivals = [tuple(i for word in items[other].cues for i in word) for _, other in pairs]
    crossed = [items[case] for case, _ in pairs]
    between = cut_effects(loaded, route, crossed, controls=rivals, by_layer=())
    mine, theirs = (each[:, 0].astype(np.float64) for each in (between.cue, between.control))
    names = [f"{item.case.text} {unit_of(item)}" for item in crossed]
    picks = _picks(bench, crossed, rivals, mine > theirs)
    nearest = picks["pick_cut"] - picks["pick_nearest"]
    seed = bench.seed
    return Finding(
        key="verbs",
        parts=(
            _against_control("reads", own - matched, own, [unit_of(item) for item in items], bench),
            _against_control("crossed", mine - theirs, mine, names, bench),
            Part(
                key="over_nearest",
                model=loaded.name,
                bears="beside",
                rule=more_than(0.0),
                unit="points",
                number=mean_number(nearest, names, seed=seed),
                planted=mean_number(np.ones(len(names)), names, seed=seed),
                nothing=mean_number(np.zeros(len(names)), names, seed=seed),
            ),
            Part(
                key="rules_fail",
                rule=Rule(confirmed=Range(above=0.9), refuted=Range(below=0.1), between="qualified"),
                unit="share",
                number=exact(_nearest_fails(pair := _article_pair(crossed, rivals)), n=len(pair)),
                planted=exact(_nearest_fails([((5,), (1,), (4,))])),
                nothing=exact(_nearest_fails([((5,), (4,), (1,))])),
            ),
        ),
        grids=(_five_grid(items, own, matched), _pick_grid(picks, names, seed=seed)),
    )


def _against_control(key: str, gap: Floats, alone: Floats, units: Sequence[str], bench: Bench) -> Part:
    """The cue's edge above another's; planted: the other stays uncut; nothing to find: the two exchanged at random."""
    return Part(
        key=key,
        model=bench.encoder.name,
        rule=more_than(0.0),
        unit="share",
        number=mean_number(gap, units, seed=bench.seed),
        planted=mean_number(alone, units, seed=bench.seed),
        nothing=mean_number(exchanged(gap, seed=bench.seed), units, seed=bench.seed),
    )


def exchanged(gap: Floats, *, seed: int) -> Floats:
    """Differences with the two sides exchanged in half of the pairs, drawn so that the halves are alike in size."""
    order = np.argsort(np.abs(gap), kind="stable")
    signs = np.empty(len(gap))
    coin = np.random.default_rng(seed).integers(2, size=len(gap) // 2 + 1) * 2 - 1
    signs[order] = np.stack([coin, -coin], axis=1).reshape(-1)[: len(gap)]  # neighbours in size get opposite signs
    found: Floats = np.abs(gap) * signs
    return found


def _picks(
    bench: Bench, items: Sequence[Prepared], rivals: Sequence[tuple[int, ...]], cut: NDArray[np.bool_]
) -> dict[str, Floats]:
    """1 where each way of choosing between the two verbs takes the noun's own: [pair] by way."""
    captures = bench.captures(bench.encoder, items, "crossed pairs")
    mass, near, bag = [], [], []
    for one, rival in zip(captures, rivals, strict=True):
        own = [i for word in one.cues for i in word]
        row = merged_row(one, one.target).mean((0, 1))
        mass.append(row[own].sum() > row[list(rival)].sum())
        near.append(_gap(one.target, own) < _gap(one.target, rival))
        states = next(iter(one.states.values()))[0].astype(np.float64)
        states = states - context_embedding(one)
        noun = states[list(one.target)].mean(0)
        bag.append(_cosine(noun, states[own].mean(0)) > _cosine(noun, states[list(rival)].mean(0)))
    ways = {"pick_cut": cut, "pick_mass": mass, "pick_nearest": near, "pick_bag": bag}
    return {name: np.asarray(found, dtype=np.float64) for name, found in ways.items()}


Places = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # tokens of the noun, its verb, the other verb


def _article_pair(items: Sequence[Prepared], rivals: Sequence[tuple[int, ...]]) -> list[Places]:
    """The two nouns of the article's crossed sentence with both verbs."""
    return [
        (item.target, tuple(i for word in item.cues for i in word), rival)
        for item, rival in zip(items, rivals, strict=True)
        if item.case.text == CROSSED
    ]


def _nearest_fails(pairs: Sequence[Places]) -> float:
    """The share of nouns whose nearest verb is not their own."""
    return float(np.mean([_gap(noun, own) >= _gap(noun, rival) for noun, own, rival in pairs]))


def _gap(word: Sequence[int], other: Sequence[int]) -> int:
    return max(min(other) - max(word), min(word) - max(other), 0)


def _cosine(one: Floats, other: Floats) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other) + 1e-12))


def _five_grid(items: Sequence[Prepared], own: Floats, matched: Floats) -> Grid:
    rows = tuple(
        (item.case.text, item.case.target.cut(item.case.text), unit_of(item), _known(own[i]), _known(matched[i]))
        for i, item in enumerate(items)
        if item.case.text in FIVE or item.case.group == "like-apple"
    )
    return Grid(caption="five", columns=("text", "target", "cue", "effect_own", "effect_control"), rows=rows)


def _pick_grid(picks: dict[str, Floats], names: Sequence[str], *, seed: int) -> Grid:
    numbers = {way: hits_number(right, names, seed=seed) for way, right in picks.items()}
    rows = tuple((way, one.estimate, one.low, one.high) for way, one in numbers.items())
    return Grid(caption="picks", columns=("way", "share_own", "low", "high"), rows=rows)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
