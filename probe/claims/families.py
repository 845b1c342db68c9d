"""Claims about positions across families: who uses which, seen by behaviour, and the vectors shown for them."""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from probe.claims.bench import Bench
from probe.claims.positionless import without_positions
from probe.claims.records import Finding, Grid, Part, Range, Rule, exact, less_than, spread
from probe.worked import sinusoidal_rows, worked_example

Floats = NDArray[np.float64]
Kind = Literal["added, learned", "added, fixed", "rotated", "biased", "none"]
_LONG, _EARLY, _LATE, _BACK = 24, 10, 17, 6  # tokens, two places in the text, keys looked back at
_SEEDS = 5
_FLAT = 1e-4  # nats: a row that is no more uneven than this depends on no position


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What a family does with positions, seen in tiny random models and not looked up."""

    kind: Kind
    shift: tuple[float, ...]  # by seed, as `shift_share` gives it; 0 is relative


def positions(bench: Bench) -> Finding:
    """Whether T5's and RoBERTa's first rows depend on distances only, as relative positions would have it."""
    rule = less_than(1e-3, refuted_above=1e-2)
    planted, nothing = (spread(_rotated_shifts(turned=turned)) for turned in (True, False))
    parts = [
        Part(
            key="relative",
            model=name,
            rule=rule,
            unit="deviation",
            number=spread(behaviour(name).shift),
            planted=planted,
            nothing=nothing,
        )
        for name in ("T5", "RoBERTa")
    ]
    rows = [(name, behaviour(name).kind, min(behaviour(name).shift), max(behaviour(name).shift)) for name in ZOO]
    grid = Grid(caption="families", columns=("family", "position", "shift_low", "shift_high"), rows=tuple(rows))
    return Finding(key="positions", parts=tuple(parts), grids=(grid,))


def _rotated_shifts(*, turned: bool) -> list[float]:
    """What a tiny Llama, whose rotations make it relative, shows with them and with rotations by 0, by seed."""
    shifts = []
    for seed in range(_SEEDS):
        model = tiny_model("Llama", seed=seed)
        with nullcontext() if turned else without_positions(model):
            shifts.append(shift_share(first_layer(model, 7)[0]))
    return shifts


def shift_share(rows: Floats) -> float:
    """How much a row changes when query and keys move on together, as a share of its own unevenness.

    rows [head, query, key] over one repeated token. 0 where rows depend on distances only; 1 where they are flat,
    since a row that depends on nothing does not depend on distances.
    """
    early, late = _profile(rows, _EARLY), _profile(rows, _LATE)
    uneven = float(max(np.abs(early).max(), np.abs(late).max()))
    return float(np.abs(early - late).max()) / uneven if uneven > _FLAT else 1.0


def _profile(rows: Floats, place: int) -> Floats:
    """Log weights of a query's earlier keys against its own: [head, key back]."""
    logs: Floats = np.log(np.maximum(rows[:, place, place - _BACK : place + 1], 1e-300))
    return logs - logs[:, -1:]


@cache
def behaviour(family: str) -> Behaviour:
    """What one family of ZOO does, over several draws of weights."""
    seen = [[first_layer(tiny_model(family, seed=seed), token) for token in (7, 9)] for seed in range(_SEEDS)]
    shifts = tuple(shift_share(pair[0][0]) for pair in seen)
    return Behaviour(kind=_kind(seen), shift=shifts)


def _kind(seen: list[list[tuple[Floats, Floats]]]) -> Kind:
    """Where positions come in, from rows and input states of one repeated token, for two tokens and several seeds.

    Added: equal tokens have different input states (fixed: with the same difference in every draw of weights). A bias
    on the scores is the same for every token, a rotation's effect is not.
    """
    moved = [pair[0][1][_LATE] - pair[0][1][_EARLY] for pair in seen]
    if max(float(np.abs(one).max()) for one in moved) > 1e-5:
        fixed = max(float(np.abs(one - moved[0]).max()) for one in moved) < 1e-5
        return "added, fixed" if fixed else "added, learned"
    profiles = [[_profile(rows, _LATE) for rows, _ in pair] for pair in seen]
    if max(float(np.abs(pair[0]).max()) for pair in profiles) < _FLAT:
        return "none"
    alike = max(float(np.abs(pair[0] - pair[1]).max()) for pair in profiles) < 1e-4
    return "biased" if alike else "rotated"


def first_layer(model: Any, token: int) -> tuple[Floats, Floats]:
    """Rows of the first layer [head, query, key] and input states [token, dim] of one token repeated."""
    ids = torch.full((1, _LONG), token)
    with torch.inference_mode():
        output = model(input_ids=ids, output_attentions=True, output_hidden_states=True)
    return output.attentions[0][0].double().numpy(), output.hidden_states[0][0].double().numpy()


_SMALL = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 64, "initializer_range": 0.4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GROUPED = {**_SMALL, "num_key_value_heads": 2, "head_dim": 8}
_T5 = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
_GPT2 = {
    "vocab_size": 40,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 64,
    "initializer_range": 0.4,
    **_ENDS,
}
_BLOOM = {"vocab_size": 40, "hidden_size": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.4, **_ENDS}
_MARIAN = {
    "vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64,
    "pad_token_id": 0, "init_std": 0.4, "decoder_start_token_id": 0, "decoder_vocab_size": 40,
}  # fmt: skip

# Family -> configuration class, model class, sizes.
ZOO: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BERT": ("BertConfig", "BertModel", _SMALL),
    "RoBERTa": ("RobertaConfig", "RobertaModel", _SMALL),
    "GPT-2": ("GPT2Config", "GPT2Model", _GPT2),
    "Marian": ("MarianConfig", "MarianModel", _MARIAN),
    "T5": ("T5Config", "T5EncoderModel", _T5),
    "BLOOM": ("BloomConfig", "BloomModel", _BLOOM),
    "Llama": ("LlamaConfig", "LlamaModel", _GROUPED),
    "Qwen3": ("Qwen3Config", "Qwen3Model", _GROUPED),
    "Gemma3": ("Gemma3TextConfig", "Gemma3TextModel", _GROUPED),
}


def tiny_model(family: str, *, seed: int = 0, **changes: Any) -> Any:
    """A tiny random model of a family, eager, without dropout; an encoder-decoder gives its encoder."""
    import transformers

    config_class, model_class, sizes = ZOO[family]
    config = getattr(transformers, config_class)(**{**sizes, **changes})
    config._attn_implementation = "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, model_class)(config).eval()
    return model.get_encoder() if family == "Marian" else model


# --- the vectors shown for positions 0, 1, 2 ----------------------------------------------------------------------


def fingerprints(bench: Bench) -> Finding:
    """The article's vector for the third token against the sinusoid's, and whether positions are learned vectors."""
    first, second, third = sinusoidal_rows(range(3), 4)
    shown = Part(
        key="shown",
        rule=less_than(0.01, refuted_above=0.1),
        unit="deviation",
        number=exact(float(np.abs(third - worked_example().position).max()), n=4),
        planted=exact(float(np.abs(first - [0.0, 1.0, 0.0, 1.0]).max()), n=4),
        nothing=exact(float(np.abs(second - third).max()), n=4),
    )
    learned = Part(
        key="learned",
        rule=Rule(confirmed=Range(above=0.99), refuted=Range(below=0.01), between="qualified"),
        unit="share",
        number=exact(_learned(ZOO), n=len(ZOO)),
        planted=exact(_learned(("BERT", "RoBERTa", "GPT-2"))),
        nothing=exact(_learned(("Llama", "T5", "BLOOM", "Marian"))),
    )
    rows = [(place, *map(float, row)) for place, row in enumerate((first, second, third))]
    grid = Grid(caption="sinusoid", columns=("place", "dim0", "dim1", "dim2", "dim3"), rows=tuple(rows))
    return Finding(key="fingerprints", parts=(shown, learned), grids=(grid,))


def _learned(families: Any) -> float:
    return float(np.mean([behaviour(family).kind == "added, learned" for family in families]))
