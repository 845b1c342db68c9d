"""The tests of the test: how often the report's claim about heads fires where there is nothing, and where there is.

    python -m benchmarks.null_models [--seeds 20] [--exchanges 200] [--flips 20000] [--layers 12] [--heads 12]
        [--json FILE]

Each test takes the family that a report of `apple` claims over: all contrasts, both directions, every head of a random
BERT, max-T. A seed counts as a rejection where any p_max is below 0.05. Random weights and labels exchanged within
pairs must reject as rarely as 5 % allows, the same test without max-T must not; a planted head must be found, alone.
Leaves with exit code 1 where a bound is broken.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from scipy.stats import binom

from probe.capture import capture_prepared, prepare
from probe.captures import CaptureOptions, Prepared
from probe.cases import load_cases
from probe.contrasts import SlotPair, contrasts_of, differences, slot_pairs
from probe.flips import Family, flip_tests
from probe.measures.focus import FOCUS, focus
from probe.models import LoadedModel, load_model, model_from_parts
from probe.polysemy import DIRECTIONS
from probe.terminal import ShowProgress, open_console, show_progress, text_table

Floats = NDArray[np.floating]
Cell = tuple[int, int, int]  # table of the family, layer, head

LEVEL = 0.05
HEAD_SIZE = 32  # e5-small's
SHARPNESS = 3.84  # the variance of a query's and a key's features, so that attention is far from uniform
# How surely an honest 5 % test stays within the bound: gives 3 of 20 and 18 of 200, the bounds of the design.
SURE_OF_SEEDS, SURE_OF_EXCHANGES = 0.98, 0.992
# The plant: a cue token's logit over that of other words, its mean and spread, and the shares of the mean to try.
EFFECT, SPREAD = 1.0, 0.75
SHARES = (1.0, 0.5, 0.25)


@dataclass(frozen=True, kw_only=True)
class Design:
    """How large the tests are."""

    seeds: int = 20
    exchanges: int = 200
    flips: int = 20_000
    layers: int = 12
    heads: int = 12


@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """The cases that stand in pairs, as the tokenizer has them."""

    tokenizer: Any
    items: tuple[Prepared, ...]
    pairs: tuple[SlotPair, ...]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table: in how many of `tries` the test fired, with and without max-T."""

    test: str
    tries: int
    found: int
    uncorrected: int | None = None
    allowed: int | None = None  # at most so many found, and more without max-T
    required: int | None = None  # at least so many found

    @property
    def verdict(self) -> str:
        """Kept or broken; a line without a bound has none."""
        if self.allowed is None and self.required is None:
            return ""
        too_many = self.allowed is not None and self.found > self.allowed
        too_few = self.required is not None and self.found < self.required
        # A test that rejects as rarely without its correction shows nothing about the correction.
        powerless = self.allowed is not None and self.uncorrected is not None and self.uncorrected <= self.allowed
        return "BROKEN" if too_many or too_few or powerless else "kept"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests and print their table; gives the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: no folder {options.json.parent}")
    file = options.json
    design = Design(**{name: value for name, value in vars(options).items() if name != "json"})
    torch.set_num_threads(1)
    material = apple_pairs()
    with show_progress() as show:
        lines = list(measured(material, design, show))
    show_lines(lines)
    if file:
        content = {"design": asdict(design), "lines": [{**asdict(line), "verdict": line.verdict} for line in lines]}
        file.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    return exit_code(lines)


def measured(material: Material, design: Design, show: ShowProgress) -> Iterator[Line]:
    """The lines of the table; each also on standard error once it is known, for the rest takes minutes."""
    tests: list[Callable[[Material, Design, ShowProgress], Line]] = [random_weights, exchanged_labels]
    tests += [partial(planted_head, share=share) for share in SHARES]
    for test in tests:
        line = test(material, design, show)
        print(f"{line.test}: {line.found} of {line.tries} {line.verdict}".rstrip(), file=sys.stderr)
        yield line


def exit_code(lines: Sequence[Line]) -> int:
    """1 where a bound is broken, else 0."""
    return 1 if any(line.verdict == "BROKEN" for line in lines) else 0


def allowed(tries: int, *, sure: float) -> int:
    """How many rejections an honest test at 5 % stays within with this probability."""
    return int(binom.ppf(sure, tries, LEVEL))


def apple_pairs() -> Material:
    """The pairs of the shipped set in e5-small's tokens; cases without a partner are left out."""
    tokenizer = load_model("builtin:e5-small").tokenizer
    model = random_bert(tokenizer, layers=1, heads=1, seed=0)
    items = prepare(model, load_cases("apple").cases)
    paired = sorted({place for pair in slot_pairs(items) for place in (pair.cue, pair.neutral)})
    items = tuple(items[place] for place in paired)
    return Material(tokenizer=tokenizer, items=items, pairs=slot_pairs(items))


def random_weights(material: Material, design: Design, show: ShowProgress) -> Line:
    """(b): a model that was never trained reads no cue, however its heads prefer one word vector to another."""

    def family_of(seed: int) -> Family:
        model = random_bert(material.tokenizer, layers=design.layers, heads=design.heads, seed=seed)
        return family(masses(model, material.items), material.pairs, seed=seed, flips=design.flips)

    bound = allowed(design.seeds, sure=SURE_OF_SEEDS)
    return _count("random weights", design.seeds, bound, family_of, show)


def exchanged_labels(material: Material, design: Design, show: ShowProgress) -> Line:
    """(a): in one random model, which of a pair is the cue and which the neutral word is drawn anew each time."""
    model = random_bert(material.tokenizer, layers=design.layers, heads=design.heads, seed=0)
    values = masses(model, material.items)

    def family_of(seed: int) -> Family:
        return family(values, exchanged(material.pairs, seed=seed), seed=seed, flips=design.flips)

    bound = allowed(design.exchanges, sure=SURE_OF_EXCHANGES)
    return _count("labels exchanged", design.exchanges, bound, family_of, show)


def planted_head(material: Material, design: Design, show: ShowProgress, *, share: float) -> Line:
    """(d): one head of the last layer reads the first contrast's cues; only at the full effect is there a bound."""
    name, found = f"planted head alone, effect x {share:g}", 0
    contrast = contrasts_of(material.pairs)[0]
    model = planted_bert(material, contrast, layers=design.layers, heads=design.heads)
    alone = [(tables_of(material.pairs).index((0, contrast)), design.layers - 1, planted_place(design.heads))]
    for seed in range(design.seeds):
        show(name, seed, design.seeds)
        mark_cues(model, material, contrast, effect=share * EFFECT, seed=seed)
        result = family(masses(model, material.items), material.pairs, seed=seed, flips=design.flips)
        found += rejected(result.p_max) == alone
    required = design.seeds if share == max(SHARES) else None
    return Line(test=name, tries=design.seeds, found=found, required=required)


def tables_of(pairs: Sequence[SlotPair]) -> list[tuple[int, str]]:
    """The tables of a family, in order: place of the direction among DIRECTIONS, and the contrast."""
    return [(place, contrast) for place in range(len(DIRECTIONS)) for contrast in contrasts_of(pairs)]


def family(values: Floats, pairs: Sequence[SlotPair], *, seed: int, flips: int) -> Family:
    """All contrasts in both directions as one family, as the report tests them: values [case, direction, layer, head].

    It is what `polysemy.head_contrasts` does in a model without a causal mask, with the number of flips to choose.
    """
    tables = [differences(values[:, place], pairs, contrast)[0] for place, contrast in tables_of(pairs)]
    return flip_tests(tables, seed=seed, flips=flips)


def masses(model: LoadedModel, items: Sequence[Prepared]) -> Floats:
    """Attention mass in both directions: [case, direction, layer, head]."""
    directions = [FOCUS.index(measure) for measure in DIRECTIONS]
    return np.stack([focus(one)[directions] for one in capture_prepared(model, items, options=_ROWS_ONLY)])


def exchanged(pairs: Sequence[SlotPair], *, seed: int) -> tuple[SlotPair, ...]:
    """The pairs with cue and neutral case changed over in half of them, at random."""
    over = np.random.default_rng(seed).integers(0, 2, len(pairs)).astype(bool)
    return tuple(
        replace(pair, cue=pair.neutral, neutral=pair.cue) if change else pair
        for pair, change in zip(pairs, over, strict=True)
    )


def rejected(p: Sequence[Floats]) -> list[Cell]:
    """The cells of a family whose p lies below the level."""
    found = [(table, np.argwhere(grid < LEVEL)) for table, grid in enumerate(p)]
    return [(table, int(layer), int(head)) for table, cells in found for layer, head in cells]


def random_bert(tokenizer: Any, *, layers: int, heads: int, seed: int) -> LoadedModel:
    """A BERT with random weights, drawn so wide that heads differ and prefer words."""
    width = heads * HEAD_SIZE
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=width, max_position_embeddings=128, initializer_range=(SHARPNESS / width) ** 0.5,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.BertModel(config, add_pooling_layer=False)
    return model_from_parts(model, tokenizer, name=f"random BERT, seed {seed}")


def planted_bert(material: Material, contrast: str, *, layers: int, heads: int) -> LoadedModel:
    """A BERT in which every query is zero but that of one head in the last layer, on the contrast's targets.

    Features 0 and 1 mark targets, 2 and 3 cues, each pair with opposite signs: the head reads their differences, which
    a layer norm leaves at exactly 0 in every other word. The layers before add nothing to the states.
    """
    loaded = random_bert(material.tokenizer, layers=layers, heads=heads, seed=0)
    model = loaded.backbone
    with torch.no_grad():
        words = model.embeddings.word_embeddings.weight
        words.normal_(generator=torch.Generator().manual_seed(0))
        words[:, :4] = 0.0
        # The query's feature cancels attention's division by the root of the head size: a logit is a cue's strength.
        words[_target_tokens(material, contrast), :2] = torch.tensor([1.0, -1.0]) * HEAD_SIZE**0.5 / 2
        model.embeddings.position_embeddings.weight.zero_()
        model.embeddings.token_type_embeddings.weight.zero_()
        for layer in model.encoder.layer:
            for part in (layer.attention.self.query, layer.attention.output.dense, layer.output.dense):
                part.weight.zero_()
                part.bias.zero_()
        _plant(model.encoder.layer[-1].attention.self, row=planted_place(heads) * HEAD_SIZE)
    return loaded


def planted_place(heads: int) -> int:
    """Which head of the last layer is planted."""
    return heads // 2


def mark_cues(planted: LoadedModel, material: Material, contrast: str, *, effect: float, seed: int) -> None:
    """Give each token that only this contrast's cues have a strength of its own, in place."""
    tokens = _own_cue_tokens(material, contrast)
    strengths = np.random.default_rng(seed).normal(effect, SPREAD, len(tokens))
    halves = torch.tensor(strengths, dtype=torch.float32)[:, None] * torch.tensor([0.5, -0.5])  # [token, feature]
    with torch.no_grad():
        planted.backbone.embeddings.word_embeddings.weight[tokens, 2:4] = halves


def show_lines(lines: Sequence[Line]) -> None:
    """Print the counts with their bounds."""
    rows = [
        [line.test, f"{line.found} of {line.tries}", _bound(line), _or_blank(line.uncorrected), line.verdict]
        for line in lines
    ]
    open_console(sys.stdout).print(text_table(["test", "rejections", "allowed", "uncorrected", "bound"], rows))


_ROWS_ONLY = CaptureOptions(states=False)


def _count(name: str, tries: int, bound: int, family_of: Callable[[int], Family], show: ShowProgress) -> Line:
    found = uncorrected = 0
    for seed in range(tries):
        show(name, seed, tries)
        result = family_of(seed)
        found += bool(rejected(result.p_max))
        uncorrected += bool(rejected([test.p for test in result.tests]))
    return Line(test=name, tries=tries, found=found, uncorrected=uncorrected, allowed=bound)


def _target_tokens(material: Material, contrast: str) -> list[int]:
    targets = [material.items[pair.cue] for pair in material.pairs if pair.contrast == contrast]
    return sorted({item.tokens.ids[place] for item in targets for place in item.target})


def _own_cue_tokens(material: Material, contrast: str) -> list[int]:
    """Tokens of the contrast's cues that no neutral word and no other contrast's cue has."""
    own: set[int] = set()
    elsewhere: set[int] = set()
    for pair in material.pairs:
        (own if pair.contrast == contrast else elsewhere).update(_cue_tokens(material.items[pair.cue]))
        elsewhere.update(_cue_tokens(material.items[pair.neutral]))
    return sorted(own - elsewhere)


def _cue_tokens(item: Prepared) -> list[int]:
    return [item.tokens.ids[place] for word in item.cues for place in word]


def _plant(attention: Any, *, row: int) -> None:
    attention.key.weight[row] = 0.0
    attention.key.bias.zero_()
    # Ones, not other numbers: products with them are exact, so that equal features cancel to exactly 0.
    attention.query.weight[row, :2] = torch.tensor([1.0, -1.0])
    attention.key.weight[row, 2:4] = torch.tensor([1.0, -1.0])


def _bound(line: Line) -> str:
    if line.required is not None:
        return f"all {line.required}"
    return f"at most {line.allowed}" if line.allowed is not None else ""


def _or_blank(count: int | None) -> str:
    return "" if count is None else str(count)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.null_models", description="How often the test of heads fires on nothing."
    )
    least = {"seeds": 2, "exchanges": 2, "flips": 100, "layers": 1, "heads": 1}
    for name, few in least.items():
        default = getattr(Design, name)
        parser.add_argument(f"--{name}", type=_at_least(few), default=default, metavar="N", help=f"default {default}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to this file")
    return parser


def _at_least(few: int) -> Callable[[str], int]:
    def count(given: str) -> int:
        if not given.isdecimal() or int(given) < few:
            raise argparse.ArgumentTypeError(f"{given}: allowed is a number from {few}")
        return int(given)

    return count


if __name__ == "__main__":
    sys.exit(main())
