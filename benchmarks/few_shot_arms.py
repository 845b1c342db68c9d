"""The arms of the few-shot benchmark: finetune's own runs that differ in `attention.mode` alone, and rules beside.

All trained arms of one draw have the same examples, steps, order, dropout, initial weights, heads and λ. Heads and λ
are those that the product chooses for the supervised arm (`heads: auto`, `weight: auto`), found once and given to
every arm. The model is loaded once a draw; between arms its adapter and head are put back to where they began, which
gives the same weights as loading it anew (`tests/test_benchmarks_few_shot.py`).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.few_shot_data import OWN, record_of_case, write_examples
from benchmarks.few_shot_rules import bag_of_context, collocation, frozen_head, nearest_centre
from finetune.batches import Examples
from finetune.config import RunConfig, config_of
from finetune.control import Swap, control_facts
from finetune.edgemeasures import placed_pairs
from finetune.encode import Encoded, encode
from finetune.heads import Heads
from finetune.prepare import Prepared, prepare_run, with_control
from finetune.scoring import batched, model_inputs, moved
from finetune.streams import ExampleStream
from finetune.supervise import batch_pairs, request_for
from finetune.tasks import TaskLoss, span_mean
from finetune.train import make_trainer
from probe import attached
from probe.cases import Case

Floats = NDArray[np.float64]
PLAIN, SUPERVISED, RANDOM = "plain", "supervised", "random"
MODES = {PLAIN: "none", SUPERVISED: "pairs", RANDOM: "random"}
FROZEN, EMBEDDINGS, BAG = "frozen", "context embeddings", "bag of context"
RULE, POOL_RULE = "collocation", "collocation, whole pool"
RULES = (FROZEN, EMBEDDINGS, BAG, RULE, POOL_RULE)
ARMS = (*MODES, *RULES)
LONGEST, _TEXTS = 128, 8  # tokens of a text at most; texts of a batch


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How every trained arm learns."""

    steps: int = 24
    batch: int = 8
    learning_rate: float = 2e-3
    attention: Mapping[str, Any] = field(default_factory=dict)  # over the product's defaults


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """A model, what examples are drawn from, and what is held out."""

    model: str
    pool: tuple[Case, ...]
    tests: Mapping[str, tuple[Case, ...]]
    settings: Settings
    longest: int = LONGEST  # tokens of a text at most


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """What one arm said after one draw."""

    arm: str
    senses: Mapping[str, Sequence[str]]  # test set -> the sense chosen for each sentence
    mass: Floats | None = None  # attention target -> cues in the supervised heads, [own sentence]
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """What the model knows of each case before it is taught, by the case's id."""

    states: Mapping[str, Floats]  # last state at the target
    contexts: Mapping[str, Floats]  # mean input embedding of the other words

    def of(self, kind: str, cases: Sequence[Case]) -> Floats:
        """[case, dim]."""
        return np.stack([getattr(self, kind)[case.id] for case in cases])


@dataclass(frozen=True, kw_only=True, eq=False)
class Start:
    """A draw before its first step: the run, what its supervised arm chose, the control's pairs, the first weights."""

    config: RunConfig  # heads and λ named
    prepared: Prepared  # of the supervised arm
    heads: Heads
    control: tuple[Examples | ExampleStream, tuple[Swap, ...]]
    weights: Mapping[str, torch.Tensor]


# ---- arms that are trained -------------------------------------------------------------------------------------


def trained_answers(bench: Bench, examples: Sequence[Case], *, seed: int, arms: Sequence[str]) -> Iterator[Answers]:
    """The trained arms' answers on every test set, learned from these examples."""
    if not arms:
        return
    with TemporaryDirectory() as folder:
        start = started(bench, examples, seed=seed, folder=Path(folder))
        tests = {name: encoded_cases(cases, start.prepared) for name, cases in bench.tests.items()}
        for arm in arms:
            began = time.process_time()
            prepared = learned(start, arm, folder=Path(folder))
            own, mass = senses_and_mass(tests[OWN], prepared, start.heads)
            others = {name: senses_of(documents, prepared) for name, documents in tests.items() if name != OWN}
            facts = {"weight": float(start.config.attention.weight), "seconds": time.process_time() - began}
            if arm == RANDOM:
                facts["near"] = control_facts(start.control[1]).near
            yield Answers(arm=arm, senses={OWN: own, **others}, mass=mass, facts=facts)


def run_config(
    bench: Bench, file: Path, *, seed: int, mode: str, attention: Mapping[str, Any] | None = None
) -> RunConfig:
    """The run of one arm, as a user would write it; `attention` names heads, which name their layers, and λ."""
    settings = bench.settings
    over = {name: value for name, value in settings.attention.items() if not (attention and name == "layers")}
    return config_of({
        "model": bench.model, "task": "sense", "seed": seed, "pairs": {},
        "attention": {"norms_every": 0, **over, **(attention or {}), "mode": mode},
        "data": {"train": str(file), "dev_share": 0, "max_length": bench.longest},
        "training": {
            "max_steps": settings.steps, "per_device_train_batch_size": settings.batch, "save_strategy": "no",
            "learning_rate": settings.learning_rate, "logging_strategy": "no", "use_cpu": True,
        },
    })  # fmt: skip


def started(bench: Bench, examples: Sequence[Case], *, seed: int, folder: Path) -> Start:
    """Read, load and choose as the product does for the supervised arm, and draw the control's pairs."""
    file = folder / "train.jsonl"
    write_examples(examples, file)
    config = run_config(bench, file, seed=seed, mode="pairs")
    prepared = prepare_run(config, device="cpu")
    _, plan = make_trainer(config, prepared, folder=folder, start=None, progress=None)
    assert prepared.supervision is not None and plan is not None
    heads = dict(prepared.supervision.heads)
    named = {"weight": plan.weight, "heads": [[layer, head] for layer, all_ in heads.items() for head in all_]}
    config = run_config(bench, file, seed=seed, mode="pairs", attention=named)
    control = with_control(
        prepared.train, prepared.learner, config, heads=heads, encoding=prepared.encoding,
        tell=lambda stage, done, total: None,
    )  # fmt: skip
    weights = {
        name: one.detach().clone() for name, one in prepared.learner.model.named_parameters() if one.requires_grad
    }
    return Start(config=config, prepared=prepared, heads=heads, control=control, weights=weights)


def learned(start: Start, arm: str, *, folder: Path) -> Prepared:
    """Put adapter and head back to their beginning and train the arm; gives it with the model trained, in eval mode."""
    mode: Any = MODES[arm]
    prepared = start.prepared
    if mode == "none":
        prepared = replace(prepared, supervision=None)
    if mode == "random":
        prepared = replace(prepared, train=start.control[0], swaps=start.control[1])
    attention = start.config.attention.model_copy(update={"mode": mode})
    config = start.config.model_copy(update={"attention": attention})
    model = prepared.learner.model
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name in start.weights:
                weight.copy_(start.weights[name])
                weight.grad = None
    # Trainer seeds itself here, so that dropout is the same whatever went before.
    trainer, _ = make_trainer(config, prepared, folder=folder, start=None, progress=None)
    trainer.train()
    model.eval()
    return prepared


# ---- what a model says -----------------------------------------------------------------------------------------


def encoded_cases(cases: Sequence[Case], prepared: Prepared) -> list[Encoded]:
    """Test sentences on tokens, as the run's own texts are encoded."""
    tokenizer = prepared.learner.loaded.tokenizer
    return [encode(record_of_case(case), tokenizer, prepared.encoding, index=place) for place, case in enumerate(cases)]


def senses_of(documents: Sequence[Encoded], prepared: Prepared) -> list[str]:
    """The sense that the model finds likeliest, of each sentence; a text with several targets is read once."""
    model = prepared.learner.model
    texts: dict[bytes, list[int]] = {}
    for place in sorted(range(len(documents)), key=lambda place: documents[place].length):  # saves padding
        texts.setdefault(documents[place].input_ids.tobytes(), []).append(place)
    found = [""] * len(documents)
    with torch.inference_mode():
        for group in batched(list(texts.values()), _TEXTS, None):
            batch = moved(prepared.collator([documents[places[0]] for places in group]), "cpu")
            states = model(**model_inputs(batch)).last_hidden_state
            for row, places in enumerate(group):
                for place in places:
                    mask = torch.zeros(1, states.shape[1], dtype=torch.bool)
                    mask[0, list(documents[place].target)] = True
                    logits = model.reading_head(states[row : row + 1], {"target_mask": mask})
                    found[place] = prepared.corpus.labels[int(logits.argmax())]
    return found


def senses_and_mass(documents: Sequence[Encoded], prepared: Prepared, heads: Heads) -> tuple[list[str], Floats]:
    """The likeliest senses, and the attention of the target on its cues: mean over these heads and over the cues.

    One pass gives both. Every sentence needs a cue.
    """
    model, loss = prepared.learner.model, TaskLoss(task="sense")
    senses: list[str] = []
    masses: list[float] = []
    with torch.inference_mode(), attached(model):
        for group in batched(documents, _TEXTS, None):
            batch = moved(prepared.collator(group), "cpu")
            texts, tokens = batch["input_ids"].shape
            queries, spans = batch_pairs(batch["spans"], batch["pair_weights"], tokens=tokens)
            request = request_for(queries, texts=texts, layers=sorted(heads))
            inputs = {**model_inputs(batch), "target_mask": batch["target_mask"]}
            _, output = loss(model, inputs, batch["labels"], rows=request, items=None)
            senses += [prepared.corpus.labels[place] for place in output["logits"].argmax(1).tolist()]
            by_head = [spans.mass(rows)[:, list(heads[layer.index])] for layer, rows in request.rows.items()]
            by_pair = torch.cat(by_head, 1).mean(1).double().numpy()
            holders = np.array([placed.index for placed in placed_pairs(group)])
            masses += [float(by_pair[holders == document.index].mean()) for document in group]
    return senses, np.array(masses)


# ---- rules, and what the model knows untaught ------------------------------------------------------------------


def base_of(bench: Bench, examples: Sequence[Case]) -> Base:
    """The untaught model's states and embeddings for all cases; the examples only set up a run."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "train.jsonl"
        write_examples(examples, file)
        prepared = prepare_run(run_config(bench, file, seed=0, mode="none"), device="cpu")
    cases = [*bench.pool, *(case for tests in bench.tests.values() for case in tests)]
    model = prepared.learner.model.eval()
    table = prepared.learner.loaded.backbone.get_input_embeddings().weight.detach()
    states: dict[str, Floats] = {}
    contexts: dict[str, Floats] = {}
    with torch.inference_mode():
        for group in batched(list(zip(cases, encoded_cases(cases, prepared), strict=True)), _TEXTS, None):
            batch = prepared.collator([document for _, document in group])
            read = span_mean(model(**model_inputs(batch)).last_hidden_state, batch["target_mask"]).double().numpy()
            for (case, document), state in zip(group, read, strict=True):
                states[case.id], contexts[case.id] = state, _context(document, prepared, table)
    return Base(states=states, contexts=contexts)


def _context(document: Encoded, prepared: Prepared, table: torch.Tensor) -> Floats:
    """Mean input embedding of the tokens that are neither the target's nor special; 0 where there are none."""
    special = set(prepared.learner.loaded.tokenizer.all_special_ids)
    ids = [
        token for place, token in enumerate(document.input_ids.tolist())
        if place not in document.target and token not in special
    ]  # fmt: skip
    return table[ids].double().mean(0).numpy() if ids else np.zeros(table.shape[1])


def rule_answers(
    bench: Bench, base: Base, examples: Sequence[Case], *, seed: int, arms: Sequence[str]
) -> Iterator[Answers]:
    """The other arms' answers."""
    settings = bench.settings
    for arm in arms:
        senses: dict[str, list[str]] = {}
        for name, cases in bench.tests.items():
            if arm == FROZEN:
                senses[name] = frozen_head(
                    base.of("states", examples), [case.sense for case in examples], base.of("states", cases),
                    steps=settings.steps, batch=settings.batch, learning_rate=settings.learning_rate, seed=seed,
                )  # fmt: skip
            elif arm == EMBEDDINGS:
                known, asked = (base.of("contexts", given) for given in (examples, cases))
                senses[name] = nearest_centre(known, [case.sense for case in examples], asked)
            elif arm == BAG:
                senses[name] = bag_of_context(examples, cases)
            else:
                senses[name] = collocation(bench.pool if arm == POOL_RULE else examples, cases)
        yield Answers(arm=arm, senses=senses)
