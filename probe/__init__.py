"""Look at how a pretrained language model reads an ambiguous word: the public names, each loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probe.anatomy import position_rows, tokenizer_hash
    from probe.canvas import png_bytes, save_png
    from probe.capture import capture as capture_cases
    from probe.capture import prepare
    from probe.captures import Capture, CaptureOptions, Prepared, load_capture, save_capture
    from probe.cases import Case, CaseSet, case_of, load_cases, shipped_sets
    from probe.comparison_study import run_comparison
    from probe.contrasts import contrasts_of, differences, slot_pairs
    from probe.curves import forest, layer_curve
    from probe.edits import EdgeEdit, HeadEdit
    from probe.errors import CijingError
    from probe.experiments.causes import CutEffects, cut_effects
    from probe.export import attention_table, bertviz_arguments, hooked_tensors, save_tensors
    from probe.figures import head_map, head_maps, sentence_map
    from probe.flips import benjamini_hochberg, flip_tests
    from probe.generation import GenerationRows, generate_rows, replay_rows
    from probe.labels import Layer
    from probe.launch import as_program, exit_code, say
    from probe.measures.focus import FOCUS, WEIGHTINGS, Measure, focus, merged_row, weighted_lengths, weighted_rows
    from probe.measures.states import (
        context_embedding,
        cosines_by_sense,
        default_readout,
        most_frequent_sense,
        read_state,
        sense_accuracy,
        silhouette,
        two_characters_rule,
    )
    from probe.models import KnownModel, LoadedModel, known_models, load_model, model_from_parts
    from probe.observing import StudySettings
    from probe.options import OnceEach
    from probe.outlines import Outline, model_outline
    from probe.prompts import MappedPrompt, PromptPart, load_prompts, save_prompts
    from probe.report import Picture, Section, Table, render_report
    from probe.routes import Route, batch_for, route_of
    from probe.rowrequest import RowRequest
    from probe.rowtap import attached, tap
    from probe.runs import RunFolder, open_run
    from probe.selfcheck import CheckItem, CheckReport, check_model
    from probe.shares import PartShares, part_shares
    from probe.spans import Span, TokenMap, labels_of, merge_rows, tokenize, tokens_of, words_of
    from probe.stats import bootstrap
    from probe.study import run_report
    from probe.terminal import open_console, show_progress, text_table, visible
    from probe.walking.story import page_of_walk, walk_sections
    from probe.walking.walk import Walk
    from probe.walking.walk import walk as walk_through
    from probe.walking.way import Step
    from probe.worked import (
        AttentionStep,
        attention_step,
        best_single_map,
        entropy_share,
        head_steps,
        sinusoidal_rows,
        softmax_growth,
        worked_example,
    )

__all__ = [
    "FOCUS", "WEIGHTINGS", "AttentionStep", "Capture", "CaptureOptions", "Case", "CaseSet", "CheckItem",
    "CheckReport", "CijingError", "CutEffects", "EdgeEdit", "GenerationRows", "HeadEdit", "KnownModel", "Layer",
    "LoadedModel", "MappedPrompt", "Measure", "OnceEach", "Outline", "PartShares", "Picture", "Prepared",
    "PromptPart", "Route", "RowRequest", "RunFolder", "Section", "Span", "Step", "StudySettings", "Table",
    "TokenMap", "Walk", "as_program", "attached", "attention_step", "attention_table", "batch_for",
    "benjamini_hochberg", "bertviz_arguments", "best_single_map", "bootstrap", "capture_cases", "case_of",
    "check_model", "context_embedding", "contrasts_of", "cosines_by_sense", "cut_effects", "default_readout",
    "differences", "entropy_share", "exit_code", "flip_tests", "focus", "forest", "generate_rows", "head_map",
    "head_maps", "head_steps",
    "hooked_tensors", "known_models", "labels_of", "layer_curve", "load_capture", "load_cases", "load_model",
    "load_prompts", "merge_rows", "merged_row", "model_from_parts", "model_outline", "most_frequent_sense",
    "open_console", "open_run", "page_of_walk", "part_shares", "png_bytes", "position_rows", "prepare",
    "read_state", "render_report", "replay_rows", "route_of", "run_comparison", "run_report", "save_capture",
    "save_png", "save_prompts", "save_tensors", "say", "sense_accuracy", "sentence_map", "shipped_sets",
    "show_progress", "silhouette", "sinusoidal_rows", "slot_pairs", "softmax_growth", "tap", "text_table",
    "tokenize", "tokenizer_hash", "tokens_of", "two_characters_rule", "visible", "walk_sections", "walk_through",
    "weighted_lengths", "weighted_rows", "words_of", "worked_example",
]  # fmt: skip

# Names and not imports, or `python -m probe --help` would wait for torch.
_NAMES_OF = {
    "anatomy": ("position_rows", "tokenizer_hash"),
    "canvas": ("png_bytes", "save_png"),
    "capture": ("capture_cases", "prepare"),
    "captures": ("Capture", "CaptureOptions", "Prepared", "load_capture", "save_capture"),
    "cases": ("Case", "CaseSet", "case_of", "load_cases", "shipped_sets"),
    "comparison_study": ("run_comparison",),
    "contrasts": ("contrasts_of", "differences", "slot_pairs"),
    "curves": ("forest", "layer_curve"),
    "edits": ("EdgeEdit", "HeadEdit"),
    "errors": ("CijingError",),
    "experiments.causes": ("CutEffects", "cut_effects"),
    "export": ("attention_table", "bertviz_arguments", "hooked_tensors", "save_tensors"),
    "figures": ("head_map", "head_maps", "sentence_map"),
    "flips": ("benjamini_hochberg", "flip_tests"),
    "generation": ("GenerationRows", "generate_rows", "replay_rows"),
    "labels": ("Layer",),
    "launch": ("as_program", "exit_code", "say"),
    "measures.focus": (
        "FOCUS",
        "WEIGHTINGS",
        "Measure",
        "focus",
        "merged_row",
        "weighted_lengths",
        "weighted_rows",
    ),
    "measures.states": (
        "context_embedding",
        "cosines_by_sense",
        "default_readout",
        "most_frequent_sense",
        "read_state",
        "sense_accuracy",
        "silhouette",
        "two_characters_rule",
    ),
    "models": ("KnownModel", "LoadedModel", "known_models", "load_model", "model_from_parts"),
    "observing": ("StudySettings",),
    "options": ("OnceEach",),
    "outlines": ("Outline", "model_outline"),
    "prompts": ("MappedPrompt", "PromptPart", "load_prompts", "save_prompts"),
    "report": ("Picture", "Section", "Table", "render_report"),
    "routes": ("Route", "batch_for", "route_of"),
    "rowrequest": ("RowRequest",),
    "rowtap": ("attached", "tap"),
    "runs": ("RunFolder", "open_run"),
    "selfcheck": ("CheckItem", "CheckReport", "check_model"),
    "shares": ("PartShares", "part_shares"),
    "spans": ("Span", "TokenMap", "labels_of", "merge_rows", "tokenize", "tokens_of", "words_of"),
    "stats": ("bootstrap",),
    "study": ("run_report",),
    "terminal": ("open_console", "show_progress", "text_table", "visible"),
    "walking.story": ("page_of_walk", "walk_sections"),
    "walking.walk": ("Walk", "walk_through"),
    "walking.way": ("Step",),
    "worked": (
        "AttentionStep",
        "attention_step",
        "best_single_map",
        "entropy_share",
        "head_steps",
        "sinusoidal_rows",
        "softmax_growth",
        "worked_example",
    ),
}
_HOMES = {name: module for module, names in _NAMES_OF.items() for name in names}
# A function called like its module: one attribute of the package cannot be both, so the public name is another.
_NAMED_THERE = {"capture_cases": "capture", "walk_through": "walk"}

if not TYPE_CHECKING:  # or mypy would take any name that is asked for

    def __getattr__(name: str) -> Any:
        """Give a public name from its module, imported now, and keep it (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module 'probe' has no public name {name!r}; probe.__all__ lists them", name=name)
        found = getattr(import_module(f"probe.{_HOMES[name]}"), _NAMED_THERE.get(name, name))
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """List the public names as well before they are loaded, for completion."""
    return sorted({*globals(), *__all__})
