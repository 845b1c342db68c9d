"""What the states of a model know of a word's sense, on public data, layer by layer, with baselines beside.

    python -m benchmarks.public_senses [--model builtin:e5-small] [--limit N] [--json FILE]

Sense accuracy (apple-contexts, sememewsd) is the nearest centroid with the case's text left out; on sememewsd each
word is decided for itself and the mean is over words. Word-in-context (mcl-wic, Chinese) says "same sense" where the
centred cosine of the two targets lies above a threshold; centre, threshold and layer are chosen on the words of one
half and scored on the other, in both directions. Intervals are 95 % bootstraps over texts (apple-contexts) or words.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import public_data
from benchmarks.public_data import APPLE, FILES, PAIRS, Pair
from probe.capture import Progress, capture_prepared, prepare
from probe.captures import CaptureOptions, Prepared
from probe.cases import Case
from probe.errors import CijingError
from probe.measures.states import (
    Readout,
    context_embedding,
    default_readout,
    most_frequent_sense,
    read_state,
    sense_accuracy,
    two_characters_rule,
)
from probe.models import LoadedModel, load_model
from probe.routes import route_of
from probe.stats import bootstrap
from probe.terminal import open_console, show_progress, text_table

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
CONTEXT, FREQUENT, NEIGHBOURS, CHOSEN = "context's embeddings", "most frequent", "two characters", "layer chosen"


@dataclass(frozen=True, kw_only=True)
class Score:
    """One cell of the table: accuracy from 0 to 1 with its interval; NaN where states do not differ."""

    data: str
    by: str
    accuracy: float
    low: float
    high: float
    units: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """What was read from the model; cases that it cannot take (an unknown target) are left out and counted."""

    cases: tuple[Case, ...]
    places: tuple[int, ...]  # of these cases among those asked for
    states: NDArray[np.float32]  # [case, state layer, dim]
    contexts: NDArray[np.float32]  # [case, dim]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every set that is there and print the table; gives the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: no folder {options.json.parent}")
    folder = public_data.data_folder()
    names = [name for name in FILES if public_data.present(folder, name)]
    for name in FILES:
        if name not in names:
            print(f"{name}: not in {folder}; set CIJING_DATA to the folder that has it", file=sys.stderr)
    if not names:
        return 2
    try:
        loaded = load_model(options.model)
        readout: Readout = options.readout or default_readout(causal=loaded.kind == "decoder")
        with show_progress() as show:
            scores = [s for name in names for s in measured(loaded, folder, name, readout, options.limit, show)]
    except CijingError as error:
        print(error, file=sys.stderr)
        return 2
    show_scores(scores, names)
    if options.json:
        content = {"model": options.model, "readout": readout, "limit": options.limit, "scores": as_json(scores)}
        options.json.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    return 0


def measured(
    loaded: LoadedModel,
    folder: Path,
    name: str,
    readout: Readout,
    limit: int | None,
    show: Callable[[str, int, int], None],
) -> list[Score]:
    """The scores of one set."""

    def progress(done: int, total: int) -> None:
        show(name, done, total)

    if name == PAIRS:
        cases, pairs = public_data.pairs(folder)
        pairs = pairs[:limit]
        cases = cases[: max(max(pair.first, pair.second) for pair in pairs) + 1]
    elif name == APPLE:
        cases, pairs = public_data.spread(public_data.apple_cases(folder), limit), []
    else:
        cases, pairs = public_data.whole_words(public_data.sememe_cases(folder), limit), []
    read = read_model(loaded, cases, readout=readout, progress=progress)
    if len(read.cases) < len(cases):
        print(f"{name}: {len(cases) - len(read.cases)} of {len(cases)} cases cannot be read", file=sys.stderr)
    return pair_scores(name, read, pairs) if pairs else sense_scores(name, read)


def read_model(
    loaded: LoadedModel, cases: Sequence[Case], *, readout: Readout, progress: Progress | None = None
) -> Read:
    """States at the readout and mean context embeddings; a text that is too long is cut around its target."""
    prepared: list[Prepared] = []
    places = []
    for place, case in enumerate(cases):
        try:
            prepared += prepare(loaded, [case], cut=True)
        except CijingError:
            continue
        places.append(place)
    if not prepared:
        raise CijingError(f"{loaded.name}: can read none of {len(cases)} cases; allowed is a tokenizer with the words")
    route = route_of(loaded)
    # One head's rows, since none are needed here; states come from all layers.
    options = CaptureOptions(layers=frozenset({route.layers[0].index}), heads=frozenset({0}))
    states, contexts = [], []
    for one in capture_prepared(loaded, prepared, options=options, route=route, progress=progress):
        states.append(read_state(one, readout))
        contexts.append(context_embedding(one))
    read = tuple(cases[place] for place in places)
    return Read(cases=read, places=tuple(places), states=np.stack(states), contexts=np.stack(contexts))


def sense_scores(name: str, read: Read) -> list[Score]:
    """Nearest-centroid accuracy by layer and by baseline, each word's senses decided for themselves."""
    words = [case.meta["word"] for case in read.cases]
    correct: dict[str, Floats] = {}
    for word in dict.fromkeys(words):
        own = np.array([other == word for other in words])
        for by, values in _decided(read, own).items():
            correct.setdefault(by, np.full(len(words), np.nan))[own] = values
    units = [case.meta["unit"] for case in read.cases]
    return [_score(name, by, values, units) for by, values in correct.items()]


def pair_scores(name: str, read: Read, pairs: Sequence[Pair]) -> list[Score]:
    """Word-in-context accuracy by layer, with the layer chosen, and by baseline."""
    place = {before: after for after, before in enumerate(read.places)}
    pairs = [pair for pair in pairs if pair.first in place and pair.second in place]
    words = [pair.word for pair in pairs]
    if len(set(words)) < 2:
        raise CijingError(f"{name}: pairs of {len(set(words))} words can be read; allowed are two or more")
    ends = np.array([[place[pair.first], place[pair.second]] for pair in pairs])
    same = np.array([pair.same for pair in pairs])
    half = first_half(words)
    by_layer = [centred_cosines(read.states, ends, train=train) for train in (half, ~half)]  # of [pair, layer]
    context = [centred_cosines(read.contexts[:, None], ends, train=train) for train in (half, ~half)]
    shared = np.array([[equal_neighbours(*(read.cases[end] for end in both))] for both in ends], dtype=np.float64)
    correct = {_layer(k): values for k, values in enumerate(crossed(by_layer, same, half).T)}
    correct[CHOSEN] = crossed(by_layer, same, half, choose=True)[:, 0]
    correct[CONTEXT] = crossed(context, same, half)[:, 0]
    correct[FREQUENT] = crossed([np.zeros_like(shared)] * 2, same, half)[:, 0]
    correct[NEIGHBOURS] = crossed([shared] * 2, same, half)[:, 0]
    return [_score(name, by, values, words) for by, values in correct.items()]


def first_half(words: Sequence[str], *, seed: int = 0) -> Flags:
    """Which pairs are in the first half: [pair]; all pairs of one word are in one half, for they share sentences."""
    names = sorted(set(words))
    drawn = {names[place] for place in np.random.default_rng(seed).permutation(len(names))[: len(names) // 2]}
    return np.array([word in drawn for word in words])


def centred_cosines(states: NDArray[np.floating], ends: NDArray[np.int64], *, train: Flags) -> Floats:
    """Cosine of each pair's states, [pair, layer], centred on the cases of the training pairs; 0 for a zero state."""
    x = np.asarray(states, dtype=np.float64)
    x = x - x[np.unique(ends[train])].mean(0)
    size = np.linalg.norm(x, axis=-1, keepdims=True)
    unit = np.divide(x, size, out=np.zeros_like(x), where=size > 0)
    cosines: Floats = np.einsum("pld,pld->pl", unit[ends[:, 0]], unit[ends[:, 1]])
    return cosines


def crossed(scores: Sequence[Floats], same: Flags, half: Flags, *, choose: bool = False) -> Floats:
    """Right or wrong for each pair, decided with what the other half chose: [pair, column] of 1 and 0.

    `scores` [pair, column] are those for training on the first half, then on the second. With `choose` the training
    half also picks the column, and one is left.
    """
    columns = 1 if choose else scores[0].shape[1]
    correct = np.full((len(same), columns), np.nan)
    for of, train in zip(scores, (half, ~half), strict=True):
        cuts = [best_cut(column[train], same[train]) for column in of.T]
        used = [int(np.argmax([share for _, share in cuts]))] if choose else range(columns)
        for place, column in enumerate(used):
            correct[~train, place] = (of[~train, column] >= cuts[column][0]) == same[~train]
    return correct


def best_cut(scores: Floats, same: Flags) -> tuple[float, float]:
    """The threshold that decides most pairs rightly ("same" at or above it), and the share that it does."""
    values = np.unique(scores.round(6))
    cuts = np.array([-np.inf, *((values[1:] + values[:-1]) / 2), np.inf])
    shares = ((scores >= cuts[:, None]) == same).mean(1)
    best = int(shares.argmax())
    return float(cuts[best]), float(shares[best])


def equal_neighbours(first: Case, second: Case) -> int:
    """How many of the two characters beside the target both uses share, 0 to 2."""
    return sum(bool(one) and one == other for one, other in zip(_beside(first), _beside(second), strict=True))


def show_scores(scores: Sequence[Score], names: Sequence[str]) -> None:
    """Print the accuracies in percent, a column a set."""
    cells = {(score.by, score.data): shown(score) for score in scores}
    by = sorted(dict.fromkeys(score.by for score in scores), key=lambda name: not name.startswith("layer "))
    table = text_table(["%", *names], [[name, *(cells.get((name, data), "") for data in names)] for name in by])
    open_console(sys.stdout).print(table)


def shown(score: Score) -> str:
    """The accuracy in percent with its interval, which one unit does not have."""
    if math.isnan(score.accuracy):
        return "not visible"
    interval = "" if math.isnan(score.low) else f" ({100 * score.low:.1f}-{100 * score.high:.1f})"
    return f"{100 * score.accuracy:.1f}{interval}"


def as_json(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """The scores as JSON has them: null for NaN."""
    return [
        {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in asdict(one).items()}
        for one in scores
    ]


def _decided(read: Read, own: Flags) -> dict[str, Floats]:
    """One word's cases right or wrong: [case] of 1 and 0, NaN where undecided or where no state differs."""
    cases = [case for case, is_own in zip(read.cases, own, strict=True) if is_own]
    senses, groups = [case.sense for case in cases], [case.group for case in cases]
    accuracy = sense_accuracy(read.states[own], senses, groups)
    correct = np.where(accuracy.visible, accuracy.correct, np.nan)
    decided = {_layer(k): values for k, values in enumerate(correct.T)}
    decided[CONTEXT] = sense_accuracy(read.contexts[own][:, None], senses, groups).correct[:, 0]
    decided[FREQUENT] = most_frequent_sense(senses)
    decided[NEIGHBOURS] = two_characters_rule([_beside(case) for case in cases], senses, groups)
    return decided


def _score(data: str, by: str, correct: Floats, units: Sequence[str]) -> Score:
    estimate = bootstrap(correct[:, None], units, seed=0)
    mean, low, high = (float(numbers[0]) for numbers in (estimate.mean, estimate.low, estimate.high))
    return Score(data=data, by=by, accuracy=mean, low=low, high=high, units=int(estimate.units[0]))


def _beside(case: Case) -> tuple[str, str]:
    start, end = case.target.start, case.target.end
    return case.text[max(0, start - 1) : start], case.text[end : end + 1]


def _layer(number: int) -> str:
    return f"layer {number}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.public_senses", description="What a model's states know of a word's sense."
    )
    parser.add_argument("--model", default="builtin:e5-small")
    parser.add_argument("--limit", type=_count, metavar="N", help="at most N (from 8) cases or pairs a set")
    parser.add_argument("--readout", choices=("target", "later", "last"), help="default: target; causal models: later")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to this file")
    return parser


def _count(given: str) -> int:
    if not given.isdecimal() or int(given) < 8:
        raise argparse.ArgumentTypeError(f"{given}: allowed is a number from 8")
    return int(given)


if __name__ == "__main__":
    sys.exit(main())
