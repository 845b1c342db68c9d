"""Thresholds in files: what was chosen, on which searches, and how well it did on the other half."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from finetune.errors import RetrievalError
from finetune.rag.beir import SHIPPED
from finetune.rag.threshold import Field, Measure, Threshold, Trial

SHIPPED_FILE = SHIPPED / "threshold.json"


class _Saved(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    score: FiniteFloat
    field: Field
    measure: Measure
    false_refusals: float
    false_answers: float
    made_from: dict[str, Any]  # encoder and words of the index that was searched
    held_out: dict[str, list[float | None]]  # measure -> estimate, low, high on the other half


def threshold_text(trial: Trial, made_from: Mapping[str, Any]) -> str:
    """Give a chosen threshold as JSON."""
    one = trial.threshold
    held_out = {
        str(name): [float(estimate), *(None if bound != bound else float(bound) for bound in (low, high))]
        for name, estimate, low, high in trial.table[["measure", "estimate", "low", "high"]].itertuples(index=False)
    }
    saved = _Saved(
        score=one.score, field=one.field, measure=one.measure, false_refusals=one.false_refusals,
        false_answers=one.false_answers, made_from=searched_with(made_from), held_out=held_out,
    )  # fmt: skip
    return json.dumps(saved.model_dump(), ensure_ascii=False, indent=1) + "\n"


def load_threshold(file: Path, made_from: Mapping[str, Any]) -> Threshold:
    """Read a threshold for an index; RetrievalError where it was chosen on scores of another encoder or other words."""
    try:
        saved = _Saved.model_validate_json(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RetrievalError(f"{file}: cannot be read; allowed is a threshold.json of `finetune passages`") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its JSON"
        raise RetrievalError(
            f"{file}: {where}: {first['msg']}; allowed is a threshold.json of `finetune passages`"
        ) from error
    own = searched_with(made_from)
    part = "encoder" if saved.field == "dense" else "words"
    if saved.made_from.get(part) != own.get(part):
        raise RetrievalError(
            f"{file}: was chosen on scores of another {part}; allowed is one of this index's, or --threshold none"
        )
    return Threshold(
        score=saved.score, field=saved.field, measure=saved.measure, false_refusals=saved.false_refusals,
        false_answers=saved.false_answers,
    )  # fmt: skip


def searched_with(made_from: Mapping[str, Any]) -> dict[str, Any]:
    """What decides over a score, of all that an index is made from; terms of a domain aside."""
    words = {name: value for name, value in dict(made_from["words"]).items() if name != "terms"}
    return {"encoder": made_from["encoder"], "words": words}
