"""Teach a model a domain's sense of a word, or give it passages: the public names, each loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finetune.adapters import MergeCheck
    from finetune.compare.materials import measurer as comparison_measurer
    from finetune.compare.plan import plan_of as comparison_plan
    from finetune.compare.run import Compared
    from finetune.compare.run import compare as compare_arms
    from finetune.compare.settings import CompareConfig
    from finetune.compare.settings import compare_of as comparison_of
    from finetune.compare.settings import load_compare as load_comparison
    from finetune.config import RunConfig, config_of, load_config
    from finetune.evaluate import evaluate as evaluate_run
    from finetune.evaluation import Evaluation, save_evaluation
    from finetune.inspection import Inspection
    from finetune.merge import merge_run
    from finetune.mine import Mined, MineSettings, write_pairs
    from finetune.mine import mine as mine_pairs
    from finetune.pairs import PairBook, load_pairs
    from finetune.preflight import inspect_run
    from finetune.preflight_lines import lines_of as inspection_lines
    from finetune.rag.ask import Reply, Writing
    from finetune.rag.ask import ask as ask_question
    from finetune.rag.beir import SHIPPED as SHIPPED_PASSAGES
    from finetune.rag.beir import BeirSet, load_beir
    from finetune.rag.causes import PassageEffects, passage_effects
    from finetune.rag.causes import rebuilding as prompt_rebuilder
    from finetune.rag.causes import swaps_for as choose_swaps
    from finetune.rag.chunks import Chunk
    from finetune.rag.documents import Columns as SourceColumns
    from finetune.rag.evaluation import UseOfContext, UseSettings
    from finetune.rag.evaluation import measure_use as measure_passage_use
    from finetune.rag.hits import Hit
    from finetune.rag.index import IndexReport, IndexSettings, build_index
    from finetune.rag.inject import Injection
    from finetune.rag.inject import inject as inject_passages
    from finetune.rag.opened import Index, open_index
    from finetune.rag.puzzles import Puzzle, load_puzzles
    from finetune.rag.readings import Readings, passage_readings
    from finetune.rag.references import SenseReadings, sense_readings, shipped_senses
    from finetune.rag.rerank import Reranker
    from finetune.rag.retrieve import retrieve as retrieve_passages
    from finetune.rag.study import Study as PassageStudy
    from finetune.rag.study import StudySettings as PassageStudySettings
    from finetune.rag.study import study_passages
    from finetune.rag.threshold import Threshold
    from finetune.rag.threshold import tried as try_threshold
    from finetune.rag.threshold import worth as search_worth
    from finetune.rag.thresholds import load_threshold
    from finetune.runfolder import FinishedRun, open_run_folder
    from finetune.train import Trained
    from finetune.train import train as train_run

__all__ = [
    "SHIPPED_PASSAGES", "BeirSet", "Chunk", "CompareConfig", "Compared", "Evaluation", "FinishedRun", "Hit",
    "Index", "IndexReport", "IndexSettings", "Injection", "Inspection", "MergeCheck", "MineSettings", "Mined",
    "PairBook", "PassageEffects", "PassageStudy", "PassageStudySettings", "Puzzle", "Readings", "Reply", "Reranker",
    "RunConfig", "SenseReadings", "SourceColumns", "Threshold", "Trained", "UseOfContext", "UseSettings", "Writing",
    "ask_question", "build_index", "choose_swaps", "compare_arms", "comparison_measurer", "comparison_of",
    "comparison_plan", "config_of", "evaluate_run", "inject_passages", "inspect_run", "inspection_lines", "load_beir",
    "load_comparison", "load_config", "load_pairs", "load_puzzles", "load_threshold", "measure_passage_use",
    "merge_run", "mine_pairs", "open_index", "open_run_folder", "passage_effects", "passage_readings",
    "prompt_rebuilder", "retrieve_passages", "save_evaluation", "search_worth", "sense_readings", "shipped_senses",
    "study_passages", "train_run", "try_threshold", "write_pairs",
]  # fmt: skip

# Names and not imports, or `python -m finetune --help` would wait for torch.
_NAMES_OF = {
    "adapters": ("MergeCheck",),
    "compare.materials": ("comparison_measurer",),
    "compare.plan": ("comparison_plan",),
    "compare.run": ("Compared", "compare_arms"),
    "compare.settings": ("CompareConfig", "comparison_of", "load_comparison"),
    "config": ("RunConfig", "config_of", "load_config"),
    "evaluate": ("evaluate_run",),
    "evaluation": ("Evaluation", "save_evaluation"),
    "inspection": ("Inspection",),
    "merge": ("merge_run",),
    "mine": ("MineSettings", "Mined", "mine_pairs", "write_pairs"),
    "pairs": ("PairBook", "load_pairs"),
    "preflight": ("inspect_run",),
    "preflight_lines": ("inspection_lines",),
    "rag.ask": ("Reply", "Writing", "ask_question"),
    "rag.beir": ("SHIPPED_PASSAGES", "BeirSet", "load_beir"),
    "rag.causes": ("PassageEffects", "choose_swaps", "passage_effects", "prompt_rebuilder"),
    "rag.chunks": ("Chunk",),
    "rag.documents": ("SourceColumns",),
    "rag.evaluation": ("UseOfContext", "UseSettings", "measure_passage_use"),
    "rag.hits": ("Hit",),
    "rag.index": ("IndexReport", "IndexSettings", "build_index"),
    "rag.inject": ("Injection", "inject_passages"),
    "rag.opened": ("Index", "open_index"),
    "rag.puzzles": ("Puzzle", "load_puzzles"),
    "rag.readings": ("Readings", "passage_readings"),
    "rag.references": ("SenseReadings", "sense_readings", "shipped_senses"),
    "rag.rerank": ("Reranker",),
    "rag.retrieve": ("retrieve_passages",),
    "rag.study": ("PassageStudy", "PassageStudySettings", "study_passages"),
    "rag.threshold": ("Threshold", "search_worth", "try_threshold"),
    "rag.thresholds": ("load_threshold",),
    "runfolder": ("FinishedRun", "open_run_folder"),
    "train": ("Trained", "train_run"),
}
_HOMES = {name: module for module, names in _NAMES_OF.items() for name in names}
# A function called like its module, since one attribute of the package cannot be both; in rag, what its own module's
# name says there and no longer says here.
_NAMED_THERE = {
    "PassageStudy": "Study",
    "PassageStudySettings": "StudySettings",
    "SHIPPED_PASSAGES": "SHIPPED",
    "SourceColumns": "Columns",
    "ask_question": "ask",
    "choose_swaps": "swaps_for",
    "compare_arms": "compare",
    "comparison_measurer": "measurer",
    "comparison_of": "compare_of",
    "comparison_plan": "plan_of",
    "evaluate_run": "evaluate",
    "inject_passages": "inject",
    "inspection_lines": "lines_of",
    "load_comparison": "load_compare",
    "measure_passage_use": "measure_use",
    "mine_pairs": "mine",
    "prompt_rebuilder": "rebuilding",
    "retrieve_passages": "retrieve",
    "search_worth": "worth",
    "train_run": "train",
    "try_threshold": "tried",
}

if not TYPE_CHECKING:  # or mypy would take any name that is asked for

    def __getattr__(name: str) -> Any:
        """Give a public name from its module, imported now, and keep it (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(
                f"module 'finetune' has no public name {name!r}; finetune.__all__ lists them", name=name
            )
        found = getattr(import_module(f"finetune.{_HOMES[name]}"), _NAMED_THERE.get(name, name))
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """List the public names as well before they are loaded, for completion."""
    return sorted({*globals(), *__all__})
