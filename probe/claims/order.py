"""Claims about order and positions: what is lost without them, who uses which, and the vectors shown for them."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probe.cases import load_cases
from probe.claims.bench import Bench
from probe.claims.records import Finding, Grid, Part, Range, Rule, exact, less_than, spread
from probe.worked import sinusoidal_rows, worked_example

Floats = NDArray[np.float64]
Kind = Literal["added, learned", "added, fixed", "rotated", "biased", "none"]
_TABLES = ("position_embeddings", "embed_positions", "wpe")
_TEXTS = 8
_LONG, _EARLY, _LATE, _BACK = 24, 10, 17, 6  # tokens, two places in the text, keys looked back at
_SEEDS = 5
_FLAT = 1e-4  # nats: a row that is no more uneven than this depends on no position


@contextmanager
def without_positions(backbone: nn.Module) -> Iterator[int]:
    """Take all positions out for a while: position tables are zero, rotations turn by 0; gives how many were found."""
    found = [m.weight for name, m in backbone.named_modules() if name.endswith(_TABLES) and hasattr(m, "weight")]
    found += [buffer for name, buffer in backbone.named_buffers() if name.endswith("inv_freq")]
    kept = [tensor.detach().clone() for tensor in found]
    with torch.no_grad():
        for tensor in found:
            tensor.zero_()
    try:
        yield len(found)
    finally:
        with torch.no_grad():
            for tensor, before in zip(found, kept, strict=True):
                tensor.copy_(before)


def order(bench: Bench) -> Finding:
    """How far states are from being merely reordered when the tokens are, with and without positions."""
    rule = Rule(confirmed=Range(below=1e-6), refuted=Range(above=1e-3))
    texts = [case.text for case in load_cases("relations").cases[: _TEXTS + 4]][4:]
    both = {
        "encoder": _permuted(bench.encoder.backbone, [_ids(bench.encoder, text) for text in texts], seed=bench.seed),
        "decoder": _permuted(bench.decoder.backbone, [_ids(bench.decoder, text) for text in texts], seed=bench.seed),
    }
    tiny = [list(range(5, 17)), list(range(20, 30))]
    planted = {
        "encoder": _permuted(_tiny("BERT"), tiny, seed=bench.seed),
        # GPT-2 keeps double precision throughout; Llama's norms and rotations compute in single precision.
        "decoder": _permuted(_tiny("GPT-2", n_layer=1), tiny, seed=bench.seed),
    }
    parts = []
    for key, loaded in (("encoder", bench.encoder), ("decoder", bench.decoder)):
        if not both[key][0]:  # nothing to take out: another kind of position
            continue
        parts.append(
            Part(
                key=f"lost_{key}",
                model=loaded.name,
                rule=rule,
                unit="deviation",
                number=spread(both[key][0]),
                planted=spread(planted[key][0]),
                nothing=spread(both[key][1]),
            )
        )
    if not parts:
        return Finding(key="order", why="not testable here")
    rows = [
        (name, *(max(value) if value else None for value in found))
        for name, found in (*both.items(), ("tiny_encoder", planted["encoder"]), ("tiny_decoder", planted["decoder"]))
    ]
    grid = Grid(caption="permuted", columns=("stack", "without", "with"), rows=tuple(rows))
    return Finding(key="order", parts=tuple(parts), grids=(grid,))


def _ids(loaded: Any, text: str) -> list[int]:
    return list(loaded.tokenizer(text)["input_ids"])


def _permuted(backbone: Any, texts: list[list[int]], *, seed: int) -> tuple[list[float], list[float]]:
    """Deviations of each text without and with positions, computed in double precision; none where none was found.

    In both directions all tokens change places, and each state must follow its token. In a causal model those between
    the first and the last do, and the last state must stay.
    """
    rng = np.random.default_rng(seed)
    causal = is_causal(backbone)
    orders = [_order(len(text), causal=causal, rng=rng) for text in texts]
    pairs = list(zip(texts, orders, strict=True))
    dtype = next(backbone.parameters()).dtype
    backbone.double()  # to and fro between float32 and float64 is exact
    try:
        with_positions = [_deviation(backbone, text, order, causal=causal) for text, order in pairs]
        with without_positions(backbone) as found:
            without = [_deviation(backbone, text, order, causal=causal) for text, order in pairs]
    finally:
        backbone.to(dtype)
    return (without if found else []), with_positions


def is_causal(backbone: Any) -> bool:
    """Whether a late token leaves the early states alone, seen by changing the last token."""
    width = int(backbone.get_input_embeddings().weight.shape[0])
    ids = torch.arange(5, 11)[None] % width
    other = ids.clone()
    other[0, -1] = 12 % width
    with torch.inference_mode():
        gap = (_last(backbone, ids) - _last(backbone, other))[:-1].abs().max()
    return bool(gap < 1e-6)


def _order(length: int, *, causal: bool, rng: np.random.Generator) -> list[int]:
    if not causal:
        return [int(i) for i in rng.permutation(length)]
    return [0, *(1 + int(i) for i in rng.permutation(length - 2)), length - 1]


def _deviation(backbone: Any, text: list[int], order: list[int], *, causal: bool) -> float:
    with torch.inference_mode():
        plain = _last(backbone, torch.tensor([text], device=backbone.device))
        moved = _last(backbone, torch.tensor([[text[i] for i in order]], device=backbone.device))
    if causal:
        return float((plain[-1] - moved[-1]).norm() / plain[-1].norm())
    return float((plain[order] - moved).norm() / plain.norm())


def _last(backbone: Any, ids: Tensor) -> Tensor:
    found: Tensor = backbone(input_ids=ids).last_hidden_state[0]
    return found


# --- who uses which positions ------------------------------------------------------------------------------------


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
        model = _tiny("Llama", seed=seed)
        with nullcontext() if turned else without_positions(model):
            shifts.append(shift_share(_first_layer(model, 7)[0]))
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
    seen = [[_first_layer(_tiny(family, seed=seed), token) for token in (7, 9)] for seed in range(_SEEDS)]
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


def _first_layer(model: Any, token: int) -> tuple[Floats, Floats]:
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


def _tiny(family: str, *, seed: int = 0, **changes: Any) -> Any:
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
