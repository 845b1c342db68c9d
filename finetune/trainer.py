"""transformers.Trainer with a loss on attention beside the task's; the only file that knows Trainer's insides.

Both losses are divided by what the whole accumulated batch of all processes holds, so that one step of 4 micro-batches
is the step of one batch four times as large, and two processes take the step of one.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer

from finetune.bases import base_at_rest, is_adapted
from finetune.batches import ByLength
from finetune.callbacks import EpochTold, Patience
from finetune.checkpoints import (
    check_whole,
    keep_latest,
    latest_checkpoint,
    load_head,
    mark_complete,
    told_unreadable,
)
from finetune.choosing import COMPARABLE, OF_PAIRS
from finetune.errors import TrainingError
from finetune.supervise import (
    PairScores,
    ScoreSums,
    Supervision,
    batch_pairs,
    check_gradient,
    request_for,
    score_pairs,
    taken,
)
from finetune.tasks import TaskLoss, spoilt_weight
from finetune.whole import load_weights, save_taught
from finetune.writing import disk_told
from probe import attached

_SKIPPED_AT_MOST = 20  # steps in a row that float16's scaler may leave out while it looks for its scale


@dataclass(frozen=True, kw_only=True)
class WeightPlan:
    """The attention loss's weight λ over the run: it rises over the warm-up and falls over the decay."""

    weight: float
    warmup: float = 0.0  # share of the steps
    decay: float = 0.0

    def at(self, done: float) -> float:
        """λ when a share of the steps is done."""
        rising = min(1.0, done / self.warmup) if self.warmup > 0 else 1.0
        falling = min(1.0, (1.0 - done) / self.decay) if self.decay > 0 else 1.0
        return self.weight * rising * falling


class AttentionTrainer(Trainer):  # type: ignore[misc]
    """Trainer with a task of ours, and supervised attention where a `supervision` is given.

    The model is a PeftModel, or one all of whose weights are trained; a task that needs a head of its own keeps it as
    `model.reading_head`.
    """

    def __init__(
        self,
        *,
        task_loss: TaskLoss,
        supervision: Supervision | None = None,
        plan: WeightPlan | None = None,
        norms_every: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.add_callback(EpochTold(self.train_dataset))
        self.remove_callback(PrinterCallback)  # it prints each line of the log as a dict
        if self.args.n_gpu > 1:
            raise TrainingError(
                "several GPUs in one process: start one process a GPU with accelerate launch or torchrun"
            )
        self.task_loss, self.supervision, self.plan = task_loss, supervision, plan
        # The loss is divided here by the whole accumulated batch, so Trainer must count it and must not divide again.
        self.model_accepts_loss_kwargs = True
        self.loss_is_scaled_for_ga = True
        self._loss_shifts_labels = task_loss.shifts
        self._pair_total = torch.tensor(1.0)
        self._sums = ScoreSums()
        self.norms_every = norms_every
        self._task_sum, self._attention_sum, self._told_at = 0.0, 0.0, 0
        self._norms: dict[str, list[Tensor]] = {}
        self.facts: Mapping[str, Any] = {}  # what a checkpoint must say of the run, to refuse another's
        self._checked = False
        self.loss_before = 0.0  # the sum over the steps before the checkpoint that is gone on from
        self._step_index: list[Tensor] = []  # places of the examples of the step being taken
        self._skipped = 0

    def train(self, *arguments: Any, **settings: Any) -> Any:
        """Train with the model's attention going through the tap."""
        with self.tapped():
            return super().train(*arguments, **settings)

    def evaluate(self, *arguments: Any, metric_key_prefix: str = "eval", **settings: Any) -> dict[str, float]:
        """Evaluate with the model's attention going through the tap."""
        with self.tapped():
            metrics: dict[str, float] = super().evaluate(*arguments, metric_key_prefix=metric_key_prefix, **settings)
        loss = metrics.get(f"{metric_key_prefix}_loss", 0.0)
        if not math.isfinite(loss):
            raise self._no_number(f"the loss on dev is {loss} after step {self.state.global_step}", [])
        return metrics

    def evaluation_loop(self, *arguments: Any, metric_key_prefix: str = "eval", **settings: Any) -> Any:
        """The pairs' mean mass joins the metrics before the callbacks see them: sums a batch, never gathered rows."""
        kept, self._sums = self._sums, ScoreSums()
        try:
            output = super().evaluation_loop(*arguments, metric_key_prefix=metric_key_prefix, **settings)
            found = self._gathered(self._sums)
        finally:
            self._sums = kept
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in found.items()})
        return output

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        rows = getattr(train_dataset if train_dataset is not None else self.train_dataset, "rows", None)
        if rows is None or self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return ByLength(rows, batch=batch, seed=self.args.data_seed or self.args.seed)

    def _get_eval_sampler(self, eval_dataset: Any) -> None:
        """None: dev is read in its order, whatever the order of training is; Transformers' own would group it too."""

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        """Micro-batches of one step, and what they hold over all processes: items (Trainer) and pairs (here)."""
        samples, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        weights = sum((float(batch["pair_weights"].sum()) for batch in samples if "pair_weights" in batch), 0.0)
        total = torch.tensor(weights, device=device)
        self._step_index = [batch["index"] for batch in samples if "index" in batch]
        self._pair_total = self.accelerator.gather(total).sum() if self.accelerator.num_processes > 1 else total
        return samples, items

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Task loss + λ · attention loss, each over the whole step; in evaluation the task's alone, over the batch.

        Times the number of processes, whose gradients are averaged.
        """
        task, outputs, scores = self._losses(model, inputs, num_items_in_batch if model.training else None)
        if scores is not None:
            self._sums.add(scores)
        if not model.training:
            return (task, outputs) if return_outputs else task
        self._task_sum += float(task.detach())
        loss = task
        attention = None if scores is None else self._normalised(scores)
        if attention is not None:
            self._attention_sum += float(attention.detach())
            loss = task + self._weight() * attention
        if self._norms_due():
            self._add_norms(task, attention)
        self._refuse_nan(loss, inputs.get("index"))
        loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def _losses(self, model: nn.Module, inputs: dict[str, Any], items: Any) -> tuple[Tensor, Any, PairScores | None]:
        """The task's loss, its outputs, and what the pairs came to."""
        inputs = {name: value for name, value in inputs.items() if name != "index"}
        pairs, labels = taken(inputs), inputs.pop("labels")
        if self.supervision is None or pairs is None:
            return *self.task_loss(model, inputs, labels, rows=None, items=items), None
        texts, tokens = inputs["input_ids"].shape
        queries, spans = batch_pairs(*pairs, tokens=tokens)
        layers = self.supervision.layers
        base = None
        if self.supervision.settings.name == "anchor":
            base = request_for(queries, texts=texts, layers=layers)
            with torch.no_grad(), base_at_rest(self.model):
                self.task_loss(model, inputs, labels, rows=base, items=items)
        request = request_for(queries, texts=texts, layers=layers)
        task, outputs = self.task_loss(model, inputs, labels, rows=request, items=items)
        if model.training and not self._checked:
            check_gradient(request)
            self._checked = True
        return task, outputs, score_pairs(request, spans, self.supervision, base=base)

    def log(self, logs: dict[str, float], *arguments: Any, **settings: Any) -> None:
        """Add the task's loss by itself and what the attention loss did since the last line."""
        if "loss" in logs and self.supervision is not None:
            logs = {**logs, **self._told()}
        if "train_loss" in logs:  # Trainer's is that of the steps since the last resume; in place, for it returns it
            logs["train_loss"] = self._loss_sum() / max(self.state.global_step, 1)
        super().log(logs, *arguments, **settings)

    def _told(self) -> dict[str, float]:
        """Both losses as means over steps, which add up to Trainer's; what the pairs attend to as means over pairs."""
        steps = max(self.state.global_step - self._told_at, 1)
        losses = torch.tensor([self._task_sum, self._attention_sum], dtype=torch.float64) / steps
        if self.accelerator.num_processes > 1:  # each holds its share
            losses = self.accelerator.gather(losses.to(self.args.device)[None]).sum(0).cpu()
        found = self._gathered(self._sums)
        found |= {"task_loss": float(losses[0]), "attention_loss": float(losses[1]), "attention_weight": self._weight()}
        found |= self._taken_norms()
        self._task_sum, self._attention_sum, self._told_at = 0.0, 0.0, self.state.global_step
        self._sums = ScoreSums()
        return found

    def _norms_due(self) -> bool:
        """Whether the step being taken is one whose gradients are measured apart; each costs two backward passes."""
        return self.norms_every > 0 and (self.state.global_step + 1) % self.norms_every == 0

    def _add_norms(self, task: Tensor, attention: Tensor | None) -> None:
        """Add both parts' gradients of one micro-batch; with several processes they are this one's share."""
        for name, loss in (("task_gradient", task), ("attention_gradient", attention)):
            if loss is None:  # a micro-batch without pairs
                continue
            found = torch.autograd.grad(loss, self._trained(), retain_graph=True, allow_unused=True)
            kept = self._norms.setdefault(name, [torch.zeros_like(weight) for weight in self._trained()])
            for total, one in zip(kept, found, strict=True):
                if one is not None:
                    total += one

    def _taken_norms(self) -> dict[str, float]:
        """The norms of what was added up, which starts anew."""
        sums, self._norms = self._norms, {}
        return {name: math.sqrt(sum(float(one.double().square().sum()) for one in all_)) for name, all_ in sums.items()}

    def _trained(self) -> list[Tensor]:
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def gradient_norms(self, batches: list[dict[str, Any]]) -> tuple[float, float]:
        """Norms of the task's and of the attention loss's gradient over these batches taken as one step."""
        if self.supervision is None:
            raise TrainingError("there is no attention loss, so its gradient has no norm")
        samples, items = self.get_batch_samples(iter(batches), len(batches), self.args.device)
        self.model.train()
        with self.tapped():
            for batch in samples:
                with self.compute_loss_context_manager():
                    task, _, scores = self._losses(self.model, self._prepare_inputs(batch), items)
                self._add_norms(task, None if scores is None else self._normalised(scores))
        found = self._taken_norms()
        return found.get("task_gradient", 0.0), found.get("attention_gradient", 0.0)

    def _normalised(self, scores: PairScores) -> Tensor:
        return scores.loss / self._pair_total.to(scores.loss.device).clamp_min(1e-12)

    def _weight(self) -> float:
        done = self.state.global_step / max(self.state.max_steps, 1)
        return 0.0 if self.plan is None else self.plan.at(done)

    def _gathered(self, sums: ScoreSums) -> dict[str, float]:
        """The means over the pairs of all processes."""
        if self.supervision is None:
            return {}
        names = ("loss", "weight", "mass", "met", "sink", "pairs")
        mine = torch.tensor([sums.sums.get(name, 0.0) for name in names], dtype=torch.float64)
        if self.accelerator.num_processes > 1:
            everyone = self.accelerator.gather(mine.to(self.args.device)[None])  # [process, name]
            mine = everyone.sum(0).cpu()
        return ScoreSums(sums=dict(zip(names, mine.tolist(), strict=True))).means()

    def _refuse_nan(self, loss: Tensor, index: Tensor | None) -> None:
        if not torch.isfinite(loss.detach()).all():
            what = f"the loss is {float(loss.detach())} at step {self.state.global_step + 1}"
            raise self._no_number(what, [] if index is None else [index])

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The step's norm; TrainingError where it is no number, before the optimizer has spoilt the weights by it.

        In float16 an overflow is how the scaler finds its scale: it leaves the step out, and only many in a row stop.
        """
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        finite = math.isfinite(float(norm))
        self._skipped = 0 if finite else self._skipped + 1
        scaled = getattr(self.accelerator, "scaler", None) is not None
        if self._skipped > (_SKIPPED_AT_MOST if scaled else 0):
            what = f"the gradient's norm is {float(norm)} at step {self.state.global_step + 1}"
            raise self._no_number(what, self._step_index)
        return norm

    def _no_number(self, what: str, index: list[Tensor]) -> TrainingError:
        """The error of a run that cannot go on, with the examples by their records' ids and what is left."""
        last = latest_checkpoint(Path(self.args.output_dir))
        names = {one.index: one.id for one in getattr(self.train_dataset, "documents", ())}
        places = [place for part in index for place in part.tolist()]
        told = ", ".join(str(names.get(place, place)) for place in places)
        examples, look = (f", examples {told}", ", or look at these examples") if told else ("", "")
        return TrainingError(
            f"{what}{examples}; the last good checkpoint is {last.name if last else 'none'}: lower "
            f"training.learning_rate{look}"
        )

    def refuse_spoilt(self) -> None:
        """TrainingError for trained weights that are no numbers, before they are written."""
        if name := spoilt_weight(self.model):
            raise self._no_number(f"weights of {name} are no numbers after step {self.state.global_step}", [])

    def _loss_sum(self) -> float:
        return float(self.loss_before + self._total_loss_scalar + self._tr_loss.item())

    @contextmanager
    def tapped(self) -> Iterator[None]:
        """Within the block the model's attention goes through the tap, where there is a loss on it."""
        if self.supervision is None:
            yield
        else:
            with attached(self.model):
                yield

    # ---- checkpoints: safetensors for weights, hashes for all, complete or not there ------------------------------

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Adapter or all weights, head and tokenizer; Trainer would pickle its arguments beside them."""
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_taught(self.model, folder, state=state_dict)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(str(folder))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """A checkpoint counts from when its mark is written, after all its files; older ones go only then."""
        self.refuse_spoilt()
        root = Path(self.args.output_dir)
        folder = root / f"checkpoint-{self.state.global_step}"
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        with disk_told(folder, then="mend that, then go on with --resume"):
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self.args.save_total_limit = limit
            if self.args.should_save:
                mark_complete(folder, facts={**self.facts, "loss_sum": self._loss_sum()})
                keep_latest(root, limit=limit, best=self.state.best_model_checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load what was trained, whose hashes were checked when the checkpoint was chosen."""
        if is_adapted(self.model):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:  # Trainer would leave out, with a warning, what the files call otherwise
            load_weights(self.model, Path(resume_from_checkpoint))
        load_head(self.model, Path(resume_from_checkpoint))

    # ---- the best step on dev ----------------------------------------------------------------------------------

    @property
    def patience(self) -> Patience | None:
        """What stops the run early, where it may."""
        return next((one for one in self.callback_handler.callbacks if isinstance(one, Patience)), None)

    def _init_training_state(self, *arguments: Any, **settings: Any) -> Any:
        """Trainer's counters, and from which step on the means of the log are taken.

        The best checkpoint of a resumed run is the one in this run's folder, wherever that lay before.
        """
        found = super()._init_training_state(*arguments, **settings)
        self._told_at = self.state.global_step
        best = self.state.best_global_step
        if best and self.args.load_best_model_at_end:
            folder = Path(self.args.output_dir) / f"checkpoint-{best}"
            check_whole(folder)  # Trainer would keep the last step instead, and only log it
            self.state.best_model_checkpoint = str(folder)
        return found

    def _run_epoch(self, *arguments: Any, **settings: Any) -> None:
        """Nothing where the checkpoint that the run goes on from was its last step: Trainer would take one more."""
        patience = self.patience
        over = self.state.global_step >= self.state.max_steps or (patience is not None and patience.exhausted)
        if over:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*arguments, **settings)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        try:
            better: bool = super()._determine_best_metric(metrics, trial)
        except KeyError as error:
            given = ", ".join(name for name in (*COMPARABLE, *OF_PAIRS) if name in metrics)
            raise TrainingError(
                f"training.metric_for_best_model {self.args.metric_for_best_model}: the dev part gives {given} alone"
            ) from error
        return better

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with told_unreadable(checkpoint, "optimizer.pt or scheduler.pt"):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with told_unreadable(checkpoint, "the state of the random numbers"):
            super()._load_rng_state(checkpoint)

    def _load_best_model(self) -> None:
        best = Path(str(self.state.best_model_checkpoint))
        if is_adapted(self.model):
            super()._load_best_model()
        else:
            load_weights(self.model, best)
        load_head(self.model, best)
