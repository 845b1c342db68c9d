"""What the experiments share: two models loaded when first needed, sizes, a seed, and where texts lie."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from probe.capture import capture_prepared, prepare
from probe.captures import Capture, CaptureOptions, Prepared
from probe.cases import Case, load_cases
from probe.contrasts import is_neutral
from probe.models import LoadedModel
from probe.routes import Route, route_of

Progress = Callable[[int, int], None]
ShowProgress = Callable[[str, int, int], None]  # stage, done, total


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured; the quick sizes are for tests of the machinery, not for verdicts."""

    groups: int = 10_000  # minimal groups of a sense in `apple`
    relations: int = 10_000  # cases of `relations`
    words: int = 24  # cue words of `far`
    layer_words: int = 24  # of these, cut layer by layer in the encoder
    decoder_layer_words: int = 8  # the same in the decoder, which is slower
    epochs: int = 10  # of the biLSTM
    long_texts: int = 5
    long_tokens: int = 1100  # more than twice the decoder's window
    carriers: int = 12


QUICK = Sizes(
    groups=6, relations=12, words=6, layer_words=5, decoder_layer_words=5, epochs=1, long_texts=5, long_tokens=60,
    carriers=6,
)  # fmt: skip


class Bench:
    """The two models, loaded once and only when an experiment asks, with everything else a claim may need."""

    def __init__(
        self,
        *,
        load_encoder: Callable[[], LoadedModel],
        load_decoder: Callable[[], LoadedModel],
        sizes: Sizes | None = None,
        seed: int = 0,
        data: Path | None = None,
        progress: ShowProgress | None = None,
    ) -> None:
        self._load_encoder = load_encoder
        self._load_decoder = load_decoder
        self.sizes = sizes or Sizes()
        self.seed = seed
        self.data = data
        self.progress = progress
        self._routes: dict[str, Route] = {}

    @cached_property
    def encoder(self) -> LoadedModel:
        """The model that reads in both directions."""
        return self._load_encoder()

    @cached_property
    def decoder(self) -> LoadedModel:
        """The model that reads from left to right, with its language-model head."""
        return self._load_decoder()

    def route(self, loaded: LoadedModel) -> Route:
        """The model's route, found once."""
        if loaded.fingerprint not in self._routes:
            self._routes[loaded.fingerprint] = route_of(loaded)
        return self._routes[loaded.fingerprint]

    def told(self, stage: str) -> Progress | None:
        """Where to say how far a stage is."""
        show = self.progress
        return None if show is None else lambda done, total: show(stage, done, total)

    def captures(
        self, loaded: LoadedModel, items: Sequence[Prepared], stage: str, *, options: CaptureOptions | None = None
    ) -> list[Capture]:
        """Rows and states of all items, in their order."""
        options = options or CaptureOptions(batch_tokens=2048)
        told = self.told(stage)
        return list(capture_prepared(loaded, items, options=options, route=self.route(loaded), progress=told))

    @cached_property
    def apple(self) -> tuple[Case, ...]:
        """The cases of `apple` on 苹果, neutral ones included, as many groups of each sense as the sizes say."""
        return tuple(
            case
            for case in first_groups(load_cases("apple").cases, self.sizes.groups)
            if case.target.cut(case.text) == "苹果"
        )

    @cached_property
    def apple_states(self) -> "TargetStates":
        """The encoder's states of 苹果 in the cue cases of `apple`, read once for every claim that asks."""
        items = [
            item for item in prepare(self.encoder, self.apple, cut=None) if not is_neutral(item) and item.case.sense
        ]
        return target_states(self.captures(self.encoder, items, "states of apple"))

    @cached_property
    def word_states(self) -> "TargetStates":
        """The same of the words of `senses`."""
        cases = first_groups(load_cases("senses").cases, self.sizes.groups)
        return target_states(self.captures(self.encoder, prepare(self.encoder, cases, cut=None), "states of senses"))


@dataclass(frozen=True, kw_only=True, eq=False)
class TargetStates:
    """States at the target of cases that have a sense."""

    items: tuple[Capture, ...]
    states: NDArray[np.float64]  # [case, state layer, dim]
    senses: tuple[str, ...]
    groups: tuple[str, ...]
    words: tuple[str, ...]


def target_states(captures: Sequence[Capture]) -> TargetStates:
    """The mean state over the target's tokens, [case, state layer, dim], with senses and groups."""
    states = []
    for one in captures:
        found = one.states.get("encoder", one.states.get("decoder"))
        assert found is not None, "captured without states"
        states.append(found[:, list(one.target)].mean(1))
    return TargetStates(
        items=tuple(captures),
        states=np.stack(states).astype(np.float64),
        senses=tuple(one.case.sense for one in captures),
        groups=tuple(one.case.group or one.case.id for one in captures),
        words=tuple(one.case.target.cut(one.case.text) for one in captures),
    )


def first_groups(cases: Sequence[Case], most: int) -> list[Case]:
    """All cases of the first `most` groups of each sense; a neutral case goes with its group."""
    senses: dict[str, list[str]] = {}
    for case in cases:
        name = case.group or case.id
        if case.sense != "neutral" and name not in senses.setdefault(case.sense, []):
            senses[case.sense].append(name)
    kept = {name for names in senses.values() for name in names[:most]}
    return [case for case in cases if (case.group or case.id) in kept]
