"""What attention supervision gives when there are 4 or 8 examples of a sense: finetune's arms beside rules.

    python -m benchmarks.few_shot --preset full      # 128 lines; a killed run goes on where it stopped
    python -m benchmarks.few_shot --preset search    # how the settings were chosen, on the development part
    python -m benchmarks.few_shot --preset smoke     # one small draw, shows that everything runs

Task: 苹果 as fruit, company (device and chip too) or acid. Each draw takes 4 or 8 examples a sense from the pool and
teaches every arm with them; all are asked the same held-out sentences: our own, and apple-contexts where CIJING_DATA
has it. Answers are kept as digits in --table; when every line is there, nothing is trained and the tables are printed.
Intervals are over seeds and sentences, p is corrected by Holm over all differences printed.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.few_shot_arms import (
    ARMS,
    LONGEST,
    MODES,
    PLAIN,
    RANDOM,
    RULE,
    RULES,
    SUPERVISED,
    Answers,
    Base,
    Bench,
    Settings,
    base_of,
    encoded_cases,
    learned,
    rule_answers,
    senses_of,
    started,
    trained_answers,
)
from benchmarks.few_shot_data import OWN, SENSES, apple_halves, drawn, test_sets
from benchmarks.few_shot_table import (
    Answered,
    Difference,
    accuracies,
    answered,
    append_line,
    complete,
    difference_of,
    digits,
    holm,
    macro,
    permille,
    read_lines,
    resampled,
    seed_interval,
)
from probe import model_outline
from probe.cases import Case
from probe.errors import CijingError
from probe.terminal import open_console, text_table

RESULTS = Path(__file__).parent / "results"
COMPARED = ((SUPERVISED, PLAIN), (SUPERVISED, RANDOM), (PLAIN, RULE))
LURED = "own, with a lure"
SETTINGS = Settings()
# (learning rate, steps), all with batches of 8; chosen by the plain arm on the development part, seeds 100 to 102
SEARCHED = ((1e-3, 24), (2e-3, 12), (2e-3, 24), (5e-4, 24))
SEARCH_SEEDS, SEARCH_SHOTS = (100, 101, 102), 4


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How much is done."""

    shots: tuple[int, ...]
    seeds: tuple[int, ...]
    settings: Settings = SETTINGS
    cases: int | None = None  # of each sense and test set


PRESETS = {
    "full": Preset(shots=(4, 8), seeds=tuple(range(8))),
    "smoke": Preset(shots=(2,), seeds=(0,), settings=Settings(steps=2), cases=3),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is not yet done, print the tables; gives the exit code."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    try:
        if options.preset == "search":
            return search(options.model)
        preset = PRESETS[options.preset]
        bench = bench_of(options.model, preset)
        with TemporaryDirectory() as folder:
            spare = RESULTS / "few_shot.csv" if options.preset == "full" else Path(folder) / "few_shot.csv"
            run(bench, preset, options.table or spare, seeds=options.seeds or preset.seeds)
    except CijingError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def bench_of(model: str, preset: Preset) -> Bench:
    """The task on this model, with as many held-out sentences as the preset has."""
    pool, _ = apple_halves()
    tests = {name: few_of(cases, preset.cases) for name, cases in test_sets().items()}
    longest = min(LONGEST, model_outline(model).max_positions or LONGEST)
    return Bench(model=model, pool=pool, tests=tests, settings=preset.settings, longest=longest)


def few_of(cases: Sequence[Case], most: int | None) -> tuple[Case, ...]:
    """The first so many of each sense, or all."""
    kept = {sense: [case for case in cases if case.sense == sense][:most] for sense in SENSES}
    return tuple(case for sense in SENSES for case in kept[sense])


def run(bench: Bench, preset: Preset, table: Path, *, seeds: Sequence[int]) -> None:
    """Append what the table lacks of these seeds, then print what it holds."""
    key = key_of(bench)
    done = {(line["shots"], line["seed"], line["arm"]) for line in read_lines(table, key)}
    base: Base | None = None
    for shots, seed in ((shots, seed) for shots in preset.shots for seed in seeds):
        missing = [arm for arm in ARMS if (str(shots), str(seed), arm) not in done]
        if not missing:
            continue
        examples = drawn(bench.pool, shots=shots, seed=seed)
        base = base or base_of(bench, examples)
        for found in answers(bench, base, examples, seed=seed, arms=missing):
            append_line(table, line_of(found, bench, key=key, shots=shots, seed=seed))
            print(f"{shots} examples, seed {seed}, {found.arm}: done", file=sys.stderr)
    show(complete(read_lines(table, key), ARMS), bench)


def answers(bench: Bench, base: Base, examples: Sequence[Case], *, seed: int, arms: Sequence[str]) -> Iterator[Answers]:
    """The answers of these arms after one draw."""
    yield from trained_answers(bench, examples, seed=seed, arms=[arm for arm in arms if arm in MODES])
    yield from rule_answers(bench, base, examples, seed=seed, arms=[arm for arm in arms if arm in RULES])


def line_of(found: Answers, bench: Bench, *, key: str, shots: int, seed: int) -> dict[str, object]:
    """A line of the table."""
    senses = senses_in(bench)
    facts = {name: round(value, 4) for name, value in found.facts.items()}
    said = {name: digits(chosen, senses) for name, chosen in found.senses.items()}
    return {"key": key, "shots": shots, "seed": seed, "arm": found.arm, "mass": permille(found.mass), **said, **facts}


def senses_in(bench: Bench) -> tuple[str, ...]:
    """The senses in their order."""
    return tuple(sorted({case.sense for case in bench.pool}))


def key_of(bench: Bench) -> str:
    """What tells runs of one kind from others: model, settings, all sentences."""
    texts = [
        [case.text, case.target.start, case.sense, [[cue.start, cue.end] for cue in case.cues]]
        for cases in (bench.pool, *bench.tests.values())
        for case in cases
    ]
    told = [bench.model, asdict(bench.settings), sorted(bench.tests), texts]
    return hashlib.sha256(json.dumps(told, ensure_ascii=False).encode()).hexdigest()[:12]


# ---- the tables ------------------------------------------------------------------------------------------------


def show(lines: Sequence[Mapping[str, str]], bench: Bench) -> None:
    """Print accuracies, differences and attention on the cues."""
    if not lines:
        return
    console = open_console(sys.stdout)
    accuracy, differences = summarised(lines, bench)
    console.print(text_table(("shots", "test", "arm", "macro accuracy, %", "95 %", "worst sense"), accuracy))
    rows = [
        (str(one.shots), one.test, f"{one.one} - {one.other}", f"{100 * one.value:+.1f}",
         f"{100 * one.low:+.1f} to {100 * one.high:+.1f}", f"{one.p:.4f}", f"{one.p_holm:.4f}", one.verdict)
        for one in differences
    ]  # fmt: skip
    console.print(text_table(("shots", "test", "difference", "points", "95 %", "p", "Holm", "verdict"), rows))
    console.print(text_table(("shots", "arm", "attention on cues, %", "95 %"), list(masses(lines))))


def summarised(lines: Sequence[Mapping[str, str]], bench: Bench) -> tuple[list[tuple[str, ...]], list[Difference]]:
    """The rows of the table of accuracies, and the differences, corrected as one family."""
    rows: list[tuple[str, ...]] = []
    differences: list[Difference] = []
    for shots in sorted({int(line["shots"]) for line in lines}):
        own = [line for line in lines if int(line["shots"]) == shots]
        for name, found in asked(own, bench).items():
            again = resampled(found)
            low, high = np.quantile(again, [0.025, 0.975], axis=0)
            senses = accuracies(found)
            for place, (arm, value) in enumerate(zip(found.arms, macro(found), strict=True)):
                worst = min(senses, key=lambda sense: senses[sense][place])
                rows.append((
                    str(shots), name, arm, f"{100 * value:.1f}", f"{100 * low[place]:.1f} to {100 * high[place]:.1f}",
                    f"{worst} {100 * senses[worst][place]:.1f}",
                ))  # fmt: skip
            if name != LURED:
                differences += [
                    difference_of(found, again, one=one, other=other, shots=shots, test=name) for one, other in COMPARED
                ]
    corrected = holm([one.p for one in differences])
    return rows, [replace(one, p_holm=p) for one, p in zip(differences, corrected, strict=True)]


def asked(lines: Sequence[Mapping[str, str]], bench: Bench) -> dict[str, Answered]:
    """Each test set as answered, and those of our own sentences in which a word of another sense stands too."""
    senses = senses_in(bench)
    found = {name: answered(lines, name, cases, senses) for name, cases in bench.tests.items()}
    lured = np.array(["lure" in case.meta for case in bench.tests[OWN]])
    if lured.any() and {case.sense for case, has in zip(bench.tests[OWN], lured, strict=True) if has} == set(senses):
        whole = found[OWN]
        cases = tuple(case for case, has in zip(whole.cases, lured, strict=True) if has)
        found[LURED] = Answered(arms=whole.arms, correct=whole.correct[:, :, lured], cases=cases)
    return found


def masses(lines: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, ...]]:
    """Attention of the target on its cues in the supervised heads, by shots and trained arm."""
    for shots in sorted({int(line["shots"]) for line in lines}):
        for arm in MODES:
            own = [line for line in lines if int(line["shots"]) == shots and line["arm"] == arm]
            values = np.array([list(map(float, line["mass"].split())) for line in own]) / 10  # thousandths -> %
            mean, low, high = seed_interval(values)
            yield str(shots), arm, f"{mean:.1f}", f"{low:.1f} to {high:.1f}"


# ---- how the settings were chosen ------------------------------------------------------------------------------


def search(model: str) -> int:
    """The plain arm's macro accuracy on the development part, for each setting and seed."""
    pool, dev = apple_halves()
    rows = []
    for rate, steps in SEARCHED:
        for seed in SEARCH_SEEDS:
            settings = Settings(learning_rate=rate, steps=steps)
            bench = Bench(model=model, pool=pool, tests={OWN: dev}, settings=settings)
            with TemporaryDirectory() as folder:
                examples = drawn(pool, shots=SEARCH_SHOTS, seed=seed)
                start = started(bench, examples, seed=seed, folder=Path(folder))
                prepared = learned(start, PLAIN, folder=Path(folder))
            said = senses_of(encoded_cases(dev, prepared), prepared)
            by_sense = [
                np.mean([chosen == sense for chosen, case in zip(said, dev, strict=True) if case.sense == sense])
                for sense in SENSES
            ]
            rows.append((f"{rate:g}", str(steps), str(seed), f"{np.mean(by_sense):.4f}"))
            print(" ".join(rows[-1]), file=sys.stderr)
    open_console(sys.stdout).print(text_table(("learning rate", "steps", "seed", "macro accuracy"), rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.few_shot", description="Attention supervision from a few examples, beside rules."
    )
    parser.add_argument("--preset", choices=("smoke", "full", "search"), default="full")
    parser.add_argument("--model", default="builtin:e5-small")
    parser.add_argument("--table", type=Path, metavar="FILE", help="where lines are kept; smoke keeps none by itself")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="these only; several processes may share")
    return parser


if __name__ == "__main__":
    sys.exit(main())
