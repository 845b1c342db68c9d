"""Near and far by layer: what one layer reaches, and whether deeper layers look farther, full against windowed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probe.capture import prepare
from probe.captures import Capture, CaptureOptions
from probe.cases import Case, case_of, load_cases
from probe.claims.bench import Bench
from probe.claims.records import Finding, Grid, Number, Part, less_than, mean_number, more_than, spread
from probe.claims.rows import sinks_of
from probe.measures.focus import mean_distance, merged_row
from probe.models import LoadedModel
from probe.spans import Span, tokenize

Floats = NDArray[np.float64]
_TINY_WINDOW, _TINY_LENGTHS = 4, (16, 24, 32)


def distance(bench: Bench) -> Finding:
    """Whether the first layer reaches the start of long texts, and mean distance without the sinks, by layer."""
    rule = less_than(0.9, refuted_above=0.99)
    windowed, full = (spread(_tiny_reaches(kind)) for kind in ("window", "full"))
    parts, grids, lengths = [], [], []
    for loaded in (bench.encoder, bench.decoder):
        cases = long_cases(loaded, tokens=bench.sizes.long_tokens, texts=bench.sizes.long_texts)
        items = prepare(loaded, cases, cut=None)
        options = CaptureOptions(states=False, batch_tokens=1)  # one text at a time: they are long
        found = bench.captures(loaded, items, "long texts", options=options)
        reach, mean = np.array([reaches(one) for one in found]), np.array([distances(one) for one in found])
        units = [one.case.id for one in found]
        parts.append(
            Part(
                key="first_near",
                model=loaded.name,
                rule=rule,
                unit="share",
                number=spread([float(share) for share in reach[:, 0]]),
                planted=windowed,
                nothing=full,
            )
        )
        parts.append(_widening(loaded.name, mean, units, seed=bench.seed))
        grids.append(_layers_grid(loaded.name, reach, mean, way=np.array([min(one.target) for one in found])))
        tokens = [len(one.tokens.ids) for one in found]
        lengths.append((loaded.name, window_of(loaded), len(found), min(tokens), max(tokens)))
    columns = ("model", "window", "texts", "shortest", "longest")
    first = Grid(caption="long_texts", columns=columns, rows=tuple(lengths))
    return Finding(key="distance", parts=tuple(parts), grids=(first, *grids))


def window_of(loaded: LoadedModel) -> int | None:
    """How many tokens the first layer's window holds by the model's configuration; None where it has none."""
    config = loaded.backbone.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or [None]
    return int(config.sliding_window) if kinds[0] == "sliding_attention" else None


def long_cases(loaded: LoadedModel, *, tokens: int, texts: int) -> list[Case]:
    """Texts of about so many tokens, joined from our own of the set `far`, each ending with one on 苹果."""
    limit = min(tokens, (loaded.max_positions or tokens) - 8)
    parts = [c.text for c in load_cases("far").cases if c.sense == "neutral" and c.meta["contrast"] == "other sentence"]
    cases = []
    for number in range(texts):
        turned = [*parts[4 * number :], *parts[: 4 * number]]
        text = turned[0]
        for other in [*turned[1:], *turned, *turned]:
            if len(tokenize(loaded.tokenizer, other + text).ids) > limit:
                break
            text = other + text
        start = text.rindex("苹果")
        cases.append(case_of(text, target=Span(start, start + 2), id=f"long {number}"))
    return cases


def reaches(one: Capture) -> Floats:
    """How far the target's row reaches back, its farthest weight above 0 in any head, of all the way: [layer]."""
    row = merged_row(one, one.target).max(1)  # [layer, key]
    return np.array([(min(one.target) - np.flatnonzero(weights)[0]) / min(one.target) for weights in row])


def distances(one: Capture) -> Floats:
    """Mean distance of what the target reads, sinks left out, mean over heads, as a share of the text: [layer]."""
    mean = mean_distance(merged_row(one, one.target), one.target, sinks_of(one))
    found: Floats = np.nanmean(mean, axis=1).astype(np.float64) / len(one.tokens.ids)
    return found


def widening(mean: Floats) -> Floats:
    """Mean distance in the last third of the layers minus that in the first third, by text; mean [text, layer]."""
    third = max(1, mean.shape[1] // 3)
    found: Floats = mean[:, -third:].mean(1) - mean[:, :third].mean(1)
    return found


def _widening(model: str, mean: Floats, units: Sequence[str], *, seed: int) -> Part:
    """Watched by distances that grow with depth, and by the same upside down."""
    growing = np.linspace(0.05, 0.4, mean.shape[1])[None] + 0 * mean

    def number(values: Floats) -> Number:
        return mean_number(widening(values), units, seed=seed)

    return Part(
        key="widens",
        model=model,
        rule=more_than(0.0),
        unit="share",
        number=number(mean),
        planted=number(growing),
        nothing=number(growing[:, ::-1]),
    )


def _layers_grid(model: str, reach: Floats, mean: Floats, *, way: NDArray[np.int_]) -> Grid:
    """By layer; `way` [text] is how many tokens stand before the target, all that a reach of 1 can reach."""
    layers = reach.shape[1]
    rows = tuple(
        (
            (layer + 1) / layers,
            layer,
            round(float((reach[:, layer] * way).max())),
            float(reach[:, layer].mean()),
            float(mean[:, layer].mean()),
        )
        for layer in range(layers)
    )
    columns = ("depth", "layer", "back", "reach", "mean_distance")
    return Grid(caption="layers", model=model, columns=columns, rows=rows)


def _tiny_reaches(kind: str) -> list[float]:
    """Reach of the first layer of a tiny model with a window of 4, or with full attention in both directions."""
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    }  # fmt: skip
    if kind == "window":
        window = {"sliding_window": _TINY_WINDOW, "layer_types": ["sliding_attention"]}
        config = transformers.Gemma3TextConfig(**sizes, **window, num_key_value_heads=2, head_dim=8)
        config._attn_implementation = "eager"
        model: Any = transformers.Gemma3TextModel(config).eval()
    else:
        config = transformers.BertConfig(**sizes)
        config._attn_implementation = "eager"
        model = transformers.BertModel(config, add_pooling_layer=False).eval()
    return [_last_reach(model, length) for length in _TINY_LENGTHS]


def _last_reach(model: Any, length: int) -> float:
    with torch.inference_mode():
        rows = model(input_ids=torch.arange(5, 5 + length)[None], output_attentions=True).attentions[0][0]
    last = rows[:, -1].amax(0).numpy()  # [key]
    return float((length - 1 - np.flatnonzero(last)[0]) / (length - 1))
