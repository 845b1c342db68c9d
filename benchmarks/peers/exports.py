"""Our exports in the tools they are made for: BertViz renders them, TransformerLens' own cache agrees with them."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from benchmarks.peers.running import MODELS, SENTENCE, TARGET, reason, run_script
from probe import CaptureOptions, bertviz_arguments, capture_cases, case_of, load_model, save_tensors
from probe.embedded import checkpoint

TOLERANCE = 1e-4  # of weights; states are held against it times their own largest value


def checked(pythons: Mapping[str, Path]) -> bool:
    """Print what each tool found in our exports of one sentence; whether all of them agreed."""
    good = True
    with tempfile.TemporaryDirectory() as place:
        for tool, name in (("bertviz", MODELS[0]), ("bertviz", MODELS[1]), ("transformerlens", MODELS[0])):
            if tool not in pythons:
                continue
            done = run_script(pythons[tool], f"{tool}_check", exported(name, Path(place)))
            said = done.stdout.strip() if done.returncode == 0 else reason(done.stderr, done.returncode)
            print(f"{tool}, {name}: {said}", flush=True)
            good = good and done.returncode == 0
    return good


def exported(name: str, folder: Path) -> dict[str, Any]:
    """The sentence's exports as files that need nothing of ours: what a check script is told."""
    loaded = load_model(name, device="cpu", dtype="float32")
    (one,) = capture_cases(loaded, [case_of(SENTENCE, target=TARGET)], options=CaptureOptions(whole_maps=True))
    save_tensors(one, folder / "hooked.safetensors")
    given = bertviz_arguments(one)
    maps = {
        f"{layer:03d}": np.ascontiguousarray(attention.numpy()) for layer, attention in enumerate(given["attention"])
    }
    save_file(maps, folder / "attention.safetensors")
    (folder / "tokens.json").write_text(json.dumps(given["tokens"], ensure_ascii=False), "utf-8")
    return {
        "model": str(checkpoint(name).folder),
        "text": SENTENCE,
        "ids": list(one.tokens.ids),
        "folder": str(folder),
        "tolerance": TOLERANCE,
    }
