"""What a caller gives, checked: whole numbers, sets of them, sizes, paths; a wrong one is named in one line."""

import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from probe.errors import CijingError, OutputError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_LONGEST = 60  # characters of a value in a message
_PLAIN = (str, bytes, int, float, complex, list, tuple, set, frozenset, dict, range, Path, type(None))

Kind = TypeVar("Kind")


def whole_number(
    value: object,
    name: str,
    *,
    least: int | None = None,
    most: int | None = None,
    error: type[CijingError] = CijingError,
) -> int:
    """The value as an int, NumPy's and torch's integers included; a bool or a float is none."""
    found = _as_int(value)
    if found is None or (least is not None and found < least) or (most is not None and found > most):
        raise error(f"{name} {shown(value)}: allowed is a whole number{_bounds(least, most)}")
    return found


def whole_numbers(
    value: object, name: str, *, least: int | None = None, error: type[CijingError] = CijingError
) -> tuple[int, ...]:
    """The values of any list, tuple, set, range, array or tensor of whole numbers, in their order."""
    given = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(given, str | bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise error(f"{name} {shown(value)}: allowed is a list of whole numbers{_bounds(least, None)}")
    found = []
    for one in given:
        number = _as_int(one)
        if number is None or (least is not None and number < least):
            raise error(f"{name} has {shown(one)}: allowed are whole numbers{_bounds(least, None)}")
        found.append(number)
    return tuple(found)


def number_set(value: object, name: str, *, least: int = 0, error: type[CijingError] = CijingError) -> frozenset[int]:
    """The values as a set of at least one whole number; none at all would ask for nothing."""
    found = frozenset(whole_numbers(value, name, least=least, error=error))
    if not found:
        raise error(f"{name} is empty: allowed are whole numbers{_bounds(least, None)}, at least one, or None for all")
    return found


def size_in_bytes(value: object, name: str, *, error: type[CijingError] = CijingError) -> int:
    """A number of bytes, given as such or as a text like "4GB" or "500 MB"; at least one."""
    found = _as_int(value) if not isinstance(value, str) else None
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)B?\s*", value, re.IGNORECASE)
        found = int(float(match[1]) * UNITS[match[2].upper()]) if match else None
    if found is None or found < 1:
        raise error(f"{name} {shown(value)}: allowed is a number of bytes from 1, or a size like 4GB or 500MB")
    return found


def path_of(value: object, name: str, *, error: type[CijingError] = OutputError) -> Path:
    """A path, given as text or Path; an empty one, often an unset variable, would mean the working folder."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise error(f"{name} {shown(value)}: allowed is the name of a file or folder, as text or a Path")
    return Path(text)


def truth(value: object, name: str, *, error: type[CijingError] = CijingError) -> bool:
    """True or False, NumPy's included: a text like "no" would count as true."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise error(f"{name} {shown(value)}: allowed are True and False")
    return bool(value)


def one_of(value: object, name: str, allowed: Sequence[str], *, error: type[CijingError] = CijingError) -> str:
    """The value where it is one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        raise error(f"{name} {shown(value)} is unknown; allowed are {', '.join(allowed)}")
    return value


def is_a(value: object, kind: type[Kind], name: str, *, wanted: str, error: type[CijingError] = CijingError) -> Kind:
    """The value where it is of its kind; `wanted` says in words what that is and where it comes from."""
    if not isinstance(value, kind):
        raise error(f"{name} is {shown(value)}; allowed is {wanted}")
    return value


def callback(value: object, name: str, *, error: type[CijingError] = CijingError) -> Any:
    """A function to be called, or None."""
    if value is not None and not callable(value):
        raise error(f"{name} {shown(value)}: allowed is a function, or None")
    return value


def shown(value: object) -> str:
    """The value short enough for a message of one line; what has no short form by its type."""
    if not isinstance(value, _PLAIN):  # and what holds such: numbers, models, captures
        text = _repr(value)
        return text if text and len(text) <= _LONGEST and "\n" not in text else f"a {type(value).__name__}"
    if isinstance(value, list | tuple | set | frozenset | dict) and not all(isinstance(one, _PLAIN) for one in value):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}…{text[-1]}"


def _repr(value: object) -> str:
    if hasattr(value, "parameters"):  # a model's is hundreds of lines
        return ""
    return repr(value)


def _as_int(value: object) -> int | None:
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None
    try:
        return operator.index(cast("Any", value))
    except TypeError:
        return None


def _bounds(least: int | None, most: int | None) -> str:
    return ("" if least is None else f" from {least}") + ("" if most is None else f" to {most}")
