"""All claims by name, and the runs that answer them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from probe.claims.bench import Bench
from probe.claims.distance import distance
from probe.claims.embedding import contexts, neighbours, output_space
from probe.claims.example import entropy_of_example, example, head_sizes, products, tokens_of_phrase
from probe.claims.families import fingerprints, positions
from probe.claims.far import far
from probe.claims.order import order
from probe.claims.records import Finding
from probe.claims.rows import idle_heads, verbs
from probe.claims.rungs import rungs
from probe.claims.words import chips
from probe.errors import TapError

Experiment = Callable[[Bench], Finding]

EXPERIMENTS: dict[str, Experiment] = {
    "contexts": contexts,
    "rungs": rungs,
    "neighbours": neighbours,
    "tokens": tokens_of_phrase,
    "fingerprints": fingerprints,
    "order": order,
    "example": example,
    "entropy": entropy_of_example,
    "feeling": output_space,
    "sizes": head_sizes,
    "idle": idle_heads,
    "verbs": verbs,
    "distance": distance,
    "far": far,
    "positions": positions,
    "products": products,
    "chips": chips,
}
WAITING = ("heads", "alibi", "finance", "dilution", "remedies", "repeats", "injection")  # these train or retrieve
UNTESTABLE = ("intent", "acid")
_TAPPED: dict[str, tuple[Literal["encoder", "decoder"], ...]] = {  # these cut edges or look inside attention
    "feeling": ("encoder",),
    "verbs": ("encoder",),
    "far": ("encoder", "decoder"),
}


def run_claims(bench: Bench, keys: Sequence[str]) -> Iterator[Finding]:
    """Give the findings of these claims, in their order; those that wait for training come without parts.

    TapError, before anything is measured, for a model whose attention some of them cannot reach.
    """
    _check_taps(bench, keys)
    for number, key in enumerate(keys):
        if bench.progress:
            bench.progress(f"claim {key}", number, len(keys))
        if key in EXPERIMENTS:
            found = EXPERIMENTS[key](bench)
        else:
            found = Finding(key=key, why="waits" if key in WAITING else "not testable here")
        if bench.progress:
            bench.progress(f"claim {key}", number + 1, len(keys))
        yield found


def _check_taps(bench: Bench, keys: Sequence[str]) -> None:
    for role in ("encoder", "decoder"):
        asked = [key for key in keys if role in _TAPPED.get(key, ())]
        if not asked:
            continue
        loaded = bench.encoder if role == "encoder" else bench.decoder
        route = bench.route(loaded)
        if route.path != "tap":
            option = {"encoder": "--model", "decoder": "--decoder"}[role]
            raise TapError(
                f"{loaded.name}: {', '.join(asked)} cannot be measured, since edges are cut through the tap "
                f"({route.reason}): give another {option}, or name the other claims with --only"
            )
