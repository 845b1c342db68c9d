"""Where attention supervision helps: lessons with an easy way to the sense, and questions in which it misleads.

    python -m benchmarks.shortcuts --preset full     # 680 lines; a killed run goes on where it stopped
    python -m benchmarks.shortcuts --preset search   # how loss, layers and heads were chosen, on the development part
    python -m benchmarks.shortcuts --preset small    # one small lesson of each kind, shows that everything runs

Task: two senses of 苹果, 杜鹃 and 黄牛 (`shortcut_data.py` says what the easy ways are). Each lesson has 20 examples,
which every arm learns, and 40 for the arm `more text`, at equal steps (`shortcut_arms.py`). Answers are kept as digits
in --table; when every line is there, nothing is trained, the tables are printed and the figure is drawn. Intervals are
over seeds and sentences, p is corrected by Holm over all differences printed.
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.few_shot_arms import PLAIN, RANDOM, SUPERVISED, Settings
from benchmarks.few_shot_data import unit_of
from benchmarks.few_shot_table import append_line, digits, holm, read_lines
from benchmarks.shortcut_arms import ARMS, MORE, OTHER, said_by_arms
from benchmarks.shortcut_data import (
    DEVELOPMENT,
    LURE,
    RARE,
    SENSES,
    SHORTCUT,
    SHOTS,
    TEST,
    Lesson,
    Parts,
    Task,
    lesson_of,
    parts_of,
)
from benchmarks.shortcut_table import (
    ACCURACY,
    COLUMNS,
    MEASURES,
    Gain,
    Marked,
    figure_of,
    gain_of,
    means,
    right_answers,
)
from probe import save_png
from probe.errors import CijingError
from probe.terminal import open_console, text_table

RESULTS = Path(__file__).parent / "results"
COMPARED = ((SUPERVISED, PLAIN), (SUPERVISED, RANDOM), (SUPERVISED, OTHER), (SUPERVISED, MORE))
# What of the attention loss was tried on the development part; the rest is the product's default.
TRIED: tuple[Mapping[str, Any], ...] = (
    {},
    {"share": 1.0},
    {"heads": "all"},
    {"layers": "all"},
    {"layers": [4, 5, 6, 7]},
    {"reduce": "any"},
    {"loss": "kl"},
    {"loss": "sse"},
    {"heads": "all", "share": 1.0},
    {"heads": "all", "layers": "all"},
)
# The supervised arm's accuracy over all four groups (sense and side) of the lessons with a wording was highest with it.
CHOSEN: Mapping[str, Any] = {"layers": "all"}
WORDS = tuple(SENSES)
TASKS = (
    *(Task(kind=SHORTCUT, word=word, strength=strength) for strength, word in product((0.9, 0.95, 1.0), WORDS)),
    *(Task(kind=LURE, word=word, strength=strength) for strength, word in product((0.9, 1.0), WORDS)),
    *(Task(kind=RARE, word="苹果", strength=strength) for strength in (0.9, 0.95)),
)
_PLACE = ("setting", "kind", "word", "strength", "seed", "arm")  # what tells a line from the others of its table
_SECONDS = {"a lesson's beginning": 7, "an arm": 14}  # CPU seconds, e5-small on one thread


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How much is done."""

    tasks: tuple[Task, ...]
    seeds: tuple[int, ...]
    part: str = TEST
    settings: tuple[Mapping[str, Any], ...] = (CHOSEN,)  # of the attention loss
    arms: tuple[str, ...] = ARMS
    steps: int = 24
    shots: int = SHOTS
    asked: int | None = None  # of a lesson's questions


PRESETS = {
    "full": Preset(tasks=TASKS, seeds=tuple(range(8))),
    "search": Preset(
        tasks=(
            Task(kind=SHORTCUT, word="苹果", strength=1.0),
            Task(kind=LURE, word="苹果", strength=1.0),
        ),
        seeds=(100, 101, 102, 103), part=DEVELOPMENT, settings=TRIED, arms=(PLAIN, SUPERVISED, RANDOM, OTHER), asked=40,
    ),
    "small": Preset(
        tasks=tuple(Task(kind=kind, word="苹果", strength=0.9) for kind in (SHORTCUT, LURE, RARE)), seeds=(0,), steps=2,
        shots=5, asked=12,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Job:
    """One lesson under one setting: what a seed teaches to all arms."""

    setting: Mapping[str, Any]
    task: Task
    seed: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is not yet done, print the tables; gives the exit code."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    preset = PRESETS[options.preset]
    kept = {"full": RESULTS / "shortcuts.csv", "search": RESULTS / "shortcuts_search.csv"}
    try:
        with TemporaryDirectory() as folder:
            spare = kept.get(options.preset, Path(folder) / "shortcuts.csv")
            run(options.model, preset, options.table or spare, seeds=options.seeds, kinds=options.kinds)
    except CijingError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def run(
    model: str, preset: Preset, table: Path, *, seeds: Sequence[int] | None = None, kinds: Sequence[str] | None = None
) -> None:
    """Append what the table lacks, of these seeds and kinds if given; print what it holds, the figure beside it."""
    parts = {word: parts_of(word) for word in sorted({task.word for task in preset.tasks})}
    key = key_of(model, preset, parts)
    done = {tuple(line[name] for name in _PLACE) for line in read_lines(table, key)}
    missing = [
        (job, arms)
        for job in jobs_of(preset, seeds or preset.seeds)
        if job.task.kind in (kinds or (SHORTCUT, LURE, RARE)) and (arms := missing_arms(job, preset, done))
    ]
    if missing:
        print(cost_of(missing), file=sys.stderr)
    for job, arms in missing:
        began = time.process_time()
        for line in lines_of(model, preset, parts, job, arms):
            append_line(table, {"key": key, **line}, COLUMNS)
        print(f"{' '.join(_place(job, '')[:5])}: {time.process_time() - began:.0f} s of CPU time", file=sys.stderr)
    show(read_lines(table, key), preset, parts, figure=table.with_suffix(".png"))


def jobs_of(preset: Preset, seeds: Sequence[int]) -> Iterator[Job]:
    """Every lesson, seed after seed, so that a run that is cut short has whole seeds."""
    for seed, task, setting in product(seeds, preset.tasks, preset.settings):
        yield Job(setting=setting, task=task, seed=seed)


def missing_arms(job: Job, preset: Preset, done: set[tuple[str, ...]]) -> list[str]:
    """The arms that are not there yet; what knows no attention loss is taught under the first setting alone."""
    first = job.setting == preset.settings[0]
    return [arm for arm in preset.arms if _place(job, arm) not in done and (first or arm not in (PLAIN, MORE))]


def cost_of(missing: Sequence[tuple[Job, Sequence[str]]]) -> str:
    """What is still to be done, in words."""
    arms = sum(len(own) for _, own in missing)
    hours = (len(missing) * _SECONDS["a lesson's beginning"] + arms * _SECONDS["an arm"]) / 3600
    return f"{len(missing)} lessons, {arms} arms to teach: about {hours:.1f} hours of CPU time with e5-small"


def lines_of(
    model: str, preset: Preset, parts: Mapping[str, Parts], job: Job, arms: Sequence[str]
) -> Iterator[dict[str, object]]:
    """The table's lines of one lesson."""
    lesson = taught(preset, parts, job.task, seed=job.seed)
    settings = Settings(steps=preset.steps, attention=job.setting)
    for said in said_by_arms(model, lesson, settings=settings, seed=job.seed, arms=arms):
        facts = {name: round(value, 4) for name, value in said.facts.items()}
        yield {
            **dict(zip(_PLACE, _place(job, said.arm), strict=True)), "part": preset.part, "tried": len(TRIED),
            "said": digits(said.senses, SENSES[job.task.word]), "mass": round(said.mass, 4), **facts,
        }  # fmt: skip


def taught(preset: Preset, parts: Mapping[str, Parts], task: Task, *, seed: int) -> Lesson:
    """The lesson of this seed, with about as many questions as the preset has, units taken evenly."""
    lesson = lesson_of(task, parts[task.word], part=preset.part, seed=seed, shots=preset.shots)
    step = max(1, len(lesson.asked) // preset.asked) if preset.asked else 1
    kept = set(list(dict.fromkeys(unit_of(question.case) for question in lesson.asked))[::step])
    return replace(lesson, asked=tuple(one for one in lesson.asked if unit_of(one.case) in kept))


def named(setting: Mapping[str, Any]) -> str:
    """What a setting changes, in words: another setting is another name."""
    parts = [
        f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in setting.items()
    ]
    return ", ".join(parts) or "default"


def key_of(model: str, preset: Preset, parts: Mapping[str, Parts]) -> str:
    """What tells runs of one kind from others: model, steps, all sentences and what is put into them."""
    texts = [
        [question.case.text for question in lesson.asked] + [case.text for case in lesson.more]
        for task, seed in product(preset.tasks, preset.seeds)
        for lesson in [taught(preset, parts, task, seed=seed)]
    ]
    told = [model, preset.part, asdict(Settings(steps=preset.steps)), texts]
    return hashlib.sha256(json.dumps(told, ensure_ascii=False).encode()).hexdigest()[:12]


def _place(job: Job, arm: str) -> tuple[str, ...]:
    return (named(job.setting), job.task.kind, job.task.word, str(job.task.strength), str(job.seed), arm)


# ---- the tables --------------------------------------------------------------------------------------------------


def show(lines: Sequence[Mapping[str, str]], preset: Preset, parts: Mapping[str, Parts], *, figure: Path) -> None:
    """Print what each arm reached; of one setting also how far arms differ, with its gain over random pairs drawn.

    Of several, to choose from, no differences are told: the best of many would look better than it is.
    """
    rows: list[tuple[str, ...]] = []
    gains: list[Gain] = []
    for setting, task in product(preset.settings, _kinds(preset.tasks)):
        lessons = [one for word in WORDS if (one := _marked(lines, preset, parts, setting, replace(task, word=word)))]
        if not lessons:
            continue
        found = means(lessons)
        rows += _reached(found, lessons, named(setting))
        gains += [
            gain_of(found[measure], lessons[0].arms, task, measure=measure, one=one, other=other)
            for measure, (one, other) in product(MEASURES, COMPARED)
            if {one, other} <= set(lessons[0].arms) and np.isfinite(found[measure][0]).all()
        ]
    console = open_console(sys.stdout)
    console.print(text_table(("setting", "easy way", "%", "seeds", "arm", *MEASURES, "attention on cues, %"), rows))
    if len(preset.settings) > 1 or not gains:
        return
    corrected = holm([gain.p for gain in gains])
    gains = [replace(gain, p_holm=p) for gain, p in zip(gains, corrected, strict=True)]
    console.print(text_table(("easy way", "%", "measure", "difference", "points", "95 %", "Holm", "verdict"),
                             [_gain_row(gain) for gain in gains]))  # fmt: skip
    save_png(figure_of(gains, measure=ACCURACY, one=SUPERVISED, other=RANDOM), figure)


def _kinds(tasks: Sequence[Task]) -> list[Task]:
    """One task for each kind and strength; its word stands for all."""
    return list({(task.kind, task.strength): task for task in tasks}.values())


def _marked(
    lines: Sequence[Mapping[str, str]],
    preset: Preset,
    parts: Mapping[str, Parts],
    setting: Mapping[str, Any],
    task: Task,
) -> Marked | None:
    """The answers to a task of one word, marked; None where it is no task of the preset, or no seed is whole."""
    if task not in preset.tasks:
        return None
    first, this = named(preset.settings[0]), named(setting)
    own = [
        line for line in lines
        if (line["kind"], line["word"], line["strength"]) == (task.kind, task.word, str(task.strength))
        and line["setting"] == (first if line["arm"] in (PLAIN, MORE) else this)
    ]  # fmt: skip
    truth = {}
    for seed in {line["seed"] for line in own}:
        asked = taught(preset, parts, task, seed=int(seed)).asked
        truth[seed] = digits([question.case.sense for question in asked], SENSES[task.word])
    right, seeds = right_answers(own, preset.arms, truth)
    if not seeds:
        return None
    questions = taught(preset, parts, task, seed=int(seeds[0])).asked
    return Marked(task=task, arms=preset.arms, right=right, questions=questions, mass=_masses(own, preset.arms))


def _masses(lines: Sequence[Mapping[str, str]], arms: Sequence[str]) -> tuple[float, ...]:
    """Mean attention on the cues, by arm."""
    return tuple(float(np.mean([float(line["mass"]) for line in lines if line["arm"] == arm])) for arm in arms)


def _reached(found: Mapping[str, Any], lessons: Sequence[Marked], setting: str) -> Iterator[tuple[str, ...]]:
    task, arms = lessons[0].task, lessons[0].arms
    seeds = "-".join(map(str, sorted({one.right.shape[1] for one in lessons})))
    for place, arm in enumerate(arms):
        cells = []
        for measure in MEASURES:
            seen, drawn = found[measure][0, place], found[measure][1:, place]
            low, high = np.nanquantile(drawn, [0.025, 0.975]) if np.isfinite(seen) else (seen, seen)
            cells.append(f"{100 * seen:.1f} ({100 * low:.1f} to {100 * high:.1f})" if np.isfinite(seen) else "–")
        mass = float(np.mean([one.mass[place] for one in lessons]))
        yield setting, task.kind, f"{100 * task.strength:g}", seeds, arm, *cells, f"{100 * mass:.1f}"


def _gain_row(gain: Gain) -> tuple[str, ...]:
    return (
        gain.kind, f"{100 * gain.strength:g}", gain.measure, f"{gain.one} - {gain.other}", f"{100 * gain.value:+.1f}",
        f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}", f"{gain.p_holm:.4f}", gain.verdict,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shortcuts", description="Attention supervision where an easy way misleads."
    )
    parser.add_argument("--preset", choices=tuple(PRESETS), default="full")
    parser.add_argument("--model", default="builtin:e5-small")
    parser.add_argument("--table", type=Path, metavar="FILE", help="where lines are kept; small keeps none by itself")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="these only; several processes may share")
    parser.add_argument("--kinds", choices=(SHORTCUT, LURE, RARE), nargs="+", help="these only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
