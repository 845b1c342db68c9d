"""Which step of a run is kept: the best on dev, by which metric; and when a run stops because dev gets no better."""

import difflib
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from finetune.dataconfig import LABELLED, DataConfig, Task
from finetune.errors import TrainingError

COMPARABLE = ("eval_loss", "eval_accuracy")  # the task's alone, so they mean the same with any weight of the attention
OF_PAIRS = ("eval_attention_loss", "eval_pair_mass", "eval_sink_mass", "eval_pairs_met")
_LOGGED = 10  # steps: TrainingArguments' eval_steps follow logging_steps


class EarlyStopping(BaseModel):
    """Stop when dev gets no better; the best step is kept all the same."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    patience: Annotated[int, Field(ge=1)] = 3  # evaluations in a row without a gain
    threshold: Annotated[float, Field(ge=0.0)] = 0.0  # of the metric; a gain no larger counts as none


def dev_expected(data: DataConfig) -> bool:
    """Whether the file asks for a dev part; whether the texts give one is known when they are read."""
    return bool(data.dev or data.dev_split or data.dev_share > 0)


def full_name(metric: str) -> str:
    """eval_loss for loss, as Trainer reads `metric_for_best_model`."""
    return metric if metric.startswith("eval_") else f"eval_{metric}"


def known_metrics(task: Task, *, supervised: bool) -> tuple[str, ...]:
    """What is measured on dev."""
    own = COMPARABLE if task in LABELLED else COMPARABLE[:1]
    return (*own, *OF_PAIRS) if supervised else own


def more_is_better(metric: str, *, loss: str = "") -> bool:
    """Whether a larger value of the metric is the better one; `loss` is that on attention: repel drives it away."""
    name = full_name(metric)
    return name == "eval_accuracy" or (name in ("eval_pair_mass", "eval_pairs_met") and loss != "repel")


def metric_problem(metric: object, known: tuple[str, ...]) -> str | None:
    """Why no step can be chosen by this metric, or None."""
    if isinstance(metric, str) and full_name(metric) in known:
        return None
    close = difflib.get_close_matches(full_name(str(metric)), known, n=1, cutoff=0.5)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"{metric!r} is not measured on dev{meant} (allowed: {', '.join(known)})"


def evaluation_plan(training: Mapping[str, Any], *, steps: int | None = None, has_dev: bool = True) -> dict[str, Any]:
    """When a run evaluates and saves: with a dev part at the same steps, so that the best can be kept.

    These are defaults: what the file says of one of the two holds for the other. steps: between two saves of a stream,
    which is one epoch without an end.
    """
    usual = "epoch" if steps is None else "steps"
    length = {} if steps is None else {"eval_steps": steps, "save_steps": steps}
    if not has_dev or not keeps_best(training):
        when = usual if has_dev else "no"
        return {"eval_strategy": when, "save_strategy": usual, "load_best_model_at_end": False, **length}
    told = [training.get(name) for name in ("eval_strategy", "save_strategy")]
    lengths = [training[name] for name in ("eval_steps", "save_steps") if name in training]
    every = next((one for one in told if one in ("steps", "epoch")), "steps" if lengths else usual)
    plan = {"eval_strategy": every, "save_strategy": every, "load_best_model_at_end": True}
    if every == "steps":
        every_so_many = lengths[0] if lengths else steps or training.get("logging_steps", _LOGGED)
        plan |= {"eval_steps": every_so_many, "save_steps": every_so_many}
    return plan


def keeps_best(training: Mapping[str, Any]) -> bool:
    """Whether the best step can be kept: a run that is told not to evaluate or not to save keeps its last."""
    told = [training.get(name) for name in ("eval_strategy", "save_strategy")]
    return "no" not in told and training.get("load_best_model_at_end") is not False


def contradictions(
    training: Mapping[str, Any], stopping: EarlyStopping | None, *, steps: int | None = None
) -> Iterator[str]:
    """What in `training` goes against keeping the best step on dev."""
    if not keeps_best(training):
        for name in ("eval_strategy", "save_strategy", "load_best_model_at_end"):
            value = training.get(name)
            if value is False or value == "no":
                shown = str(value).lower()
                if stopping is not None:
                    yield f"training.{name} {shown} goes against early_stopping, which keeps the best step on dev"
                elif training.get("load_best_model_at_end"):
                    yield f"training.{name} {shown} goes against training.load_best_model_at_end true"
        return
    strategies = [training.get(name) for name in ("eval_strategy", "save_strategy")]
    if strategies[1] == "best" or any(
        one not in (None, "steps", "epoch") for one in strategies
    ):  # Trainer refuses other words
        return
    plan = {**evaluation_plan(training, steps=steps), **training}
    names = ("strategy", "steps") if plan["eval_strategy"] == "steps" else ("strategy",)
    for name in names:
        one, other = plan[f"eval_{name}"], plan[f"save_{name}"]
        if one != other:
            yield (
                f"training.eval_{name} {one}, save_{name} {other}: the best step on dev might not be a saved one; "
                "give both alike, or save_strategy: best"
            )
            return


def steps_told(trainer: Any) -> dict[str, Any]:
    """How many steps were taken of how many, whether patience ended them, which is kept, by which metric.

    TrainingError where no step was taken, and where dev was measured and no step was the best: the metric was never a
    number.
    """
    state, last = trainer.state, int(trainer.state.global_step)
    if last == 0:
        raise TrainingError("no step was taken, so nothing was learnt: see training.max_steps and num_train_epochs")
    kept: dict[str, Any] = {"step": last, "metric": None, "why": "there is no dev part"}
    if trainer.eval_dataset is not None:
        kept["why"] = (
            "the last was asked for" if not trainer.args.load_best_model_at_end else "dev was measured at no step"
        )
    if trainer.args.load_best_model_at_end and state.best_metric is not None:
        metric = full_name(trainer.args.metric_for_best_model)
        if not math.isfinite(state.best_metric):
            raise TrainingError(f"{metric} on dev was no number at any step, so none can be kept as the best")
        kept = {"step": int(state.best_global_step), "metric": metric, "value": float(state.best_metric)}
    early = trainer.patience is not None and trainer.patience.exhausted and last < state.max_steps
    return {"steps": last, "planned_steps": int(state.max_steps), "stopped_early": early, "kept": kept}


def steps_in_words(told: Mapping[str, Any]) -> str:
    """The same for a reader of the card."""
    kept = told["kept"]
    reason = (
        f"the best on dev by {kept['metric']} ({kept['value']:.6g})" if kept["metric"] else f"the last: {kept['why']}"
    )
    early = f", stopped early of {told['planned_steps']} planned: dev got no better" if told["stopped_early"] else ""
    return f"Step {kept['step']} is kept, {reason}. {told['steps']} steps were taken{early}."
