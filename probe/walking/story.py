"""The walk as a page: the textbook example, the same steps in a real model, and the questions that both raise."""

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from probe.messages import Language, message
from probe.report import Section, StepBlock, Table, Vector, percent, render_report
from probe.walking.blocks import Voice, columns_of, token_of, tokens_shown, walk_steps
from probe.walking.formulas import formulas_of
from probe.worked import (
    Example,
    attention_step,
    best_single_map,
    head_steps,
    sinusoidal_rows,
    softmax_growth,
    worked_example,
)

if TYPE_CHECKING:
    from probe.walking.walk import Walk

REAL_HEADS = 4
GROWTH_DIMS = (4, 16, 64, 256, 1024)
DRAWS = 400


def example_steps(language: Language) -> tuple[StepBlock, ...]:
    """Give the textbook example, to the digit."""
    voice, example = Voice(language=language), worked_example()
    return (*_position_blocks(voice, example), *_attention_blocks(voice, example))


def example_heads(language: Language) -> StepBlock:
    """Give the example in four heads of one dimension each: weights on each token, and the number that comes out."""
    voice, example = Voice(language=language), worked_example()
    steps = head_steps(example, len(example.query))
    vectors = [
        Vector(
            label=voice.say("head_row", number=number),
            values=np.append(step.weights, step.output),
            columns=(*example.tokens, voice.say("head_out")),
            shares=True,
        )
        for number, step in enumerate(steps)
    ]
    return StepBlock(title=voice.say("heads_example"), text=(voice.say("heads_example_text"),), vectors=tuple(vectors))


def real_heads(walk: "Walk", language: Language) -> StepBlock:
    """Give up to four heads of the walk's layer, the asked one among them: weights on each token."""
    voice = Voice(language=language)
    first, shown = min(walk.head, max(0, walk.heads - REAL_HEADS)), list(tokens_shown(walk))
    vectors = [
        Vector(
            label=voice.say("head_row", number=head),
            values=walk.rows[head][shown],
            columns=tuple(columns_of(walk)[place] for place in shown),
            shares=True,
            marked=head == walk.head,
        )
        for head in range(first, min(walk.heads, first + REAL_HEADS))
    ]
    title = voice.say("heads_real", model=walk.model, layer=walk.layer.index, token=token_of(walk))
    chosen = voice.say("heads_chosen", shown=len(vectors), count=walk.heads, head=walk.head)
    return StepBlock(title=title, text=(chosen,) if len(vectors) < walk.heads else (), vectors=tuple(vectors))


def walk_sections(walk: "Walk", language: Language) -> tuple[Section, ...]:
    """Give the whole page: example, real model, heads, the softmax as d grows, one map against several."""
    voice = Voice(language=language)
    title = voice.say("example")
    example = Section(
        key="example",
        title=title,
        text=(voice.say("example_text"), voice.say("colours")),
        steps=example_steps(language),
    )
    real = Section(
        key="model",
        title=voice.say("real", model=walk.model),
        text=(real_summary(walk, language),),
        steps=walk_steps(walk, language),
    )
    heads = Section(
        key="heads",
        title=voice.say("heads"),
        text=(voice.say("heads_text", model=walk.model, layer=walk.layer.index), _width_text(voice, walk)),
        steps=(example_heads(language), real_heads(walk, language)),
    )
    return (example, real, heads, growth_section(language), *single_section(walk, language))


def _width_text(voice: Voice, walk: "Walk") -> str:
    """Whether this model's heads share its width evenly, from its own numbers."""
    product = walk.heads * walk.head_size
    numbers = {"model": walk.model, "heads": walk.heads, "size": walk.head_size, "product": product}
    if product == walk.width:
        return voice.say("heads_width_same", **numbers)
    return voice.say("heads_width_other", width=walk.width, **numbers)


def example_text() -> str:
    """Give the example's sentence."""
    return "".join(worked_example().tokens)


def page_of_walk(walk: "Walk", language: Language, *, command: str = "") -> str:
    """Give the whole page as one string; `command` is what made it, if it is more than the walk itself can tell."""
    title, subtitle = page_title(walk, language)
    return render_report(
        walk_sections(walk, language),
        title=title,
        subtitle=subtitle,
        language=language,
        manifest_rows=provenance(walk, language, command=command),
        made_note=message("walk.made_note", language),
    )


def page_title(walk: "Walk", language: Language) -> tuple[str, str]:
    """Give the page's title and subtitle."""
    voice = Voice(language=language)
    return voice.say("title", text=walk.text), voice.say("subtitle", model=walk.model)


def provenance(walk: "Walk", language: Language, *, command: str = "") -> tuple[tuple[str, str], ...]:
    """Give what the foot of the page says of how it was made."""
    voice = Voice(language=language)
    options = [("--model", walk.model), ("--layer", walk.layer.index), ("--head", walk.head), ("--target", walk.word)]
    options += [("--occurrence", walk.occurrence)] * (walk.occurrence > 1)
    parts = [walk.text, *(str(part) for option in options for part in option)]
    return (
        (voice.say("made_model"), walk.model),
        (voice.say("made_layer"), f"{walk.layer.index} ({walk.layer.module}), {walk.head}"),
        (voice.say("made_command"), command or f"python -m probe walk {shlex.join(parts)} --out walk.html"),
    )


def real_summary(walk: "Walk", language: Language) -> str:
    """Give the walk in one sentence: where it goes, and how many steps came out equal."""
    counted = [step for step in walk.steps if step.form != "given"]
    voice = Voice(language=language)
    said = voice.say(
        "real_text", token=token_of(walk), layer=walk.layer.index, head=walk.head, text=walk.text,
        equal=len(walk.equal), count=len(counted),
    )  # fmt: skip
    return voice.joined([said, voice.say("real_listed", listed=len(walk.listed))] if walk.listed else [said])


def real_place(walk: "Walk", language: Language, *, by_default: bool) -> str:
    """Give model, layer and head in one line; by_default: nobody asked for this model."""
    voice = Voice(language=language)
    place = voice.say(
        "place_real", model=walk.model, layer=walk.layer.index, last_layer=walk.depth[-1], head=walk.head,
        last_head=walk.heads - 1,
    )  # fmt: skip
    return f"{place}\n{voice.say('place_default_model', model=walk.model)}" if by_default else place


def example_first(walk: "Walk", language: Language) -> str:
    """Give the line above an example that a real model follows."""
    return Voice(language=language).say("example_first", place=real_place(walk, language, by_default=False))


def growth_section(language: Language) -> Section:
    """Give the table of the softmax as d grows, with and without √d."""
    voice = Voice(language=language)
    found = softmax_growth(GROWTH_DIMS, draws=DRAWS)
    rows: tuple[tuple[str | int, ...], ...] = tuple(
        (each.dim, voice.say("yes" if each.scaled else "no"),
         *(_interval(part) for part in (each.spread, each.largest, each.entropy, each.gradient)))
        for each in sorted(found, key=lambda one: (not one.scaled, one.dim))
    )  # fmt: skip
    names = ("dim", "scaled", "spread", "largest", "entropy", "gradient")
    table = Table(
        caption=voice.say("growth_table"), columns=tuple(voice.say(f"col_{name}") for name in names), rows=rows
    )
    return Section(
        key="growth", title=voice.say("growth"), text=(voice.say("growth_text", draws=DRAWS),), tables=(table,)
    )


def _interval(part: tuple[float, float, float]) -> str:
    mean, low, high = part
    decimals = 1 if mean >= 10 else 3
    return f"{mean:.{decimals}f} ± {(high - low) / 2:.{decimals}f}"


def _position_blocks(voice: Voice, example: Example) -> Iterator[StepBlock]:
    rows = sinusoidal_rows(range(3), len(example.embedding))
    added = example.embedding + example.position
    yield StepBlock(
        title=voice.say("position"),
        text=(voice.say("position_text"),),
        formulas=formulas_of("added"),
        vectors=(
            Vector(label=voice.say("embedding_row"), values=example.embedding, decimals=1),
            Vector(label=voice.say("position_row"), values=example.position, decimals=1),
            Vector(label=voice.say("sum_row"), values=added, decimals=1, marked=True),
        ),
    )
    yield StepBlock(
        title=voice.say("sinusoidal"),
        text=(voice.say("sinusoidal_text"),),
        formulas=formulas_of("position_row", "sinusoidal"),
        vectors=(
            *(Vector(label=voice.say("position_of", number=n), values=row) for n, row in enumerate(rows)),
            Vector(label=voice.say("sum_true"), values=example.embedding + rows[example.target], marked=True),
        ),
    )


def _attention_blocks(voice: Voice, example: Example) -> Iterator[StepBlock]:
    found = attention_step(example.query, example.keys, example.values)
    word, columns = example.tokens[example.target], example.tokens
    yield StepBlock(
        title=voice.say("given"),
        text=(voice.say("given_text"),),
        formulas=formulas_of("given"),
        vectors=(
            Vector(label=voice.say("query_of", token=word), values=example.query, decimals=1, marked=True),
            *(Vector(label=voice.say("key_of", token=t), values=k, decimals=1)
              for t, k in zip(columns, example.keys, strict=True)),
            *(Vector(label=voice.say("value_of", token=t), values=v, decimals=1)
              for t, v in zip(columns, example.values, strict=True)),
        ),
    )  # fmt: skip
    named: tuple[tuple[str, Any, int, bool], ...] = (
        ("scores", found.scores, 2, False),
        ("scaled", found.scaled, 3, False),
        ("weights", found.weights, 5, True),
    )
    for name, values, decimals, shares in named:
        more = {"share": percent(found.entropy)} if name == "weights" else {}
        vector = Vector(
            label=voice.say(f"row_{name}"), values=values, columns=columns, decimals=decimals, shares=shares
        )
        yield StepBlock(
            title=voice.say(f"ex_{name}"),
            text=(voice.say(f"ex_{name}_text", **more),),
            formulas=formulas_of(name),
            vectors=(vector,),
        )
    yield StepBlock(
        title=voice.say("ex_output"),
        text=(voice.say("ex_output_text"),),
        formulas=formulas_of("mixed"),
        vectors=(
            Vector(label=voice.say("rounded"), values=found.weights.round(3) @ example.values),
            Vector(label=voice.say("unrounded"), values=found.output, decimals=5, marked=True),
        ),
    )


def single_section(walk: "Walk", language: Language) -> Iterator[Section]:
    """Give what one attention row for all heads would leave; nothing where a family does not show what heads write."""
    if walk.writes is None or walk.heads < 2:
        return
    voice = Voice(language=language)
    found = best_single_map(walk.rows, walk.writes)
    shares = {
        "best": percent(found.residual),
        "mean": percent(found.mean_residual),
        "free": percent(found.free_residual),
    }
    rows = tuple(
        (token, float(best), float(mean), float(free))
        for token, best, mean, free in zip(columns_of(walk), found.best, found.mean, found.free, strict=True)
    )
    table = Table(
        caption=voice.say("single_table"),
        columns=tuple(voice.say(f"col_{name}") for name in ("token", "best", "mean", "free")),
        rows=rows,
    )
    yield Section(
        key="single",
        title=voice.say("single"),
        text=(voice.say("single_text", heads=walk.heads, token=token_of(walk), **shares),),
        tables=(table,),
    )
