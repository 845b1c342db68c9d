"""What cutting the cue's edge does to the sense: where the reading word's last state lies, and what it is taken for."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.contrasts import FEWEST_UNITS
from probe.findings import CONTRAST, Interval, Observed, mean_interval
from probe.flips import flip_tests
from probe.measures.states import sense_positions, visible_layers
from probe.stats import unit_means
from probe.wordsenses import group_of, senses_to_tell, word_of

_POSITION, _ACCURACY = "sense position", "sense accuracy"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One number untouched, with the control's edge cut and with the cue's, on the same cases."""

    plain: Interval
    control: Interval
    cue: Interval
    gap: Interval  # cue minus control
    p: float  # sign flips over cue words, over both numbers; NaN below FEWEST_UNITS


@dataclass(frozen=True, kw_only=True)
class CutSenses:
    """Sense axis and sense decision under a cut in every layer; cases without a matched control are left out."""

    cases: int
    position: Cut  # on the axis from the nearest other sense (-1) to the own one (+1)
    accuracy: Cut

    @property
    def tested(self) -> bool:
        """Whether there are enough cue words to claim anything."""
        return self.position.gap.units >= FEWEST_UNITS


def cut_senses(observed: Observed) -> CutSenses | None:
    """Decide each cut case by the untouched states of the other groups; None where no word has senses to tell apart.

    The state is the reading word's last one, mean over its tokens; in a causal model that is the later of target and
    cue, so that part of what is known may be the cue's own name.
    """
    cuts = observed.cuts
    if cuts is None:
        return None
    places = {place: row for row, place in enumerate(observed.cut_cases)}
    position, accuracy = (np.full((len(observed.items), 3), np.nan) for _ in range(2))
    for word, senses in senses_to_tell(observed.items)[0].items():
        own = [p for p in places if word_of(observed.items[p]) == word and observed.items[p].case.sense in senses]
        states = cuts.last[[places[place] for place in own]]
        if not visible_layers(states[:, :1]).any():
            continue  # all the same, up to rounding
        labels = [observed.items[place].case.sense for place in own]
        groups = [group_of(observed.items[place]) for place in own]
        position[own], accuracy[own] = sense_positions(states[:, 0], labels, groups, asked=states)
    known = ~np.isnan(position).any(1)
    if known.sum() < 2:
        return None
    units = [unit for unit, ok in zip(observed.units, known, strict=True) if ok]
    tables = (position[known], accuracy[known])
    gaps = [unit_means(table[:, 1] - table[:, 2], units)[0] for table in tables]
    tested = len(gaps[0]) >= FEWEST_UNITS
    p = [float(one) for one in flip_tests(gaps, seed=observed.seed).p_max] if tested else [np.nan, np.nan]
    both = [_cut(table, units, value, seed=observed.seed) for table, value in zip(tables, p, strict=True)]
    return CutSenses(cases=int(known.sum()), position=both[0], accuracy=both[1])


def cut_sense_results(observed: Observed, found: CutSenses) -> pd.DataFrame:
    """The numbers as rows of the results table."""
    assert observed.cuts is not None
    rows = []
    for measure, cut in ((_POSITION, found.position), (_ACCURACY, found.accuracy)):
        for key, contrast, value in (
            ("", "mean", cut.plain), ("cue", "mean", cut.cue), ("control", "mean", cut.control),
            ("cue", CONTRAST, cut.gap),
        ):  # fmt: skip
            told = contrast == CONTRAST
            rows.append(
                {
                    "model": observed.model, "stack": observed.cuts.stack, "layer": -1, "head": -1, "query": "reader",
                    "key": key, "weighting": "none", "measure": measure, "contrast": contrast, "unit": "cue word",
                    "n": value.units, "estimate": value.mean, "low": value.low, "high": value.high,
                    "control": cut.control.mean if told else np.nan, "p": np.nan, "p_max": cut.p if told else np.nan,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def _cut(table: NDArray[np.float64], units: list[str], p: float, *, seed: int) -> Cut:
    """Table [case, 3]: untouched, the cue's edge cut, the control's."""
    plain, cue, control = (mean_interval(table[:, column], units, seed=seed) for column in range(3))
    gap = mean_interval(table[:, 1] - table[:, 2], units, seed=seed)
    return Cut(plain=plain, control=control, cue=cue, gap=gap, p=p)
