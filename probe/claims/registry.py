"""All claims by name, and the runs that answer them."""

from collections.abc import Callable, Iterator, Sequence

from probe.claims.bench import Bench
from probe.claims.distance import distance
from probe.claims.embedding import contexts, neighbours, output_space
from probe.claims.example import entropy_of_example, example, head_sizes, products, tokens_of_phrase
from probe.claims.far import far
from probe.claims.order import fingerprints, order, positions
from probe.claims.records import Finding
from probe.claims.rows import idle_heads, verbs
from probe.claims.rungs import rungs
from probe.claims.words import chips

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


def run_claims(bench: Bench, keys: Sequence[str]) -> Iterator[Finding]:
    """Give the findings of these claims, in their order; those that wait for training come without parts."""
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
