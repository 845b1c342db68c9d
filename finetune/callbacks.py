"""What a Trainer is told on the way: which epoch begins, and when to stop because dev gets no better."""

from collections.abc import Callable
from typing import Any

from transformers import EarlyStoppingCallback, TrainerCallback


class EpochTold(TrainerCallback):  # type: ignore[misc]
    """Tells the texts which epoch begins, for a masked language model's masks.

    accelerate tells them too, but neither with several processes nor in an epoch that a resumed run goes on with.
    """

    def __init__(self, texts: Any) -> None:
        self.texts = texts

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell the epoch's number; a resumed run begins in the middle of one."""
        if hasattr(self.texts, "set_epoch"):
            self.texts.set_epoch(int((state.epoch or 0.0) + 1e-6))


class StepsTold(TrainerCallback):  # type: ignore[misc]
    """Says after each step how far the run is."""

    def __init__(self, tell: Callable[[str, int, int], None]) -> None:
        self.tell = tell

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell from where the run starts."""
        self.tell("training", state.global_step, state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell the step."""
        self.tell("training", state.global_step, state.max_steps)


class Patience(EarlyStoppingCallback):  # type: ignore[misc]
    """Stops a run after so many evaluations in a row without a gain; a resumed run goes on counting where it was.

    Trainer takes the count up again only where `restore_callback_states_from_checkpoint` is set, and counts an
    evaluation of the same step twice (`eval_on_start`).
    """

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0) -> None:
        super().__init__(early_stopping_patience, early_stopping_threshold)
        self.counted_at = -1  # the step of the last evaluation that was counted

    @property
    def exhausted(self) -> bool:
        """Whether the run is to stop."""
        return bool(self.early_stopping_patience_counter >= self.early_stopping_patience)

    def on_train_begin(self, args: Any, state: Any, control: Any, **settings: Any) -> None:
        """Take the count from the checkpoint's state, where there is one."""
        super().on_train_begin(args, state, control, **settings)
        told = state.stateful_callbacks.get(type(self).__name__) or {}
        for name, value in told.get("attributes", {}).items():
            setattr(self, name, value)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **settings: Any) -> None:
        """Count each step once."""
        if state.global_step != self.counted_at:
            self.counted_at = state.global_step
            super().on_evaluate(args, state, control, metrics, **settings)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        told: dict[str, Any] = super().state()
        told["attributes"]["counted_at"] = self.counted_at
        return told
