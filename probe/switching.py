"""Another attention implementation for a while: threads that share a model take turns where they need two."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from probe.errors import TapError


@dataclass(kw_only=True, eq=False)
class _Switched:
    """Models of one configuration that compute attention in another way than they came with."""

    key: int
    previous: str
    holders: list[int] = field(default_factory=list)  # thread of each open block
    alone: bool = False  # one thread needs an implementation for itself
    roots: dict[int, Any] = field(default_factory=dict)  # by identity: the models that were switched


_changed = threading.Condition()
_switched: dict[int, _Switched] = {}  # by the configuration, which a model shares with the headless one inside


@contextlib.contextmanager
def computed_together(root: Any, name: str, *, first: Callable[[Any], None]) -> Iterator[None]:
    """Within the block the model computes attention by `name`, with other threads that want the same.

    Nested and concurrent blocks are counted: `first` is called before a model is switched, and the last block
    restores what the models came with.
    """
    with _turn(root, name, alone=False, first=first):
        yield


@contextlib.contextmanager
def eagerly(root: Any) -> Iterator[None]:
    """Within the block the model computes eager attention; taps of other threads on it are waited for, and wait."""
    with _turn(root, "eager", alone=True):
        yield


@contextlib.contextmanager
def untouched(root: Any) -> Iterator[None]:
    """Within the block the model computes attention as it came; other threads' switches are waited for, and wait."""
    with _turn(root, None, alone=True):
        yield


@contextlib.contextmanager
def _turn(root: Any, name: str | None, *, alone: bool, first: Callable[[Any], None] | None = None) -> Iterator[None]:
    with _changed:
        state = _wait(root, alone=alone)
        state.holders.append(threading.get_ident())
        state.alone = alone
    try:
        with _changed:
            if name is not None and id(root) not in state.roots:
                if first is not None:
                    first(root)
                state.roots[id(root)] = root
                switch_implementation(root, name)
        yield
    finally:
        with _changed:
            state.holders.remove(threading.get_ident())
            if not state.holders:
                _restore(state)


def _wait(root: Any, *, alone: bool) -> _Switched:
    """The state of the model once this thread may switch it; TapError where it would wait for itself."""
    mine, key = threading.get_ident(), id(root.config)
    while True:
        state = _switched.get(key)
        if state is None:
            state = _switched[key] = _Switched(key=key, previous=root.config._attn_implementation)
            return state
        if not alone and not state.alone:
            return state
        if mine in state.holders:
            raise TapError(
                f"{type(root).__name__} cannot be tapped and computed with eager attention at once: leave the block of "
                "tap or attached before captures and checks"
            )
        _changed.wait()


def _restore(state: _Switched) -> None:
    del _switched[state.key]
    try:
        for root in state.roots.values():
            _set_implementation(root, state.previous)
    finally:
        _changed.notify_all()


def switch_implementation(root: Any, name: str) -> None:
    """Set the attention implementation and check that it took: families that cannot switch only log a warning."""
    _set_implementation(root, name)
    if root.config._attn_implementation != name:
        raise TapError(
            f"{type(root).__name__} stayed with attention {root.config._attn_implementation!r} when asked for {name!r}"
        )


def _set_implementation(root: Any, name: str) -> None:
    """Families with attention of their own refuse to be switched, but read the setting at each call, or not at all.

    Falcon left with SDPA's setting would add SDPA's boolean mask to its scores: every later token would be seen.
    """
    if root._can_set_attn_implementation():
        root.set_attn_implementation(name)
    else:
        root.config._attn_implementation = name
