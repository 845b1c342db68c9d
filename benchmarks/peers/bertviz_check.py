"""BertViz reads the maps and labels that we export, and its pages show those labels and weights."""

import json
import sys
from pathlib import Path

import torch
from bertviz import head_view, model_view
from safetensors.torch import load_file


def main() -> str:
    """Render both views; AssertionError where a page does not hold what it was given."""
    folder = Path(json.loads(Path(sys.argv[1]).read_text("utf-8"))["folder"])
    stored = load_file(str(folder / "attention.safetensors"))
    attention = tuple(stored[name] for name in sorted(stored))
    tokens = json.loads((folder / "tokens.json").read_text("utf-8"))
    sizes = []
    for view in (head_view, model_view):
        html = view(attention=attention, tokens=tokens, html_action="return").data
        parameters, _ = json.JSONDecoder().raw_decode(html, html.index('{"attention": '))
        (shown,) = parameters["attention"]
        assert shown["left_text"] == tokens, f"{view.__name__} shows {shown['left_text']} for {tokens}"
        assert torch.allclose(torch.tensor(shown["attn"]), torch.cat(attention)), f"{view.__name__}: other weights"
        sizes.append(f"{view.__name__} {len(html.encode()):,} bytes")
    return f"labels and weights as given, in {' and '.join(sizes)}"


if __name__ == "__main__":
    print(main())
