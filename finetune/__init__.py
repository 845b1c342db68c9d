"""Teach a model a domain's sense of a word; the public names, each loaded when first used. Builds on probe's alone."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finetune.adapters import MergeCheck
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
    from finetune.runfolder import FinishedRun, open_run_folder
    from finetune.train import Trained
    from finetune.train import train as train_run

__all__ = [
    "Evaluation", "FinishedRun", "Inspection", "MergeCheck", "MineSettings", "Mined", "PairBook", "RunConfig",
    "Trained", "config_of", "evaluate_run", "inspect_run", "inspection_lines", "load_config", "load_pairs",
    "merge_run", "mine_pairs", "open_run_folder", "save_evaluation", "train_run", "write_pairs",
]  # fmt: skip

# Names and not imports, or `python -m finetune --help` would wait for torch.
_NAMES_OF = {
    "adapters": ("MergeCheck",),
    "config": ("RunConfig", "config_of", "load_config"),
    "evaluate": ("evaluate_run",),
    "evaluation": ("Evaluation", "save_evaluation"),
    "inspection": ("Inspection",),
    "merge": ("merge_run",),
    "mine": ("MineSettings", "Mined", "mine_pairs", "write_pairs"),
    "pairs": ("PairBook", "load_pairs"),
    "preflight": ("inspect_run",),
    "preflight_lines": ("inspection_lines",),
    "runfolder": ("FinishedRun", "open_run_folder"),
    "train": ("Trained", "train_run"),
}
_HOMES = {name: module for module, names in _NAMES_OF.items() for name in names}
# A function called like its module: one attribute of the package cannot be both, so the public name is another.
_NAMED_THERE = {
    "evaluate_run": "evaluate",
    "inspection_lines": "lines_of",
    "mine_pairs": "mine",
    "train_run": "train",
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
