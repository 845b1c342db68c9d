"""What all arms of a comparison are measured on, read once: texts, questions, passages, glosses, cases of words."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from filelock import FileLock

from finetune.compare.arms import ARMS, ArmModel
from finetune.compare.items import Item
from finetune.compare.measuring import JobMaterial, Measured, measure_job
from finetune.compare.prompts import Before, PassageSettings, find_passages, load_glosses, write_texts
from finetune.compare.settings import NO_ENCODER, CompareConfig, run_of
from finetune.compare.states import capped_cases
from finetune.domains import load_questions
from finetune.material import LANGUAGE_MODELS, Texts, data_with_test, general_texts, texts_of
from finetune.prepare import Progress, with_shipped
from finetune.rag.hits import Hit
from finetune.records import Part, load_records
from finetune.writing import disk_told, write_whole
from probe import load_cases

NOTES = "material.json"  # what could not be read, and why
SHARED = "shared"  # what jobs make once for all: the index of passages
_GENERAL_TEXTS, _CASES_A_SENSE, _SEED = 32, 4, 0  # the same for all seeds: items are paired


class Measurer:
    """Measures opened arms, each on the same material, which the first one's tokenizer puts on tokens."""

    def __init__(self, config: CompareConfig, folder: Path, device: str) -> None:
        self.config, self.folder, self.device = config, folder, device
        self.material: JobMaterial | None = None
        self.progress: Progress | None = None
        # Read here, so that a file that cannot be used is refused before the first run.
        self.questions = tuple(question for source in config.questions for question in load_questions(source))
        self.cases = capped_cases(load_cases(config.senses).cases, most=_CASES_A_SENSE)
        asked = any(arm.prompt == "gloss" for arm in config.chosen)
        self.glosses = load_glosses(config.glosses) if asked else {}

    def __call__(self, opened: ArmModel, /, *, known: Sequence[Item], progress: Progress | None) -> Measured:
        """Give what the arm's model does with the material, but for what is known of its weights."""
        self.progress = progress
        if self.material is None:
            self.material = self._read(opened)
        given = self.material
        if opened.arm.prompt == "passages":
            given = replace(given, before=replace(given.before, passages=self.passages))
        return measure_job(opened, given, known=known, progress=progress)

    @cached_property
    def passages(self) -> dict[str, Sequence[Hit]]:
        """What is found for each question; one process makes the index, others wait for it."""
        config, place = self.config, self.folder / SHARED
        settings = PassageSettings(
            k=config.passages.k, budget=config.passages.budget, tokenizer=config.model,
            encoder=None if config.passages.encoder == NO_ENCODER else config.passages.encoder,
        )  # fmt: skip
        with disk_told(place):
            place.mkdir(parents=True, exist_ok=True)
        with FileLock(place / "passages.lock"):
            documents: Sequence[str | Path] = config.documents
            if not documents:
                documents = [write_texts(_taught(config), place / "documents.jsonl")]
            found = find_passages(
                self.questions, documents, place / "index", settings=settings, device=self.device,
                progress=self.progress,
            )  # fmt: skip
        return dict(found)

    def _read(self, opened: ArmModel) -> JobMaterial:
        config, tell = self.config, self.progress or (lambda stage, done, total: None)
        run = run_of(config, ARMS["lora"], seed=config.seeds[0]).model_copy(update={"pairs": config.pairs})
        texts = texts_of(run, opened.loaded, data=data_with_test(config.data, None), seed=_SEED, tell=tell)
        general = general_texts(texts, config.general, limit=_GENERAL_TEXTS, seed=_SEED)
        self._tell_missing(texts, general)
        return JobMaterial(
            texts=texts, general=None if isinstance(general, str) else general[:2], questions=self.questions,
            before=Before(glosses=self.glosses, budget=config.passages.budget), edge_bias=config.edge_bias,
            cases=self.cases,
        )  # fmt: skip

    def _tell_missing(self, texts: Texts, general: object) -> None:
        asked = self.config.general is not None or self.config.task in LANGUAGE_MODELS
        missing = {"general_perplexity": general} if isinstance(general, str) and asked else {}
        if not texts.documents:
            missing["test"] = "the configuration names no test part (data.test)"
        write_whole(self.folder / NOTES, json.dumps({"missing": missing}, indent=1, ensure_ascii=False))


def measurer(config: CompareConfig, folder: Path, device: str) -> Measurer:
    """What measures the arms of a comparison in its folder; DataError for questions, cases or glosses of no use."""
    return Measurer(config, folder, device)


def _taught(config: CompareConfig) -> Part:
    """All texts of data.train, those cut off for dev as well, which depend on the seed."""
    whole = {"dev": (), "test": (), "dev_split": None, "test_split": None, "dev_share": 0.0}
    return load_records(with_shipped(config.data).model_copy(update=whole), config.task).train
