"""Three rungs on the same cases: a row of the embedding table, a small two-way LSTM, a transformer's last state."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from probe.cases import load_cases
from probe.claims.bench import Bench
from probe.claims.bilstm import bilstm_state, numbered, train_bilstm
from probe.claims.embedding import planted_states, told_apart
from probe.claims.records import Bears, Finding, Grid, Part, mean_number, more_than
from probe.findings import unit_of
from probe.measures.states import context_embedding
from probe.spans import tokenize

Floats = NDArray[np.float64]
_SETS = ("apple", "relations", "senses")


def rungs(bench: Bench) -> Finding:
    """Sense accuracy of 苹果 on each rung, with one group left out, beside the bag of the other words."""
    found = bench.apple_states
    trained, untrained, losses = _lstm_states(bench)
    table = bench.encoder.backbone.get_input_embeddings().weight.detach().float().cpu().numpy()
    row = np.array([table[[one.tokens.ids[i] for i in one.target]].mean(0) for one in found.items], dtype=np.float64)
    bag = np.array([context_embedding(one) for one in found.items], dtype=np.float64)
    order = np.random.default_rng(bench.seed).permutation(len(trained))
    states = {
        "rung_row": row,
        "rung_lstm": trained,
        "rung_lstm_untrained": untrained,
        "rung_transformer": found.states[:, -1],
        "rung_bag": bag,
        "planted": planted_states(row, found.senses, seed=bench.seed),
        "shuffled": trained[order],
    }
    right = {name: told_apart(each, found.senses, found.groups) for name, each in states.items()}
    units = [unit_of(one) for one in found.items]

    def part(key: str, one: str, other: str, bears: Bears) -> Part:
        gains = {
            name: mean_number(right[name] - right[other], units, seed=bench.seed)
            for name in (one, "planted", "shuffled")
        }
        return Part(
            key=key,
            bears=bears,
            rule=more_than(0.0),
            unit="points",
            number=gains[one],
            planted=gains["planted"],
            must_fail=gains["shuffled"],
        )

    rows = []
    for name in ("rung_row", "rung_lstm", "rung_lstm_untrained", "rung_transformer", "rung_bag"):
        number = mean_number(right[name], units, seed=bench.seed)
        rows.append((name, number.estimate, number.low, number.high))
    return Finding(
        key="rungs",
        parts=(
            part("lstm_contextual", "rung_lstm", "rung_row", "against"),
            part("transformer_more", "rung_transformer", "rung_lstm", "beside"),
            part("lstm_over_bag", "rung_lstm", "rung_bag", "beside"),
        ),
        grids=(
            Grid(caption="rungs", columns=("known_from", "accuracy", "low", "high"), rows=tuple(rows)),
            Grid(
                caption="training",
                columns=("epoch", "loss"),
                rows=tuple((number, loss) for number, loss in enumerate(losses, 1)),
            ),
        ),
    )


def _lstm_states(bench: Bench) -> tuple[Floats, Floats, list[float]]:
    """States of the target, trained and untrained, [case, dim] each, and the loss of each epoch.

    Trained on the shipped sentences as a language model: no sense is shown to it.
    """
    found, sizes = bench.apple_states, bench.sizes
    extra = [tokenize(bench.encoder.tokenizer, text).ids for text in _sentences(sizes.groups)]
    texts = numbered([*(one.tokens.ids for one in found.items), *extra])
    told = bench.told("training the biLSTM")
    trained, losses = train_bilstm(texts, epochs=sizes.epochs, seed=bench.seed, progress=told)
    untrained, _ = train_bilstm(texts, epochs=0, seed=bench.seed)
    places = [list(one.target) for one in found.items]
    one, other = (
        np.array([bilstm_state(model, text, place) for text, place in zip(texts, places, strict=False)])
        for model in (trained, untrained)
    )
    return one, other, losses


def _sentences(groups: int) -> Sequence[str]:
    """The different texts of the shipped Chinese sets; few of them where the sizes are small."""
    texts = dict.fromkeys(case.text for name in _SETS for case in load_cases(name).cases)
    return list(texts)[: 40 * groups]
