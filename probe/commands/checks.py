"""What a model is and whether its rows are right: check, models."""

import sys
from typing import Annotated

import typer

from probe.commands.loading import load
from probe.options import SOURCES, Device, Dtype, RemoteCode, Revision


def check(
    model: Annotated[str, typer.Argument(help=SOURCES)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: RemoteCode = False,
) -> None:
    """Check the extraction on this model. Exit code 1 where a check fails."""
    import json
    import math
    from dataclasses import asdict

    from probe.selfcheck import check_model
    from probe.terminal import check_table, open_console

    found = check_model(load(model, device=device, dtype=dtype, revision=revision, code=trust_remote_code))
    if as_json:
        content = {**asdict(found), "passed": found.passed}
        for item in content["items"]:  # JSON has no NaN
            item.update((key, None) for key in ("value", "bound") if not math.isfinite(item[key] or 0))
        print(json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False))
    else:
        items = [(item.name, item.status, item.value, item.bound, item.why) for item in found.items]
        open_console(sys.stdout).print(check_table(items))
    raise typer.Exit(0 if found.passed else 1)


def models() -> None:
    """List the builtin models. They come as packages; the list says which are built already."""
    from probe.models import known_models
    from probe.terminal import open_console, text_table

    rows = [
        (known.name, f"{known.size / 1e6:.0f} MB", "yes" if known.built else "at first use", known.licence, known.what)
        for known in known_models()
    ]
    open_console(sys.stdout).print(text_table(("name", "size", "built", "licence", "what"), rows))
