"""The steps of a real model as blocks: why each is there, its formula in words and signs, its numbers on both sides."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probe.messages import MESSAGES, Language, message
from probe.report import StepBlock, Vector
from probe.walking.formulas import Formulas, formulas_of

if TYPE_CHECKING:
    from probe.walking.walk import Walk
    from probe.walking.way import Step

LONG = ("form_layer_norm", "form_rms_norm", "form_rms_norm_one", "why_turned", "why_normed")  # said once on a page
MOST_ROWS = 12  # tokens or heads of one step
MOST_COLUMNS = 16  # tokens beside each other


@dataclass(frozen=True, kw_only=True)
class Voice:
    """The strings of one language."""

    language: Language

    def say(self, key: str, /, **values: object) -> str:
        """Give the string, filled in."""
        return message(f"walk.{key}", self.language, **values)

    def joined(self, sentences: Iterable[str]) -> str:
        """Give sentences one after the other, in Chinese without blanks."""
        return ("" if self.language == "zh" else " ").join(sentences)

    def say_of(self, key: str, facts: Mapping[str, str | int]) -> str:
        """Give a string filled in with those of a step's numbers that it wants."""
        wanted = MESSAGES[f"walk.{key}"].placeholders(self.language)
        return self.say(key, **{name: facts[name] for name in wanted})


def walk_steps(walk: "Walk", language: Language) -> tuple[StepBlock, ...]:
    """Give a real model's steps, each beside the model's own number, or with the reason why there is none."""
    voice = Voice(language=language)
    text = (_tokens_text(voice, walk), " · ".join(columns_of(walk)), voice.say(f"kind_{walk.position}"))
    said: dict[str, int] = {}  # what is explained at length, and in which step
    blocks = [_block(voice, walk, step, said, number) for number, step in enumerate(walk.steps, 2)]
    return (StepBlock(title=voice.say("tokens"), text=text), *blocks)


def _tokens_text(voice: Voice, walk: "Walk") -> str:
    """How many tokens there are, which is followed, and how far that one is the word that was asked for."""
    said = [voice.say("tokens_text", count=len(walk.tokens), token=token_of(walk), place=walk.target)]
    if len(walk.places) > 1:
        tokens = " · ".join(columns_of(walk)[place] for place in walk.places)
        said.append(voice.say("tokens_several", word=walk.word, count=len(walk.places), tokens=tokens))
    if len(walk.tokens) > MOST_COLUMNS:
        said.append(voice.say("tokens_shown", shown=MOST_COLUMNS, count=len(walk.tokens)))
    if walk.covers.strip() != walk.word.strip():
        said.append(voice.say("tokens_wider", word=walk.word, covers=walk.covers.strip()))
    return voice.joined(said)


def _block(voice: Voice, walk: "Walk", step: "Step", said: dict[str, int], number: int) -> StepBlock:
    formulas = formulas_of(step.name, step.form, step.terms) if step.ours is not None else ()
    shown = tuple(_vectors(voice, walk, step))
    keys = [_why(step.name), *_details(step, formulas)]
    lines = [_once(voice, key, step, said, number) for key in keys]
    if step.numbers is not None and len(step.numbers) > MOST_ROWS:
        lines.append(voice.say("rows_shown", shown=len(shown), count=len(step.numbers)))
    return StepBlock(
        title=voice.say(f"step_{step.name}"),
        text=tuple(paragraph for paragraph in (lines[0], voice.joined(lines[1:])) if paragraph),
        formulas=formulas,
        vectors=shown,
        verdict=verdict_of(step, voice.language),
        passed=None if step.missing or step.form == "given" else True,
    )


def _once(voice: Voice, key: str, step: "Step", said: dict[str, int], number: int) -> str:
    """A step's sentence; where a long one would be read a second time, the step that has it."""
    if key in LONG and said.setdefault(key, number) != number:
        return voice.say("as_before", number=said[key])
    return voice.say_of(key, step.facts)


def _why(name: str) -> str:
    """The string that says why a step is there; queries, keys and values are normed and turned for one reason."""
    part, _, done = name.partition("_")
    if part in ("query", "key", "value") and done:
        return f"why_{done}_early" if done == "scaled" else f"why_{done}"
    return f"why_{name}"


def _details(step: "Step", formulas: Formulas) -> Iterator[str]:
    """Strings that say what the family's form is, and explain every sign of the formula that is not yet."""
    if step.form and step.form != "given" and not step.missing:
        yield f"form_{step.form}"
    if step.name == "query_turned" and not step.missing:
        yield "turn_worked"
    yield from (f"with_{term}" for term in ("bias", "sink") if term in step.terms and formulas)
    if any(part.text == "←" for formula in formulas for part in formula.parts):
        yield "arrow"


def verdict_of(step: "Step", language: Language) -> str:
    """Give what one step came to: its gap, or why there is none."""
    voice = Voice(language=language)
    if step.missing:
        return voice.say("verdict_missing", why=voice.say(f"missing_{step.missing}"))
    if step.form == "given":
        return voice.say("verdict_given")
    return voice.say("verdict_equal", gap=_power_of_ten(step.gap or 0.0))


def _power_of_ten(value: float) -> str:
    """Give a small number as 2.7 × 10⁻⁷."""
    if value == 0:
        return "0"
    digits, exponent = f"{value:.1e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{digits} × 10{raised}"


def _vectors(voice: Voice, walk: "Walk", step: "Step") -> Iterator[Vector]:
    """One vector by the formula and as the model has it, or, of many, the model's own."""
    numbers = step.numbers
    if numbers is None:
        return
    followed = walk.head if step.name == "heads" else walk.target
    names = step.rows or (token_of(walk),)
    if step.name == "heads":
        names = tuple(voice.say("head_row", number=number) for number in names)
    sides = (("by_formula", step.ours), ("in_model", step.own))
    pairs = [(voice.say(key), part[0]) for key, part in sides if part is not None]
    kept: list[int] = []
    if len(numbers) > 1 or step.form == "given":
        last = min(followed, len(numbers) - 1)
        kept = sorted({*range(min(len(numbers), MOST_ROWS) - 1), max(last, min(len(numbers), MOST_ROWS) - 1)})
        pairs = [(names[place], numbers[place]) for place in kept]
    shares = step.name in ("weights", "mask", "sink")
    tokens = list(tokens_shown(walk)) if step.columns else []
    for place, (label, values) in enumerate(pairs):
        yield Vector(
            label=label,
            values=values[tokens] if tokens else values,
            columns=tuple(columns_of(walk)[token] for token in tokens),
            decimals=0 if step.name == "mask" else 4,
            shares=shares,
            marked=step.name != "angles" and len(kept) > 1 and kept[place] == followed,
        )


def tokens_shown(walk: "Walk") -> tuple[int, ...]:
    """Tokens that have a column: all of a short text; of a long one the first, the word, those with most weight."""
    if len(walk.tokens) <= MOST_COLUMNS:
        return tuple(range(len(walk.tokens)))
    heaviest = np.argsort(-walk.rows[walk.head], kind="stable").tolist()
    return tuple(sorted(list(dict.fromkeys([0, walk.target, *heaviest]))[:MOST_COLUMNS]))


def token_of(walk: "Walk") -> str:
    """Give the token that is followed."""
    return walk.tokens[walk.target] or "∅"


def columns_of(walk: "Walk") -> tuple[str, ...]:
    """Give the tokens as column names; one that carries no text would be a blank."""
    return tuple(token if token.strip() else "␣" for token in walk.tokens)
