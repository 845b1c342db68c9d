"""YAML files of a user, read without running anything in them."""

from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from probe import CijingError


def read_mapping(source: Path | Traversable, *, name: str, wanted: str, error: type[CijingError]) -> dict[str, Any]:
    """The mapping that a YAML file holds; `error`, one line with the file's name, for anything else."""
    try:
        given = yaml.safe_load(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as caught:
        raise error(f"{name}: cannot be read ({caught})") from caught
    except yaml.YAMLError as caught:
        mark = getattr(caught, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise error(f"{name}{line}: no valid YAML ({getattr(caught, 'problem', None) or caught})") from caught
    if not isinstance(given, dict):
        raise error(f"{name}: allowed is a mapping with {wanted}")
    return given
