"""The runs of one model that the self-check reads: three short texts, on the route and by eager attention."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from probe.errors import CijingError
from probe.labels import Layer
from probe.models import LoadedModel
from probe.routes import Forward, Route, batch_for, eager_maps, forward_rows
from probe.rowrequest import AttentionCall, RowRequest

# Unequal lengths, so that padding is exercised; both scripts.
_TEXTS = ("我喜欢苹果", "苹果公司今天发布了一款新的手机芯片", "She sat on the bank and ate an apple.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """The runs that all checks read: single texts, whole maps from both paths, and the tap's own inputs."""

    loaded: LoadedModel
    route: Route
    ids: list[list[int]]
    singles: list[Forward]
    eager: list[tuple[dict[Layer, Tensor], Any]]
    calls: list[AttentionCall] = field(default_factory=list)


def gather(loaded: LoadedModel, route: Route) -> Evidence:
    """Make the runs: each text alone on the route, and by eager attention where the family has it."""
    ids = [list(loaded.tokenizer(text)["input_ids"]) for text in _TEXTS]
    limit = loaded.max_positions
    ids = [item if limit is None else item[:limit] for item in ids]
    singles: list[Forward] = []
    calls: list[AttentionCall] = []
    for item in ids:
        request = RowRequest([list(range(len(item)))], value_norms=True, inspect=calls.append)
        singles.append(forward_rows(loaded, route, batch_for(loaded, [item]), request, states=True))
    eager = [eager_maps(loaded, batch_for(loaded, [item]), states=True) for item in ids] if _has_eager(loaded) else []
    return Evidence(loaded=loaded, route=route, ids=ids, singles=singles, eager=eager, calls=calls)


def _has_eager(loaded: LoadedModel) -> bool:
    try:
        return bool(eager_maps(loaded, batch_for(loaded, [[1, 2]]))[0])
    except (CijingError, TypeError, ValueError, NotImplementedError):
        return False
