"""Three rungs on the same cases: a row of the embedding table, a small two-way LSTM, a transformer's last state."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from probe.captures import Capture
from probe.cases import load_cases
from probe.claims.bench import Bench, TargetStates
from probe.claims.bilstm import bilstm_state, numbered, train_bilstm
from probe.claims.embedding import planted_states, told_apart
from probe.claims.records import Bears, Finding, Grid, Part, hits_number, mean_number, more_than
from probe.findings import unit_of
from probe.measures.states import context_embedding
from probe.spans import tokenize

Floats = NDArray[np.float64]
_SETS = ("apple", "relations", "senses")
_SHOWN = ("rung_row", "rung_lstm", "rung_lstm_untrained", "rung_transformer", "rung_bag")


def rungs(bench: Bench) -> Finding:
    """Sense accuracy on each rung in `apple` and `senses`, one group left out, beside the bag of the other words."""
    items = [*bench.apple_states.items, *bench.word_states.items]
    table = bench.encoder.backbone.get_input_embeddings().weight.detach().float().cpu().numpy()
    trained, untrained, losses = _lstm_states(bench, items, table)
    row = np.array([table[[one.tokens.ids[i] for i in one.target]].mean(0) for one in items], dtype=np.float64)
    found = (bench.apple_states, bench.word_states)
    labels = [sense for one in found for sense in one.senses]
    states = {
        "rung_row": row,
        "rung_lstm": trained,
        "rung_lstm_untrained": untrained,
        "rung_transformer": np.concatenate([one.states[:, -1] for one in found]),
        "rung_bag": np.array([context_embedding(one) for one in items], dtype=np.float64),
        "planted": planted_states(row, labels, seed=bench.seed),
        "random": np.random.default_rng(bench.seed).normal(size=row.shape),
        "shuffled": trained[np.random.default_rng(bench.seed).permutation(len(trained))],
    }
    right = {name: told_by_word(each, found) for name, each in states.items()}
    units = [unit_of(one) for one in items]

    changes = {name: changing(each, found) for name, each in states.items()}

    def contextual(key: str, one: str, bears: Bears) -> Part:
        number, planted, row = (
            mean_number(changes[name], units, seed=bench.seed) for name in (one, "random", "rung_row")
        )
        return Part(
            key=key,
            bears=bears,
            rule=more_than(0.1, refuted_below=0.1),
            unit="cosine",
            number=number,
            planted=planted,
            nothing=row,
        )

    def part(key: str, one: str, other: str) -> Part:
        number, planted, shuffled = (
            mean_number(right[name] - right[other], units, seed=bench.seed) for name in (one, "planted", "shuffled")
        )
        return Part(
            key=key,
            bears="beside",
            rule=more_than(0.0),
            unit="points",
            number=number,
            planted=planted,
            nothing=shuffled,
        )

    numbers = {name: hits_number(right[name], units, seed=bench.seed) for name in _SHOWN}
    return Finding(
        key="rungs",
        parts=(
            contextual("lstm_contextual", "rung_lstm", "against"),
            contextual("transformer_contextual", "rung_transformer", "beside"),
            part("lstm_over_row", "rung_lstm", "rung_row"),
            part("transformer_over_lstm", "rung_transformer", "rung_lstm"),
        ),
        grids=(
            Grid(
                caption="rungs",
                columns=("known_from", "changing", "accuracy", "low", "high"),
                rows=tuple(
                    (name, float(np.nanmean(changes[name])), one.estimate, one.low, one.high)
                    for name, one in numbers.items()
                ),
            ),
            Grid(caption="training", columns=("epoch", "loss"), rows=tuple(enumerate(losses, 1))),
        ),
    )


def changing(states: Floats, found: Sequence[TargetStates]) -> Floats:
    """1 minus the mean cosine of a word's state with its states elsewhere, [case]: 0 where context changes nothing.

    Centred over all cases first: such vectors share a direction, which would hide the change (Ethayarajh 2019).
    """
    words = [word for one in found for word in one.words]
    unit = states - states.mean(0)
    unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    changed = np.full(len(states), np.nan)
    for word in dict.fromkeys(words):
        own = [i for i in range(len(states)) if words[i] == word]
        near = unit[own] @ unit[own].T
        if len(own) > 1:
            changed[own] = 1 - (near.sum(1) - near.diagonal()) / (len(own) - 1)
    return changed


def told_by_word(states: Floats, found: Sequence[TargetStates]) -> Floats:
    """1 where a case's sense is told among its word's senses, [case]; states [case, dim] in the order of `found`."""
    right = np.full(len(states), np.nan)
    words = [word for one in found for word in one.words]
    senses = [sense for one in found for sense in one.senses]
    # One word may stand in both sets under other names of its senses: they are told apart within a set.
    groups = [group for one in found for group in one.groups]
    sets = [place for place, one in enumerate(found) for _ in one.words]
    for word, number in dict.fromkeys(zip(words, sets, strict=True)):
        own = [i for i in range(len(states)) if words[i] == word and sets[i] == number]
        right[own] = told_apart(states[own], [senses[i] for i in own], [groups[i] for i in own])
    return right


def _lstm_states(
    bench: Bench, items: Sequence[Capture], table: NDArray[np.floating]
) -> tuple[Floats, Floats, list[float]]:
    """States of the target, trained and untrained, [case, dim] each, and the loss of each epoch.

    Trained on the shipped sentences as a language model, on the rows of the encoder's own table: no sense is shown to
    it, and it knows no less of single words than the other rungs.
    """
    sizes = bench.sizes
    extra = [tokenize(bench.encoder.tokenizer, text).ids for text in _sentences(sizes.groups)]
    texts, tokens = numbered([*(one.tokens.ids for one in items), *extra])
    known = list(dict.fromkeys(map(tuple, texts)))  # each text once
    told = bench.told("training the biLSTM")
    trained, losses = train_bilstm(known, table[tokens], epochs=sizes.epochs, seed=bench.seed, progress=told)
    untrained, _ = train_bilstm(known, table[tokens], epochs=0, seed=bench.seed)
    places = [list(one.target) for one in items]
    one, other = (
        np.array([bilstm_state(model, text, place) for text, place in zip(texts, places, strict=False)])
        for model in (trained, untrained)
    )
    return one, other, losses


def _sentences(groups: int) -> Sequence[str]:
    """The different texts of the shipped Chinese sets; few of them where the sizes are small."""
    texts = dict.fromkeys(case.text for name in _SETS for case in load_cases(name).cases)
    return list(texts)[: 40 * groups]
