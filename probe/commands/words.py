"""One word in one text: attend, walk."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from probe.commands.loading import DEFAULT_MODEL, command_line, load
from probe.errors import CijingError
from probe.options import (
    SOURCES,
    Budget,
    CutToFit,
    Device,
    Dtype,
    Heads,
    Layers,
    Model,
    PageLanguage,
    RemoteCode,
    Revision,
    page_file,
    picture_file,
)

EXAMPLE_WORD = "苹果"


@contextmanager
def _one_text() -> Iterator[None]:
    """Leave out of an error the name of the case, which a text that comes alone was given by us."""
    try:
        yield
    except CijingError as error:
        message = re.sub(r"^case '(?:text|chat)'(: )?", lambda found: "" if found[1] else "the text", str(error))
        raise type(error)(message) from error


@_one_text()
def attend(
    target: Annotated[str, typer.Option("--target", "-t", help="The word to look from.")],
    text: Annotated[str | None, typer.Argument(help="The text, for example 我喜欢苹果.")] = None,
    cue: Annotated[list[str] | None, typer.Option("--cue", "-c", help="A word to mark; may be given again.")] = None,
    occurrence: Annotated[int, typer.Option(min=1, help="Which one, where the target stands more than once.")] = 1,
    chat: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Messages as JSON, put through the model's template.")
    ] = None,
    model: Model = DEFAULT_MODEL,
    layers: Layers = None,
    heads: Heads = None,
    png: Annotated[Any, typer.Option(parser=picture_file, metavar="FILE", help="Also draw the heat map.")] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: RemoteCode = False,
    memory_budget: Budget = None,
    cut_to_fit: CutToFit = False,
) -> None:
    """Show one word's attention in the terminal. A row a layer says where it goes in one text, in percent."""
    if (text is None) == (chat is None):
        raise typer.BadParameter("give either a text or --chat FILE", param_hint="TEXT")
    from probe.cases import case_of
    from probe.chat import load_messages, prepare_chat

    messages = load_messages(chat) if chat else ()
    case = None if text is None else case_of(text, target=target, cues=cue or (), occurrence=occurrence)
    from probe.capture import prepare
    from probe.captures import CaptureOptions
    from probe.glance import glance
    from probe.terminal import open_console, print_heat_map, show_progress

    loaded = load(model, device=device, dtype=dtype, revision=revision, code=trust_remote_code)
    if case:
        (item,) = prepare(loaded, [case], cut=cut_to_fit)
    else:
        item = prepare_chat(loaded, messages, target=target, cues=cue or (), occurrence=occurrence)
    options = CaptureOptions(layers=layers, heads=heads, states=False, memory_budget=memory_budget)
    with show_progress(patient=True) as progress:
        seen = glance(loaded, item, options=options, on_layer=partial(progress, "layers"))
    if png:
        from probe.canvas import save_png
        from probe.figures import sentence_map

        title = f"{target} · {loaded.name}"
        map_of = sentence_map(
            seen.labels, seen.weights, rows=seen.rows, target=seen.target, cues=seen.cues, title=title
        )
        save_png(map_of, png)
    print_heat_map(
        open_console(sys.stdout),
        seen.labels,
        seen.weights,
        rows=seen.rows,
        target=seen.target,
        cues=seen.cues,
        special=seen.special,
    )


@_one_text()
def walk(
    text: Annotated[str | None, typer.Argument(help="The text. [default: 我喜欢苹果]")] = None,
    target: Annotated[str | None, typer.Option("--target", "-t", help="The word to follow. [default: 苹果]")] = None,
    occurrence: Annotated[int, typer.Option(min=1, help="Which one, where the target stands more than once.")] = 1,
    model: Annotated[str | None, typer.Option("--model", "-m", metavar="MODEL", help=SOURCES)] = None,
    layer: Annotated[int | None, typer.Option(min=0, help="Attention layer from 0. [default: the middle one]")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Attention head from 0. [default: 0]")] = None,
    out: Annotated[
        Any, typer.Option(parser=page_file, metavar="FILE", help="Also write the page, example and model, as .html.")
    ] = None,
    language: PageLanguage = "en",
    device: Device = "auto",
    revision: Revision = None,
    trust_remote_code: RemoteCode = False,
    cut_to_fit: CutToFit = False,
) -> None:
    """Follow attention step by step. Without options the textbook example; with a text or a model, a real layer."""
    from probe.terminal import open_console, print_steps, show_progress, visible
    from probe.walking.lines import lines_of, lines_of_sections
    from probe.walking.story import example_heads, example_steps, example_text, growth_section

    console, example = open_console(sys.stdout), text is None and model is None
    unset = all(option is None for option in (target, layer, head, revision, out))
    alone = unset and occurrence == 1 and device == "auto" and not trust_remote_code and not cut_to_fit
    growth = lines_of_sections([growth_section(language)])
    if example and alone:
        print_steps(console, (*lines_of((*example_steps(language), example_heads(language)), language), *growth))
        return
    from probe.captures import refuse_unwritable, write_whole
    from probe.cases import case_of

    if out:
        refuse_unwritable(out, what="the page")
    words = example_text() if text is None else text
    word = _word_to_follow(words, target)
    case_of(words, target=word, occurrence=occurrence)  # refused before a model is loaded
    name = DEFAULT_MODEL if model is None else model
    loaded = load(name, device=device, dtype="float32", revision=revision, code=trust_remote_code)
    from probe.walking.blocks import walk_steps
    from probe.walking.story import (
        example_first,
        page_of_walk,
        real_heads,
        real_place,
        real_summary,
        single_section,
    )
    from probe.walking.walk import walk as follow

    with show_progress(patient=True) as progress:
        found = follow(
            loaded, words, target=word, layer=layer, head=head or 0, occurrence=occurrence,
            cut_to_fit=cut_to_fit, progress=partial(progress, "stages"),
        )  # fmt: skip
    if out:
        options = {
            "target": word, "occurrence": occurrence if occurrence > 1 else None, "model": name,
            "layer": found.layer.index, "head": found.head, "language": language, "revision": revision, "out": out,
            "cut-to-fit": cut_to_fit, "trust-remote-code": trust_remote_code,
        }  # fmt: skip
        page = page_of_walk(found, language, command=command_line("walk", options, text=words))
        write_whole(out, page.encode(), what="the page")
    if example:
        print(visible(example_first(found, language)), end="\n\n")
        print_steps(console, lines_of((*example_steps(language), example_heads(language)), language))
    for line in real_place(found, language, by_default=model is None).splitlines():
        print(visible(line))
    print()
    real = lines_of((*walk_steps(found, language), real_heads(found, language)), language)
    print_steps(console, (*real, *lines_of_sections(single_section(found, language)), *growth))
    print(visible(real_summary(found, language)))
    if out:
        print(out)


def _word_to_follow(text: str, target: str | None) -> str:
    """The word asked for; without one the example's, where the text has it."""
    if target is not None:
        return target
    if EXAMPLE_WORD not in text:
        raise CijingError(f"no target is given for {text!r}: name the word to follow with --target WORD")
    return EXAMPLE_WORD
