"""One step of the walk, and the way so far: what has been found, and where to look for the next."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from probe.models import LoadedModel
from probe.walking.algebra import Floats, agrees, gap
from probe.walking.blocktrace import BlockTrace, HandedOver

PositionKind = Literal["learned", "sinusoidal", "rotary", "relative_bias", "alibi", "none"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One step: what it gives for the word, by the formula and in the model.

    Rows are one vector, or one a token. `ours` is None where no formula gives the model's numbers, `own` where the
    model never holds them; then `missing` names the reason.
    """

    name: str
    ours: Floats | None  # [row, number]
    own: Floats | None  # [row, number]
    rows: tuple[str, ...] = ()  # what each row belongs to, tokens or heads
    columns: tuple[str, ...] = ()  # what each number belongs to, where it is a token
    form: str = ""  # which form of the formula the family has
    terms: tuple[str, ...] = ()  # parts that its formula has in this family: a bias, each row that is added
    facts: Mapping[str, str | int] = field(default_factory=dict)  # its own numbers: a scale, a base, how many
    missing: str = ""  # why the family does not expose it

    @property
    def gap(self) -> float | None:
        """Largest difference of ours from the model's own, as a share of its largest number where that is above 1."""
        return None if self.ours is None or self.own is None else gap(self.ours, self.own)

    @property
    def numbers(self) -> Floats | None:
        """The numbers to show: the model's own where it has them, else ours."""
        return self.own if self.own is not None else self.ours


@dataclass(kw_only=True, eq=False)
class Way:
    """What has been found so far, and where to look."""

    loaded: LoadedModel
    trace: BlockTrace
    labels: tuple[str, ...]
    ids: tuple[int, ...]
    target: int
    head: int
    steps: list[Step] = field(default_factory=list)
    position: PositionKind = "none"

    @property
    def handed(self) -> HandedOver:
        """What attention was given."""
        assert self.trace.handed is not None
        return self.trace.handed

    @property
    def causal(self) -> bool:
        """Whether the model only looks back."""
        return self.loaded.kind == "decoder"

    @property
    def kv_head(self) -> int:
        """The key head that the head reads."""
        return self.head // int(self.handed.query.shape[0] // self.handed.key.shape[0])

    @property
    def count(self) -> int:
        """How many tokens the text has."""
        return len(self.labels)

    def add(self, name: str, ours: Any, own: Any, **more: Any) -> None:
        """Add a step; what does not come within 1e-5 is listed with a reason instead of shown as ours."""
        a, b = (None if part is None else np.atleast_2d(np.asarray(part, dtype=np.float64)) for part in (ours, own))
        if a is not None and b is not None and not agrees(a, b) and not more.get("missing"):
            a, more = None, {**more, "missing": "other_numbers"}
        if (a is None or b is None) and not more.get("missing"):
            more["missing"] = "not_held" if b is None else "other_numbers"
        self.steps.append(Step(name=name, ours=a, own=b, **more))

    def at(self, array: Any) -> Any:
        """The target's row of a [token, number] array."""
        return array[self.target]
