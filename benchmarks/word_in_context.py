"""Word-in-context from English to Chinese: is a word used in one sense twice? LoRA, pairs of targets, their control.

    python -m benchmarks.word_in_context --preset full                         # 13 jobs; a killed run goes on
    python -m benchmarks.word_in_context --preset full --test test.zh-zh.data  # with a test set: all jobs anew
    python -m benchmarks.word_in_context --preset search                       # encoding and epochs, on one half

A comparison (`finetune compare`) in --out, with its report; beside it --table keeps what each arm gives for each pair
of sentences: log p(same) − log p(different) in hundredths, no sentence. Trained on English alone. The threshold is
chosen on the words of one half of the Chinese development set and the other half is reported; "crossed" is both
directions over the whole set, the half by which the recipe was chosen with it, so no difference is told there; on
--test the threshold is that of the whole development set. Raw states answer through a head that is fitted to the
English training set (`base`). Intervals are over words, of the mean over seeds: verdicts hold for these seeds.
Learning rates were not searched.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.few_shot_table import append_line, read_lines
from benchmarks.public_data import data_folder
from benchmarks.public_senses import Floats
from benchmarks.word_in_context_table import (
    CROSSED,
    HUNDREDTHS,
    Asked,
    Decided,
    Difference,
    accuracy,
    differences,
    margins_of,
    of_dev,
    of_test,
)
from finetune.compare.arms import ARMS, ArmModel
from finetune.compare.deciding import weights_of
from finetune.compare.items import BASE, Item
from finetune.compare.materials import SHARED, Measurer, measurer
from finetune.compare.measuring import Measured
from finetune.compare.plan import JOB, JOBS, Job, is_done, plan_of, read_told
from finetune.compare.run import compare
from finetune.compare.settings import CompareConfig, compare_of
from finetune.dataconfig import DataConfig
from finetune.prepare import Progress
from finetune.reading import Record
from finetune.records import read_source
from finetune.scoring import class_scores
from finetune.writing import write_whole
from probe.errors import CijingError
from probe.terminal import open_console, show_progress, text_table

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("key", "recipe", "arm", "seed", "part", "weight", "near", "margins")
MARGINS = Path(SHARED, "margins")  # in a comparison's folder: the table's lines
LORA, PAIRS, RANDOM, FULL = "lora", "lora-attention", "lora-random", "full"
COMPARED = ((LORA, BASE), (PAIRS, LORA), (PAIRS, RANDOM), (FULL, LORA))
DEV, TEST = "dev", "test"
SAME, BATCH, LONGEST = "same", 32, 192


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How every arm learns."""

    encoding: str = "joint"
    epochs: int = 1
    learning_rate: float = 5e-4
    of_all_weights: float = 5e-5  # the learning rate of full fine-tuning
    max_steps: int = -1

    @property
    def name(self) -> str:
        """What tells it from others, in words."""
        rates = f"{self.learning_rate:g} (full {self.of_all_weights:g})"
        return f"{self.encoding}, {self.epochs} epochs, rate {rates}" + (
            f", {self.max_steps} steps" if self.max_steps > 0 else ""
        )


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How much is done."""

    recipes: tuple[Recipe, ...]
    arms: tuple[str, ...]
    seeds: tuple[int, ...]


ALL = (BASE, LORA, PAIRS, RANDOM, FULL)
TRIED = (Recipe(), Recipe(encoding="separate"), Recipe(epochs=2))
CHOSEN = Recipe()
PRESETS = {
    "full": Preset(recipes=(CHOSEN,), arms=ALL, seeds=(0, 1, 2)),
    "search": Preset(recipes=TRIED, arms=(BASE, LORA), seeds=(100,)),
    "small": Preset(recipes=(Recipe(max_steps=2),), arms=ALL, seeds=(0,)),
}


@dataclass(frozen=True, kw_only=True)
class Files:
    """MCL-WiC's `.data`, each with its `.gold` beside it."""

    train: Path
    dev: Path
    test: Path | None = None
    senses: str = "senses"  # cases of general words, by which forgetting is told

    @property
    def measured(self) -> dict[str, Path]:
        """Those that are asked, by part."""
        return {DEV: self.dev, **({TEST: self.test} if self.test is not None else {})}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is not yet done, print the tables; gives the exit code."""
    options = _parser().parse_args(arguments)
    preset = PRESETS[options.preset]
    name = {"full": "word_in_context", "search": "word_in_context_search"}.get(options.preset)
    place = options.out if name is None or options.test else RESULTS
    table = options.table or place / f"{name or 'small'}{'_test' if options.test else ''}.csv"
    files = Files(train=options.train, dev=options.dev, test=options.test, senses=options.senses)
    try:
        check_files(files, table)
        with show_progress() as progress:
            run(options.model, preset, files, table, out=options.out, only=options.only or (), progress=progress)
        show(read_lines(table, key_of(options.model, files)), preset, files)
    except CijingError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def check_files(files: Files, table: Path) -> None:
    """CijingError for what would be found out after hours: a folder as a table, a pair in two parts, a single word."""
    if table.is_dir():
        raise CijingError(f"--table {table} is a folder; allowed is a file")
    seen: dict[str, str] = {}
    for part, file in files.measured.items():
        records = records_of(file)
        if len({record.group for record in records}) < 2:
            raise CijingError(f"--{part} {file}: pairs of one word; allowed are two words or more, a half each")
        if twice := next((record.id for record in records if record.id in seen), None):
            raise CijingError(f"--{part} {file}: {twice} stands in --{seen[twice]} as well; allowed is another file")
        seen |= {record.id: part for record in records}


def run(
    model: str, preset: Preset, files: Files, table: Path, *, out: Path, only: Sequence[str], progress: Progress | None
) -> None:
    """Train and measure what the table lacks, a comparison a recipe, and write its lines.

    CijingError where a job failed, after what could be done is written.
    """
    key = key_of(model, files)
    for recipe in preset.recipes:
        config = config_for(model, recipe, preset, files)
        folder = out / key / "-".join(re.findall(r"[\w.]+", recipe.name))
        keep = Keeper(config, folder, files)
        wanted = {(recipe.name, arm, str(seed), part) for arm, seed in keep.jobs for part in files.measured}
        if wanted <= {_place(line) for line in read_lines(table, key)}:
            continue
        keep.measure_lost()
        found = compare(config, folder=folder, measure=keep, asked=keep.measure, only=only, progress=progress)
        for name, reason in found.missing.items():
            print(f"missing: {name}: {reason}", file=sys.stderr)
        table.parent.mkdir(parents=True, exist_ok=True)
        done = {_place(line) for line in read_lines(table, key)}
        for line in ({"key": key, "recipe": recipe.name, **one} for one in keep.kept()):
            if _place(line) not in done:
                append_line(table, line, COLUMNS)
        if found.failed:
            raise CijingError(f"{folder}: failed: {', '.join(found.failed)}; the same command tries again")


class Keeper:
    """Measures as a comparison does, and keeps the margin of every pair of sentences in the comparison's folder."""

    def __init__(self, config: CompareConfig, folder: Path, files: Files) -> None:
        self.measure: Measurer = measurer(config, folder, "auto")
        self.folder, self.files = folder, files
        self.jobs = {(job.arm.name, job.seed): job for job in plan_of(config).jobs}

    def __call__(self, opened: ArmModel, /, *, known: Sequence[Item], progress: Progress | None) -> Measured:
        """Give the comparison's numbers; write a table's line a part."""
        measured = self.measure(opened, known=known, progress=progress)
        assert self.measure.material is not None  # read with the first arm
        texts = self.measure.material.texts
        logs = class_scores(opened.model, texts.documents, collator=texts.collator)
        same = texts.encoding.labels.index(SAME)
        margins = {document.id: row[same] - row[1 - same] for document, row in zip(texts.documents, logs, strict=True)}
        job = self.jobs[opened.arm.name, opened.seed]
        lines = []
        for part, file in self.files.measured.items():
            own = [round(HUNDREDTHS * float(margins[record.id])) for record in records_of(file)]
            line = {"arm": opened.arm.name, "seed": str(opened.seed), "part": part, **_facts(opened)}
            lines.append({**line, "margins": " ".join(map(str, own))})
        self._file(job).parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._file(job), json.dumps({"hash": job.hash, "lines": lines}, indent=1))
        return measured

    def kept(self) -> Iterator[dict[str, str]]:
        """The lines of all jobs that are done."""
        for job in self.jobs.values():
            if is_done(job, self.folder):
                yield from read_told(self._file(job))["lines"]

    def measure_lost(self) -> None:
        """Let jobs be measured again whose numbers are there without their margins; what was trained stays."""
        for job in self.jobs.values():
            if read_told(self._file(job)).get("hash") != job.hash:
                (self.folder / JOBS / job.name / JOB).unlink(missing_ok=True)

    def _file(self, job: Job) -> Path:
        return self.folder / MARGINS / f"{job.name}.json"


def config_for(model: str, recipe: Recipe, preset: Preset, files: Files) -> CompareConfig:
    """The comparison of a recipe; pairs of targets and their control need both sentences in one sequence."""
    arms = [arm for arm in preset.arms if recipe.encoding == "joint" or arm not in (PAIRS, RANDOM)]
    return compare_of({
        "model": model, "task": "word-in-context", "arms": arms, "seeds": list(preset.seeds),
        "senses": files.senses,
        "data": {
            "train": str(files.train), "test": [str(file) for file in files.measured.values()], "dev_share": 0,
            "max_length": LONGEST, "pair_encoding": recipe.encoding,
        },
        "pairs": {"targets": True} if recipe.encoding == "joint" else None,
        "lora": {"r": 16, "targets": "all-linear"},
        "training": {
            "num_train_epochs": recipe.epochs, "max_steps": recipe.max_steps, "per_device_train_batch_size": BATCH,
            "learning_rate": recipe.learning_rate, "bf16": True, "train_sampling_strategy": "group_by_length",
            "save_strategy": "steps", "save_steps": 100, "save_total_limit": 1,
        },
        "training_full": {"learning_rate": recipe.of_all_weights} if FULL in arms else {},
    }, name="word-in-context")  # fmt: skip


def records_of(file: Path) -> list[Record]:
    """The pairs of sentences of a file in its order; DataError as reading gives it."""
    return list(read_source(str(file), DataConfig(train=(str(file),), dev_share=0), "word-in-context"))


def asked_of(file: Path) -> Asked:
    """Words and answers of a file."""
    records = records_of(file)
    same = np.array([record.label == SAME for record in records])
    return Asked(words=tuple(record.group for record in records), same=same)


def key_of(model: str, files: Files) -> str:
    """What tells runs of one kind from others, but for the recipe, which each line names: weights, settings, files.

    CijingError for a file that cannot be read.
    """
    read = [each for file in (files.train, *files.measured.values()) for each in (file, file.with_suffix(".gold"))]
    try:
        hashes = [hashlib.sha256(each.read_bytes()).hexdigest() for each in read]
    except OSError as error:
        raise CijingError(f"{error.filename}: cannot be read ({error.strerror}); the set goes by CIJING_DATA") from None
    config = config_for(model, Recipe(), PRESETS["full"], files)
    settings = config.model_dump(mode="json", exclude={"arms", "seeds", "out", "senses"})
    del settings["data"]["train"], settings["data"]["test"]  # by what is in them, wherever they lie
    told = json.dumps([settings, weights_of(model), hashes], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _place(line: Mapping[str, str]) -> tuple[str, ...]:
    """What tells a line from the others of its table."""
    return line["recipe"], line["arm"], line["seed"], line["part"]


def _facts(opened: ArmModel) -> dict[str, float]:
    """Weight of the attention loss, and how many pairs of the control have a base mass like that of their true one."""
    told = (opened.run.manifest["attention"] if opened.run is not None else None) or {}
    facts = {"weight": told.get("weight"), "near": (told.get("control") or {}).get("near")}
    return {name: round(value, 4) for name, value in facts.items() if value is not None}


# ---- the tables --------------------------------------------------------------------------------------------------


def show(lines: Sequence[Mapping[str, str]], preset: Preset, files: Files) -> None:
    """Print accuracies and, of one recipe, differences; of several, to choose from, the half chosen on alone.

    The half that is told of stays unseen there: the best of many recipes would look too good on it.
    """
    accuracies: list[tuple[str, ...]] = []
    apart: list[tuple[str, ...]] = []
    for recipe in preset.recipes:
        own = [line for line in lines if line["recipe"] == recipe.name]
        for found in decided(own, preset, files):
            accuracies += [_accuracy_row(found, arm, own, recipe) for arm in found.arms]
            apart += [_difference_row(one) for one in differences(found, COMPARED) if found.part != CROSSED]
    console = open_console(sys.stdout)
    console.print(text_table(("recipe", "pairs", "arm", "each seed, %", "mean, %", "95 %", "λ", "near, %"), accuracies))
    if len(preset.recipes) == 1:
        console.print(text_table(("pairs", "difference", "points", "95 %", "Holm", "verdict, for these seeds"), apart))


def decided(lines: Sequence[Mapping[str, str]], preset: Preset, files: Files) -> Iterator[Decided]:
    """Right and wrong of the arms that have every seed, on each part of the data."""
    dev, asked = _margins(lines, DEV, preset), asked_of(files.dev)
    if not dev:
        return
    yield from of_dev(dev, asked, choosing=len(preset.recipes) > 1)
    if files.test is not None and len(preset.recipes) == 1:
        test = {arm: own for arm, own in _margins(lines, TEST, preset).items() if arm in dev}
        if test:
            yield of_test(test, asked_of(files.test), dev={arm: dev[arm] for arm in test}, chosen_on=asked)


def _margins(lines: Sequence[Mapping[str, str]], part: str, preset: Preset) -> dict[str, list[Floats]]:
    """By arm, of each seed in order, where no seed is missing."""
    found = {(line["arm"], line["seed"]): margins_of(line["margins"]) for line in lines if line["part"] == part}
    seeds = {arm: sorted({ARMS[arm].seed_of(seed) for seed in preset.seeds}) for arm in preset.arms}
    return {
        arm: [found[arm, str(seed)] for seed in own]
        for arm, own in seeds.items()
        if all((arm, str(seed)) in found for seed in own)
    }


def _accuracy_row(found: Decided, arm: str, lines: Sequence[Mapping[str, str]], recipe: Recipe) -> tuple[str, ...]:
    seeds, mean, low, high = accuracy(found, arm)
    own = [line for line in lines if line["arm"] == arm]
    weights, near = ({line[name] for line in own if line[name]} for name in ("weight", "near"))
    each = " ".join(f"{100 * one:.1f}" for one in seeds) if ARMS[arm].trained else f"{100 * seeds[0]:.1f}"
    return (
        recipe.name, found.part, arm, each, f"{100 * mean:.1f}", f"{100 * low:.1f} to {100 * high:.1f}",
        " ".join(sorted(weights)), " ".join(f"{100 * float(one):.0f}" for one in sorted(near)),
    )  # fmt: skip


def _difference_row(one: Difference) -> tuple[str, ...]:
    return (
        one.part, f"{one.one} - {one.other}", f"{100 * one.value:+.1f}",
        f"{100 * one.low:+.1f} to {100 * one.high:+.1f}", f"{one.p_holm:.4f}", one.verdict,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    folder = data_folder() / "mcl-wic"
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.word_in_context", description="Word-in-context from English to Chinese."
    )
    parser.add_argument("--preset", choices=tuple(PRESETS), default="full")
    parser.add_argument("--model", default="builtin:e5-small")
    files = "its .gold beside it"
    parser.add_argument("--train", type=Path, default=folder / "training.en-en.data", metavar="FILE.data", help=files)
    parser.add_argument("--dev", type=Path, default=folder / "dev.zh-zh.data", metavar="FILE.data", help=files)
    parser.add_argument("--test", type=Path, metavar="FILE.data", help=f"a test set as well, {files}")
    parser.add_argument("--senses", default="senses", metavar="SET", help="cases by which forgetting is told")
    parser.add_argument("--out", type=Path, default=Path("runs/word_in_context"), metavar="FOLDER")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="where margins are kept; small, and with --test: in --out"
    )
    parser.add_argument("--only", nargs="+", metavar="ARM[:SEED]", help="these jobs only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
