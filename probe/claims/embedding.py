"""Claims about vectors: neighbours in the embedding table, one row for every sense, contexts, what an output is."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from probe.capture import prepare
from probe.cases import load_cases
from probe.claims.bench import Bench, TargetStates, first_groups
from probe.claims.records import (
    Cell,
    Finding,
    Grid,
    Number,
    Part,
    Range,
    Rule,
    hits_number,
    less_than,
    mean_number,
    more_than,
)
from probe.findings import unit_of
from probe.measures.states import most_frequent_sense, sense_accuracy
from probe.models import LoadedModel
from probe.routes import batch_for
from probe.rowrequest import AttentionCall, RowRequest
from probe.rowtap import tap
from probe.stats import FEWEST_FOR_INTERVAL

Floats = NDArray[np.float64]

FRUIT = (
    *("香蕉", "葡萄", "草莓", "西瓜", "桃子", "橙子", "柠檬", "樱桃"),
    *("菠萝", "芒果", "荔枝", "橘子", "柚子", "石榴", "椰子", "蓝莓"),
    *("梨", "桃", "杏", "枣", "水果", "果汁", "番茄", "蔬菜"),
)
PRODUCT = (
    *("手机", "电脑", "平板", "耳机", "华为", "微软", "谷歌", "三星"),
    *("诺基亚", "联想", "芯片", "软件", "硬件", "键盘", "屏幕", "相机"),
    *("索尼", "亚马逊", "英特尔", "戴尔", "iPhone", "iPad", "Android", "Google"),
)
_NEIGHBOURS = 10
_SHUFFLES = 20
_PAIR = ("我吃苹果", "苹果公司发布新品")


def neighbours(bench: Bench) -> Finding:
    """Whether fruit and product words lie apart in the embedding table, and whether that tells senses of 苹果 apart."""
    parts, listed = [], []
    for loaded in (bench.encoder, bench.decoder):
        words, kinds, rows = table_rows(loaded)
        if kinds.count("fruit") < FEWEST_FOR_INTERVAL:
            continue  # this tokenizer has too few of them as one token
        number, planted, shuffled = _clusters(words, kinds, rows, seed=bench.seed)
        parts.append(
            Part(
                key="cluster",
                model=loaded.name,
                rule=more_than(0.5),
                unit="share",
                number=number,
                planted=planted,
                nothing=shuffled,
            )
        )
        listed.append((loaded.name, " ".join(nearest_words(loaded, "苹果"))))
    part, grid = _one_row(bench)
    first = Grid(caption="nearest", columns=("model", "nearest"), rows=tuple(listed))
    return Finding(key="neighbours", parts=(*parts, part), grids=(first, grid))


def table_rows(loaded: LoadedModel) -> tuple[list[str], list[str], Floats]:
    """Fruit and product words that are one token each, their kinds, and their rows of the table [word, dim]."""
    table = loaded.backbone.get_input_embeddings().weight
    words, kinds, rows = [], [], []
    for kind, names in (("fruit", FRUIT), ("product", PRODUCT)):
        for name in names:
            ids = loaded.tokenizer(name, add_special_tokens=False)["input_ids"]
            ids = [i for i in ids if loaded.tokenizer.decode([i]).strip()]  # the mark of a word's beginning
            if len(ids) == 1:
                words.append(name)
                kinds.append(kind)
                rows.append(table[ids[0]].detach().float().cpu().numpy())
    # As many of either kind, or guessing would be right more often than not.
    most = min(kinds.count(kind) for kind in ("fruit", "product"))
    kept = [*range(most), *range(kinds.count("fruit"), kinds.count("fruit") + most)]
    return [words[i] for i in kept], [kinds[i] for i in kept], np.array(rows, dtype=np.float64)[kept]


def nearest_is_alike(rows: Floats, kinds: Sequence[str]) -> Floats:
    """1 where a word's nearest other word, by centred cosine, is of its kind, else 0: [word]."""
    unit = _unit(rows - rows.mean(0))
    near = unit @ unit.T
    np.fill_diagonal(near, -np.inf)
    return np.array([float(kinds[int(j)] == kinds[i]) for i, j in enumerate(near.argmax(1))])


def _clusters(words: Sequence[str], kinds: Sequence[str], rows: Floats, *, seed: int) -> tuple[Number, Number, Number]:
    """The share of words whose nearest word is of their kind, balanced; the same planted, and with kinds shuffled."""
    rng = np.random.default_rng(seed)
    sign = np.where(np.array(kinds) == "fruit", 1.0, -1.0)[:, None]
    planted = rng.normal(size=rows.shape) + 3.0 * sign
    shuffled = np.mean([_alike_shuffled(rows, kinds, rng) for _ in range(_SHUFFLES)], axis=0)
    number, found = (hits_number(nearest_is_alike(each, kinds), words, seed=seed) for each in (rows, planted))
    return number, found, mean_number(shuffled, words, seed=seed)


def _alike_shuffled(rows: Floats, kinds: Sequence[str], rng: np.random.Generator) -> Floats:
    return nearest_is_alike(rows, [kinds[int(i)] for i in rng.permutation(len(kinds))])


def nearest_words(loaded: LoadedModel, word: str) -> list[str]:
    """The tokens nearest to a word's last token in the whole table, by cosine; other spellings of it left out."""
    table = loaded.backbone.get_input_embeddings().weight.detach().float()
    here = table[loaded.tokenizer(word, add_special_tokens=False)["input_ids"][-1]]
    near = (table @ here) / (table.norm(dim=1).clamp_min(1e-9) * here.norm())
    shown: list[str] = []
    for place in near.topk(min(20 * _NEIGHBOURS, len(near))).indices.tolist():
        text = loaded.tokenizer.decode([place]).strip()
        if text and text.isprintable() and word not in text and text not in shown:
            shown.append(text)
    return shown[:_NEIGHBOURS]


def _one_row(bench: Bench) -> tuple[Part, Grid]:
    """Sense accuracy from the row of the table, above guessing; by construction the row is one for every sense."""
    found = bench.apple_states
    table = bench.encoder.backbone.get_input_embeddings().weight.detach().float().cpu().numpy()
    rows = np.array([table[[one.tokens.ids[i] for i in one.target]].mean(0) for one in found.items], dtype=np.float64)
    last = found.states[:, -1]
    planted = planted_states(rows, found.senses, seed=bench.seed)
    units = [unit_of(one) for one in found.items]
    baseline = most_frequent_sense(found.senses)
    told = {
        name: told_apart(states, found.senses, found.groups)
        for name, states in (("row", rows), ("last", last), ("planted", planted), ("same", np.zeros_like(rows)))
    }
    gain = {name: mean_number(right - baseline, units, seed=bench.seed) for name, right in told.items()}
    part = Part(
        key="row_tells",
        model=bench.encoder.name,
        rule=more_than(0.05, refuted_below=0.05),
        unit="points",
        number=gain["row"],
        planted=gain["planted"],
        nothing=gain["same"],
    )
    lines = [("known_row", told["row"]), ("known_guess", baseline), ("known_last", told["last"])]
    rows_shown: list[tuple[Cell, ...]] = [
        (name, *_three(hits_number(right, units, seed=bench.seed))) for name, right in lines
    ]
    distinct = len(np.unique(rows.round(6), axis=0))
    rows_shown.append(("known_distinct", float(distinct), None, None))
    return part, Grid(caption="one_row", columns=("known_from", "accuracy", "low", "high"), rows=tuple(rows_shown))


def told_apart(states: Floats, senses: Sequence[str], groups: Sequence[str]) -> Floats:
    """1 where a case's sense is told by the nearest centroid of the other groups, [case].

    Where all states are equal there is nothing to go by, and the most frequent sense is guessed.
    """
    found = sense_accuracy(states[:, None], senses, groups)
    return found.correct[:, 0] if found.visible[0] else most_frequent_sense(senses)


def planted_states(rows: Floats, senses: Sequence[str], *, seed: int) -> Floats:
    """States in which each sense has a direction of its own, ten times as long as the noise on it: [case, dim]."""
    rng = np.random.default_rng(seed)
    names = list(dict.fromkeys(senses))
    directions = rng.normal(size=(len(names), rows.shape[1]))
    noise = rng.normal(size=rows.shape)
    found: Floats = rows + 10 * directions[[names.index(sense) for sense in senses]] + noise
    return found


# --- two contexts ------------------------------------------------------------------------------------------------


def contexts(bench: Bench) -> Finding:
    """Cosines of 苹果 between fruit and company sentences, raw and centred, and the article's own pair by layer.

    Watched by the row of the table, which no context reaches, and by the states of other words in the same sentences.
    """
    found, seed = bench.apple_states, bench.seed
    senses = np.array(found.senses)
    fruit, company = found.states[senses == "fruit"], found.states[senses == "company"]
    units = [unit_of(one) for one, sense in zip(found.items, senses, strict=True) if sense == "fruit"]
    rng = np.random.default_rng(seed)
    alone = rng.normal(size=(2, *fruit[:, -1].shape))
    row = np.repeat(_table_row(bench, found)[None], len(fruit), axis=0)
    raw = Part(
        key="raw",
        model=bench.encoder.name,
        rule=less_than(0.3, refuted_above=0.7),
        unit="cosine",
        number=mean_number(_cosines(fruit[:, -1], company[:, -1]), units, seed=seed),
        planted=mean_number(_cosines(alone[0], alone[1]), units, seed=seed),
        nothing=mean_number(_cosines(row, row), units, seed=seed),
    )
    both = np.concatenate([fruit, company])
    words = np.concatenate([fruit[:, -1], cue_states(found, "fruit")])
    order = rng.permutation(len(both))
    centred = Part(
        key="centred",
        model=bench.encoder.name,
        rule=more_than(0.2, refuted_below=0.05),
        unit="cosine",
        number=mean_number(_sense_gap(both[:, -1], len(fruit)), units, seed=seed),
        planted=mean_number(_sense_gap(words, len(fruit)), units, seed=seed),
        nothing=mean_number(_sense_gap(both[order, -1], len(fruit)), units, seed=seed),
    )
    return Finding(key="contexts", parts=(raw, centred), grids=(_pair_grid(bench, both),))


def cue_states(found: TargetStates, sense: str) -> Floats:
    """Last states of the cue words in the cases of one sense, the mean over their tokens: [case, dim]."""
    states = []
    for one, own in zip(found.items, found.senses, strict=True):
        if own == sense:
            last = next(iter(one.states.values()))[-1]
            states.append(last[[place for word in one.cues for place in word]].mean(0))
    return np.array(states, dtype=np.float64)


def _table_row(bench: Bench, found: TargetStates) -> Floats:
    """The encoder's row of 苹果, the mean over its tokens: [dim]."""
    table = bench.encoder.backbone.get_input_embeddings().weight.detach().float().cpu().numpy()
    first = found.items[0]
    row: Floats = table[[first.tokens.ids[place] for place in first.target]].mean(0).astype(np.float64)
    return row


def _cosines(one: Floats, other: Floats) -> Floats:
    """Mean cosine of each state of `one` with all of `other`, [case]."""
    found: Floats = (_unit(one) @ _unit(other).T).mean(1)
    return found


def _sense_gap(states: Floats, first: int) -> Floats:
    """For each of the first cases: mean cosine with its own kind (itself left out) minus with the others, centred."""
    unit = _unit(states - states.mean(0))
    near = unit @ unit.T
    own = (near[:first, :first].sum(1) - 1.0) / max(first - 1, 1)
    gap: Floats = own - near[:first, first:].mean(1)
    return gap


def _pair_grid(bench: Bench, known: Floats) -> Grid:
    """The article's two sentences by state layer: raw cosine, and centred on the mean of all known states of 苹果."""
    from probe.cases import case_of

    items = prepare(bench.encoder, [case_of(text, target="苹果", id=text) for text in _PAIR], cut=None)
    one, other = (
        next(iter(found.states.values()))[:, list(found.target)].mean(1).astype(np.float64)
        for found in bench.captures(bench.encoder, items, "the article's pair")
    )
    mean = known.mean(0)
    rows = [
        (layer, float((_unit(a) @ _unit(b)).item()), float((_unit(a - m) @ _unit(b - m)).item()))
        for layer, (a, b, m) in enumerate(zip(one, other, mean, strict=True))
    ]
    return Grid(caption="pair", columns=("state_layer", "raw", "centred"), rows=tuple(rows))


# --- output minus embedding ---------------------------------------------------------------------------------------


def output_space(bench: Bench) -> Finding:
    """Whether attention's output, before W_O, is what its weights make of the inputs themselves, W_V left out.

    Only then could output and embedding be compared dimension by dimension. Watched by the same rows with another
    W_V: the identity, and a rotation at random.
    """
    loaded, seed = bench.encoder, bench.seed
    cases = first_groups(load_cases("relations").cases, 2)[: min(24, bench.sizes.relations)]
    items = prepare(loaded, cases, cut=None)
    own, mixed, turned, units = [], [], [], []
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(_width(loaded),) * 2))
    for item in items:
        calls: list[AttentionCall] = []
        request = RowRequest([list(item.target)], layers=[0], inspect=calls.append)
        with torch.inference_mode(), tap(loaded.backbone, request):
            output = loaded.backbone(**batch_for(loaded, [item.tokens.ids]), output_hidden_states=True)
        first = next(call for call in calls if call.layer.index == 0)
        state = output.hidden_states[0][0].double().cpu().numpy()
        target = list(item.target)
        written = first.output[0, target].flatten(1).double().mean(0).cpu().numpy()
        assert first.rows is not None
        rows = first.rows[0].double().mean(1).cpu().numpy()  # [head, key], mean over the target's tokens
        blend = rows.mean(0) @ state
        if written.shape != blend.shape:
            return Finding(key="feeling", why="not testable here")
        own.append(float(_unit(written) @ _unit(blend)))
        mixed.append(float(_unit(by_heads(rows, state)) @ _unit(blend)))
        turned.append(float(_unit(by_heads(rows, state @ rotation)) @ _unit(blend)))
        units.append(unit_of(item))
    part = Part(
        key="same_space",
        model=loaded.name,
        rule=Rule(confirmed=Range(above=0.5), refuted=Range(above=-0.2, below=0.2), between="qualified"),
        unit="cosine",
        number=mean_number(own, units, seed=seed),
        planted=mean_number(mixed, units, seed=seed),
        nothing=mean_number(turned, units, seed=seed),
    )
    return Finding(key="feeling", parts=(part,))


def by_heads(rows: Floats, values: Floats) -> Floats:
    """What heads give side by side: rows [head, key], values [key, dim], an equal part of which each head reads."""
    parts = np.split(values, len(rows), axis=1)
    return np.concatenate([row @ part for row, part in zip(rows, parts, strict=True)])


def _width(loaded: LoadedModel) -> int:
    return int(loaded.backbone.config.get_text_config().hidden_size)


def _unit(vectors: Floats) -> Floats:
    found: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return found


def _three(number: Number) -> tuple[float, float, float]:
    return number.estimate, number.low, number.high
