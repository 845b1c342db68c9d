"""The arms of the shortcut benchmark: few_shot's, another word for the target to read, and more text.

The random pairs of the product stand elsewhere in the text, so they leave the target's row alone. `other words` is the
sharper control: the target is to read a word of chance in the cue's place, whatever its distance and base mass. What
supervision gives over it is the cue's; what both give, any rule gives that takes the target's row off its neighbours.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.few_shot_arms import (
    LONGEST,
    MODES,
    PLAIN,
    RANDOM,
    SUPERVISED,
    Bench,
    Settings,
    Start,
    encoded_cases,
    learned,
    run_config,
    senses_and_mass,
    started,
)
from benchmarks.few_shot_data import write_examples
from benchmarks.shortcut_data import Lesson
from finetune.control import control_facts
from finetune.prepare import Prepared, prepare_run
from finetune.train import make_trainer
from probe import model_outline

OTHER, MORE = "other words", "more text"
ARMS = (PLAIN, SUPERVISED, RANDOM, OTHER, MORE)


@dataclass(frozen=True, kw_only=True, eq=False)
class Said:
    """What one arm answered: the sense chosen for each question, and how much the target attended to its cue."""

    arm: str
    senses: Sequence[str]
    mass: float  # mean over questions and the supervised arm's heads
    facts: Mapping[str, float] = field(default_factory=dict)


def said_by_arms(model: str, lesson: Lesson, *, settings: Settings, seed: int, arms: Sequence[str]) -> Iterator[Said]:
    """Teach these arms the lesson and ask each every question; heads and λ are the supervised arm's in all of them."""
    longest = min(LONGEST, model_outline(model).max_positions or LONGEST)
    bench = Bench(model=model, pool=lesson.examples, tests={}, settings=settings, longest=longest)
    with TemporaryDirectory() as name:
        folder = Path(name)
        start = started(bench, lesson.examples, seed=seed, folder=folder)
        asked = encoded_cases([question.case for question in lesson.asked], start.prepared)
        for arm in arms:
            began = time.process_time()
            prepared = _taught(arm, lesson, bench, start, seed=seed, folder=folder)
            senses, mass = senses_and_mass(asked, prepared, start.heads)
            facts = {"weight": float(start.config.attention.weight), "seconds": time.process_time() - began}
            if arm == RANDOM:
                facts["near"] = control_facts(start.control[1]).near
            yield Said(arm=arm, senses=senses, mass=float(mass.mean()), facts=facts)


def _taught(arm: str, lesson: Lesson, bench: Bench, start: Start, *, seed: int, folder: Path) -> Prepared:
    if arm in MODES:
        return learned(start, arm, folder=folder)
    examples, mode = (lesson.others, "pairs") if arm == OTHER else (lesson.more, "none")
    file = folder / "other.jsonl"
    write_examples(examples, file)
    attention = start.config.attention
    named: dict[str, Any] = {"weight": attention.weight, "heads": attention.heads}
    config = run_config(bench, file, seed=seed, mode=mode, attention=named)
    prepared = prepare_run(config, device="cpu")  # loaded anew, which begins with the same weights
    trainer, _ = make_trainer(config, prepared, folder=folder, start=None, progress=None)
    trainer.train()
    prepared.learner.model.eval()
    return prepared
