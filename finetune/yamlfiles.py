"""YAML files of a user, read without running anything in them."""

from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from probe import CijingError

_MOST_NODES = 1_000_000


def read_mapping(source: Path | Traversable, *, name: str, wanted: str, error: type[CijingError]) -> dict[str, Any]:
    """The mapping that a YAML file holds; `error`, one line with the file's name, for anything else."""
    try:
        text = source.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_bomb(root)
        _refuse_twice(root)
        given = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as caught:
        raise error(f"{name}: cannot be read ({caught})") from caught
    except RecursionError as caught:
        raise error(f"{name}: no valid YAML (nested too deeply, or holding itself)") from caught
    except yaml.YAMLError as caught:
        mark = getattr(caught, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise error(f"{name}{line}: no valid YAML ({getattr(caught, 'problem', None) or caught})") from caught
    if not isinstance(given, dict):
        raise error(f"{name}: allowed is a mapping with {wanted}")
    return given


def _refuse_bomb(root: Any) -> None:
    """YAMLError for aliases of aliases that would unfold to more than any file of ours holds."""
    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        if id(node) not in sizes:
            parts = node.value if isinstance(node, yaml.CollectionNode) else ()
            flat = [one for part in parts for one in (part if isinstance(part, tuple) else (part,))]
            sizes[id(node)] = 1 + sum(map(size, flat))
        if sizes[id(node)] > _MOST_NODES:
            raise yaml.YAMLError(f"its aliases unfold to more than {_MOST_NODES:,} values")
        return sizes[id(node)]

    if root is not None:
        size(root)


def _refuse_twice(root: Any) -> None:
    """YAMLError for a key that stands twice in one mapping: PyYAML would take the last without a word."""
    waiting, known = [root], set()
    while waiting:
        node = waiting.pop()
        if not isinstance(node, yaml.CollectionNode) or id(node) in known:
            continue
        known.add(id(node))
        if not isinstance(node, yaml.MappingNode):
            waiting += node.value
            continue
        lines: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            waiting += (key, value)
            if not isinstance(key, yaml.ScalarNode):
                continue
            if first := lines.get((key.tag, key.value)):
                said = f"the key {key.value!r} stands twice, first on line {first}"
                raise yaml.MarkedYAMLError(problem=said, problem_mark=key.start_mark)
            lines[key.tag, key.value] = key.start_mark.line + 1
