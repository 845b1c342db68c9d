"""Gradients of task + attention loss through the tap against eager attention, for every loss and head reduction.

    python -m benchmarks.gradient_parity [--preset ci|e5|gemma|full] [--json FILE]

Ours is the trainer's own step (AttentionTrainer.training_step). The other side shares none of it: eager attention's
full maps, and both losses written again with plain torch. Compared is the gradient of the sum that a run descends,
task + λ · attention, over all trained weights, as the norm of the difference over the norm of the gradient; λ is that
of `attention.weight: auto`, which makes the attention gradient 0.2 of the task's.

- float64 weights: at most 1e-6. Our rows are float32 here as well (the tap's contract); softmax, norms and the task's
  loss are float64 on both sides (see `exact`). The anchor's gradient is the difference of two rows, the model's and the
  base's, so that the less an adapter has drifted, the more of it is their rounding, whoever computes it: the bound is
  held for an adapter that is drawn, and has drifted; one that hardly has misses it (docs/teaching.md, Exactness).
- float32 weights: 1e-6 is out of reach through a model's layers, for eager attention as for the model's own without the
  tap (SDPA, whose rounding is the processor's: on one it is eager's, on another twice that). Two float32 computations
  that round independently differ by the root of both squared; that of eager attention and of the model's own, each in
  float32 against itself in float64, is the column noise. Ours and eager's may differ by 1.06 of it.

Leaves with exit code 1 where a bound is passed.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from finetune.batches import collator_of
from finetune.config import AttentionConfig, config_of
from finetune.encode import encode, encoding_of
from finetune.heads import chosen_layers, every_head
from finetune.learner import make_learner
from finetune.losses import HeadReduction, LossName, LossSettings
from finetune.pairs import SpanPair
from finetune.reach import depths_of
from finetune.reading import Record
from finetune.supervise import Supervision
from finetune.tasks import TaskLoss
from finetune.trainer import AttentionTrainer, WeightPlan
from probe import Span

BOUND = 1e-6  # float64
ROUNDING = 1.06  # float32: ours from eager's, over the noise of both kinds of attention without the tap
SHARE: float = AttentionConfig.model_fields["share"].default  # of the task gradient's norm, as λ auto takes it
LOSSES: tuple[LossName, ...] = get_args(LossName)
REDUCTIONS: tuple[HeadReduction, ...] = get_args(HeadReduction)
GEMMA, E5 = "builtin:gemma3-270m", "builtin:e5-small"
QUERY, KEY, NEGATIVE = range(3)

# text, query, its keys and what it is not to read; a key and a negative stand before their query.
SENTENCES = (
    ("果园旁的公司发布了新手机，其中的芯片由苹果自己设计，功耗很低。", "苹果", ("芯片", "手机"), ("果园",)),
    ("苹果酸脱氢酶在线粒体里把苹果酸变成草酰乙酸，同时还原辅酶。", "草酰乙酸", ("脱氢酶",), ("线粒体",)),
    ("牛顿坐在树下想事情。", "事情", ("牛顿",), ("树下",)),
    ("The orchard is old, but the phone is new: its chip was designed by Apple.", "Apple", ("chip",), ("orchard",)),
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model and its task, with what is compared."""

    model: str
    task: Literal["causal-lm", "sense"]
    losses: Sequence[LossName] = LOSSES
    reductions: Sequence[HeadReduction] = REDUCTIONS
    texts: int = len(SENTENCES)


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Norms of differences over the norm of the gradient."""

    model: str
    loss: str
    heads: str
    float64: float  # ours from eager attention, float64 weights
    float32: float  # ours from eager attention, float32 weights
    noise: float  # root of the squares: eager attention, and the model's own, each in float32 from itself in float64

    @property
    def kept(self) -> bool:
        """Whether both bounds are kept; a gap that is no number is not within one."""
        return self.float64 <= BOUND and self.float32 <= ROUNDING * self.noise


SETTINGS = {
    "ci": Setting(model=E5, task="sense", reductions=("each",), texts=2),
    "e5": Setting(model=E5, task="sense"),
    "gemma": Setting(model=GEMMA, task="causal-lm", reductions=("each",), texts=2),
}
PRESETS: Mapping[str, Sequence[str]] = {**{name: (name,) for name in SETTINGS}, "full": ("e5", "gemma")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare a preset's settings and print the table; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gradient_parity", description="Tap against eager.")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="full")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to this file")
    options = parser.parse_args(arguments)
    print(f"{'model':<15}{'loss':<8}{'heads':<6}{'float64':>9}{'float32':>9}{'noise':>9}  bound {BOUND:g}")
    gaps = []
    for gap in (gap for name in PRESETS[options.preset] for gap in compared(SETTINGS[name])):
        numbers = "".join(f"{number:>9.1e}" for number in (gap.float64, gap.float32, gap.noise))
        print(f"{gap.model:<15}{gap.loss:<8}{gap.heads:<6}{numbers}  {'kept' if gap.kept else 'MISSED'}", flush=True)
        gaps.append(gap)
    if options.json:
        options.json.write_text(json.dumps([asdict(gap) for gap in gaps], indent=1) + "\n", "utf-8")
    return 0 if all(gap.kept for gap in gaps) else 1


def compared(setting: Setting) -> Iterator[Gap]:
    """The gap of each loss and reduction on a real model."""
    torch.set_num_threads(1)
    model, batch = subject_of(setting)
    text = model.config.get_text_config()
    heads = every_head(chosen_layers("last_third", text.num_hidden_layers), text.num_attention_heads)
    cases = [Supervision(settings=one, heads=heads) for one in losses_of(setting.losses, setting.reductions)]
    yield from gaps_of(model, batch, cases, task=setting.task, name=setting.model.split(":")[1])


def gaps_of(
    model: Any, batch: Mapping[str, Tensor], cases: Sequence[Supervision], *, task: Any, name: str, share: float = SHARE
) -> Iterator[Gap]:
    """Each case's gaps; the model is float32 afterwards."""
    model.double()
    first = list(steps_of(model, batch, cases, task=task, share=share))
    exactly = untapped_gradient(model, batch, task=task)
    model.float()
    own = relative(untapped_gradient(model, batch, task=task), exactly)
    rounded = steps_of(model, batch, cases, task=task, weights=[one.weight for one in first])
    for one, other in zip(first, rounded, strict=True):
        told = one.supervision.settings
        yield Gap(
            model=name, loss=told.name, heads=told.heads, float64=relative(one.ours, one.eager),
            float32=relative(other.ours, other.eager), noise=math.hypot(relative(other.eager, one.eager), own),
        )  # fmt: skip


def losses_of(losses: Sequence[LossName], reductions: Sequence[HeadReduction]) -> Iterator[LossSettings]:
    """Settings under which every pair's loss is above its threshold, so that none has a gradient of zero."""
    for name in losses:
        for heads in reductions:
            yield LossSettings(name=name, heads=heads, threshold=1.0, margin=20.0, sharpness=2.0)


def subject_of(setting: Setting) -> tuple[Any, dict[str, Tensor]]:
    """The model with LoRA that is no longer zero, no dropout, and a padded batch of the sentences with their pairs."""
    labels = ("company", "other") if setting.task == "sense" else ()
    config = config_of({"model": setting.model, "task": setting.task, "data": {"train": "unread"}})
    learner = make_learner(config, labels=labels, device="cpu")
    drawn_adapter(learner.model)
    depths = depths_of(learner.loaded.backbone.config, causal=learner.loaded.kind == "decoder")
    encoding = encoding_of(config.data, setting.task, reach=depths.reach([0], cut_at=256), labels=labels)
    tokenizer = learner.loaded.tokenizer
    documents = [
        encode(one, tokenizer, encoding, index=place) for place, one in enumerate(records_of(setting.texts, labels))
    ]
    return learner.model, collator_of(tokenizer, setting.task)(documents)


def records_of(texts: int, labels: Sequence[str]) -> Iterator[Record]:
    """The first sentences, each with its pairs of different weights."""
    for place, (text, query, keys, negatives) in enumerate(SENTENCES[:texts]):
        pairs = [
            SpanPair(
                rule=-1, query=last(text, query), key=first(text, key), weight=1.0 + number + place,
                negatives=tuple(first(text, word) for word in negatives),
            )
            for number, key in enumerate(keys)
        ]  # fmt: skip
        label = labels[place % len(labels)] if labels else None
        yield Record(
            id=str(place), where=str(place), group=str(place), text=text, pairs=tuple(pairs), label=label,
            target=last(text, query) if labels else None,
        )  # fmt: skip


def first(text: str, word: str) -> Span:
    """Where a word stands first."""
    return Span(text.index(word), text.index(word) + len(word))


def last(text: str, word: str) -> Span:
    """Where a word stands last."""
    return Span(text.rindex(word), text.rindex(word) + len(word))


def drawn_adapter(model: Any) -> None:
    """Draw LoRA's second matrix, which PEFT begins as zero, and switch dropout off."""
    torch.manual_seed(2)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.2)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps:
    """One case's gradient on both sides, over all trained weights."""

    supervision: Supervision
    weight: float
    ours: list[Tensor] = field(repr=False)
    eager: list[Tensor] = field(repr=False)


def steps_of(
    model: Any,
    batch: Mapping[str, Tensor],
    cases: Sequence[Supervision],
    *,
    task: Any,
    weights: Sequence[float] | None = None,
    share: float = SHARE,
) -> Iterator[Steps]:
    """Each case's step on both sides; without weights, each makes the attention gradient a share of the task's."""
    plain, attentions = eager_gradients(model, batch, cases, task=task)
    for place, (case, attention) in enumerate(zip(cases, attentions, strict=True)):
        weight = share * norm(plain) / norm(attention) if weights is None else weights[place]
        eager = [one + weight * other for one, other in zip(plain, attention, strict=True)]
        ours = trainers_gradient(model, batch, case, task=task, weight=weight)
        told, number = case.settings, next(model.parameters()).dtype
        print(f"{number}: {told.name}, {told.heads}: {place + 1} of {len(cases)}", file=sys.stderr, flush=True)
        yield Steps(supervision=case, weight=weight, ours=ours, eager=eager)


def trainers_gradient(
    model: Any, batch: Mapping[str, Tensor], supervision: Supervision, *, task: Any, weight: float
) -> list[Tensor]:
    """What the trainer's own step leaves in the trained weights' `grad`."""
    from transformers import TrainingArguments

    trainer = AttentionTrainer(
        model=model, task_loss=TaskLoss(task=task), supervision=supervision, plan=WeightPlan(weight=weight),
        args=TrainingArguments(
            output_dir=tempfile.gettempdir(), report_to="none", max_steps=1, use_cpu=True, disable_tqdm=True,
            save_strategy="no", logging_strategy="no",
        ),
    )  # fmt: skip
    samples, items = trainer.get_batch_samples(iter([dict(batch)]), 1, trainer.args.device)
    model.zero_grad()
    with exact(model), trainer.tapped():
        trainer.training_step(trainer.model, samples[0], items)
    return [torch.zeros_like(one) if one.grad is None else one.grad.clone() for one in trained(model)]


@contextmanager
def exact(model: Any) -> Iterator[None]:
    """Within the block a float64 model computes in float64 throughout; other models as always.

    transformers' eager attention takes its softmax, and an RMSNorm its mean, in float32 whatever the weights are.
    """
    if next(model.parameters()).dtype != torch.float64:
        yield
        return
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    softmax = functional.softmax
    for module in norms:
        module.forward = partial(exact_norm, module)
    functional.softmax = lambda scores, dim, **_: softmax(scores, dim=dim)
    try:
        yield
    finally:
        functional.softmax = softmax
        for module in norms:
            del module.forward


def exact_norm(norm: Any, states: Tensor) -> Tensor:
    """RMSNorm in the states' own type; Gemma's weights are kept less one."""
    gemma = type(norm).__name__.startswith("Gemma")
    epsilon = norm.eps if gemma else norm.variance_epsilon
    length = torch.rsqrt(states.square().mean(-1, keepdim=True) + epsilon)
    return states * length * (1.0 + norm.weight if gemma else norm.weight)


# ---- the other side: full maps of eager attention, losses written again -----------------------------------------


def eager_gradients(
    model: Any, batch: Mapping[str, Tensor], cases: Sequence[Supervision], *, task: str
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Gradients of the task's loss and of each case's attention loss; the model's attention is eager within."""
    inner = model.get_base_model()
    before = inner.config._attn_implementation
    inner.set_attn_implementation("eager")
    try:
        model.train()
        with exact(model):
            with torch.no_grad(), model.disable_adapter():
                base = model(**model_inputs(batch), output_attentions=True).attentions
            out = model(**model_inputs(batch), output_attentions=True)
        losses = [task_loss(model, out, batch, task)]
        losses += [eager_attention(out.attentions, batch, case, base=base) for case in cases]
        weights = trained(model)
        found = []
        for place, loss in enumerate(losses):
            print(f"{loss.dtype}: eager: {place + 1} of {len(losses)}", file=sys.stderr, flush=True)
            found.append(torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True))
    finally:
        inner.set_attn_implementation(before)
    whole = [[torch.zeros_like(w) if g is None else g for g, w in zip(one, weights, strict=True)] for one in found]
    return whole[0], whole[1:]


def untapped_gradient(model: Any, batch: Mapping[str, Tensor], *, task: str) -> list[Tensor]:
    """The gradient of the task's loss by the model's own attention, without the tap."""
    model.train()
    with exact(model):
        loss = task_loss(model, model(**model_inputs(batch)), batch, task)
    weights = trained(model)
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for g, w in zip(found, weights, strict=True)]


def model_inputs(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What any model takes."""
    return {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch}


def task_loss(model: Any, out: Any, batch: Mapping[str, Tensor], task: str) -> Tensor:
    """The task's loss: the next token's, the masked token's, or that of the class."""
    labels = batch["labels"]
    if task == "causal-lm":
        return functional.cross_entropy(out.logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=-100)
    if task == "masked-lm":
        return functional.cross_entropy(out.logits.transpose(1, 2), labels, ignore_index=-100)
    if task == "classification":
        return functional.cross_entropy(out.logits, labels)
    head, states = model.reading_head, out.last_hidden_state
    targets = [
        (torch.stack([states[text, mask[text]].mean(0) for text in range(len(states))]) - head.centre) / head.scale
        for mask in (batch[name] for name in ("target_mask", "second_mask") if name in batch)
    ]
    if task == "word-in-context":
        one, other = targets if len(targets) == 2 else (targets[0][::2], targets[0][1::2])
        targets = [torch.cat([(one - other).abs(), one * other], 1)]
    return functional.cross_entropy(targets[0] @ head.out.weight.T + head.out.bias, labels)


def eager_attention(
    maps: Sequence[Tensor],
    batch: Mapping[str, Tensor],
    supervision: Supervision,
    *,
    base: Sequence[Tensor] | None = None,
) -> Tensor:
    """The mean over pairs, by weight, of their loss: a loop over pairs, layers and heads on maps [text, head, T, T].

    A layer whose window hides a pair does not count for it.
    """
    total, weights = torch.tensor(0.0), 0.0
    spans = batch["spans"].tolist()
    for pair, weight in enumerate(batch["pair_weights"].tolist()):
        mine = [one for one in spans if one[2] == pair]
        text = mine[0][0]
        queries, keys, negatives = ([one[3] for one in mine if one[1] == kind] for kind in (QUERY, KEY, NEGATIVE))
        found = []
        for layer, heads in supervision.heads.items():
            grid = maps[layer][text, list(heads)]
            before = base[layer][text, list(heads)]
            if all(float(grid[:, query, keys].detach().sum()) > 0 for query in queries):
                found.append(of_heads(grid, before, queries, keys, negatives, supervision.settings))
        if found:
            total = total + weight * torch.stack(found).mean()
            weights += weight
    return total / weights


def of_heads(
    grid: Tensor, before: Tensor, queries: list[int], keys: list[int], negatives: list[int], settings: LossSettings
) -> Tensor:
    """One pair's loss in one layer, heads reduced."""
    if settings.heads == "mean":
        grid, before = grid.mean(0)[None], before.mean(0)[None]
    by_head = torch.stack([of_head(*one, queries, keys, negatives, settings) for one in zip(grid, before, strict=True)])
    if settings.heads == "any":
        return -(torch.exp(-settings.sharpness * by_head).mean()).log() / settings.sharpness
    return by_head.mean()


def of_head(
    grid: Tensor, before: Tensor, queries: list[int], keys: list[int], negatives: list[int], settings: LossSettings
) -> Tensor:
    """One pair's loss in one head, from its map [query, key], by the formulas of the literature."""
    rows = grid[queries]
    mass = rows[:, keys].sum(1).mean()
    name = settings.name
    if name == "mass":
        return torch.relu(math.log(settings.threshold) - mass.log())
    if name == "repel":
        return -(1 - mass).log()
    if name == "margin" and not negatives:
        return mass * 0
    if name == "margin":
        return torch.relu(settings.margin + rows[:, negatives].sum(1).mean().log() - mass.log())
    each = []
    for place, query in enumerate(queries):
        seen = [key for key in range(grid.shape[1]) if float(grid[query, key].detach()) > 0]
        row = rows[place, seen]
        wanted = torch.tensor([key in keys for key in seen])
        if name == "anchor":
            drift = before[query, seen]
            each.append((drift * (drift.log() - row.log())).sum())
            continue
        smooth = settings.smoothing if name == "kl" and not bool(wanted.all()) else 0.0
        target = torch.where(wanted, (1 - smooth) / len(keys), smooth / max(int((~wanted).sum()), 1))
        if name == "kl":
            some = target > 0
            each.append((target[some] * (target[some].log() - row[some].log())).sum())
        else:
            squares = (row - target).square()
            each.append(squares.sum() if name == "sse" else squares.mean())
    return torch.stack(each).mean()


# ---- numbers ----------------------------------------------------------------------------------------------------


def trained(model: Any) -> list[Tensor]:
    """The weights that a step changes."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def norm(parts: Sequence[Tensor]) -> float:
    """Of all of them as one vector."""
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))


def relative(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Norm of the difference over the norm of what is wanted."""
    gaps = [one.double() - other.double() for one, other in zip(found, wanted, strict=True)]
    return norm(gaps) / norm(wanted)


if __name__ == "__main__":
    sys.exit(main())
