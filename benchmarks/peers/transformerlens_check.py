"""TransformerLens' own cache on the same tokens, held against our export: its names, shapes and values."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.peers.transformerlens_run import bridge_of


def main() -> str:
    """Compare name by name; AssertionError with every name that differs. `final_state` is ours alone."""
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    ours = load_file(str(Path(job["folder"]) / "hooked.safetensors"))
    bridge, _ = bridge_of(job["model"])
    with torch.inference_mode():
        _, cache = bridge.run_with_cache(torch.tensor([job["ids"]]))
    theirs = dict(cache.items())
    named = [name for name in ours if name != "final_state"]
    wrong, largest = [], {"pattern": 0.0, "state": 0.0}
    for name in named:
        if name not in theirs:
            wrong.append(f"{name} is not in its cache")
        elif theirs[name].shape != ours[name].shape:
            wrong.append(f"{name}: {tuple(ours[name].shape)} for {tuple(theirs[name].shape)}")
        else:
            kind = "pattern" if name.endswith("hook_pattern") else "state"
            scale = 1.0 if kind == "pattern" else float(theirs[name].abs().max())
            differs = float((theirs[name] - ours[name]).abs().max()) / scale
            largest[kind] = max(largest[kind], differs)
            if differs > job["tolerance"]:
                wrong.append(f"{name} differs by {differs:.1e}")
    assert not wrong, f"{len(wrong)} of {len(named)} names: {'; '.join(wrong[:3])}"
    kinds = f"patterns to {largest['pattern']:.0e}, states to {largest['state']:.0e} of their largest value"
    return f"{len(named)} names found with our shapes, {kinds}"


if __name__ == "__main__":
    print(main())
