"""What the commands have in common: their options, how these are read, and what is refused."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperOption

from probe.claims_messages import CLAIM_KEYS
from probe.errors import CijingError, ModelError
from probe.given import size_in_bytes

MOST = 4096  # layers or heads that a list like 0-11 may name
LARGEST = 2**31 - 1  # seeds and counts stand in tables as int32
DTYPES = ("float32", "bfloat16", "float16")  # those of probe.models, which takes seconds to import


class OnceEach(TyperCommand):
    """A command that refuses a second value for an option that holds one: the first would be lost unsaid."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments of the command, as Typer does; CijingError names an option given twice."""
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for place, option in enumerate(given):
            single = isinstance(option, TyperOption) and not option.is_flag and not option.multiple
            if single and option in given[:place]:
                raise CijingError(f"{option.opts[0]} is given twice; give one")
        return super().parse_args(ctx, args)


def _numbers(text: str) -> frozenset[int]:
    """Read "0-5,11" as the numbers it names."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:\s*-\s*(\d{1,4}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MOST:
            raise typer.BadParameter(f"{text!r}: allowed are numbers and ranges from 0, like 0-5,11")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def _bytes(text: str) -> int:
    """Read "4GB", "500 MB" or a plain number of bytes."""
    try:
        return size_in_bytes(text, "")
    except CijingError:
        raise typer.BadParameter(f"{text!r}: allowed is a size like 4GB or 500MB") from None


def picture_file(text: str) -> Path:
    """Read the name of a picture: a PNG under another ending would not open."""
    if Path(text).suffix.lower() != ".png" or "\0" in text:
        raise typer.BadParameter(f"{text!r}: allowed is a file ending in .png")
    return Path(text)


def table_file(text: str) -> Path:
    """Read the name of a table; anything else would be overwritten unsaid."""
    if Path(text).suffix.lower() != ".csv" or "\0" in text:
        raise typer.BadParameter(f"{text!r}: allowed is a file ending in .csv")
    return Path(text)


def page_file(text: str) -> Path:
    """Read the name of a page: under another ending no browser would open it."""
    if Path(text).suffix.lower() != ".html" or "\0" in text:
        raise typer.BadParameter(f"{text!r}: allowed is a file ending in .html")
    return Path(text)


def folder_named(text: str) -> Path:
    """Read the name of a folder; an empty one, often an unset variable, would mean the working folder."""
    if not text.strip() or "\0" in text:
        raise typer.BadParameter(f"{text!r}: allowed is the name of a folder")
    return Path(text)


def _claim(text: str) -> str:
    """Read the name of a claim."""
    if text not in CLAIM_KEYS:
        raise CijingError(f"--only {text!r}: no such claim; allowed are {', '.join(CLAIM_KEYS)}")
    return text


def _markdown_file(text: str) -> Path:
    """Read the name of a Markdown file; anything else would be overwritten unsaid."""
    if Path(text).suffix.lower() != ".md" or "\0" in text:
        raise typer.BadParameter(f"{text!r}: allowed is a file ending in .md")
    return Path(text)


def _device(text: str) -> str:
    """Read a device by its form, before torch is imported; whether the machine has it is seen when a model loads."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", text):
        raise ModelError(f"device {text!r} is unknown; allowed are auto, cpu, cuda, cuda:N, mps")
    return text


def _dtype(text: str) -> str:
    """Read a number format by its name."""
    if text not in ("auto", *DTYPES):
        raise ModelError(f"dtype {text!r} is unknown; allowed are auto, {', '.join(DTYPES)}")
    return text


SOURCES = "builtin:NAME, hub id, folder, adapter folder or GGUF file."
Model = Annotated[str, typer.Option("--model", "-m", metavar="MODEL", help=SOURCES)]
Models = Annotated[
    list[str],
    typer.Option("--model", "-m", metavar="MODEL", help=f"{SOURCES} Again for several models on one page."),
]
Device = Annotated[str, typer.Option(parser=_device, metavar="DEVICE", help="auto, cpu, cuda, cuda:1 or mps.")]
Dtype = Annotated[str, typer.Option(parser=_dtype, metavar="DTYPE", help="auto, float32, bfloat16 or float16.")]
Revision = Annotated[str | None, typer.Option(metavar="REVISION", help="Branch, tag or commit of a hub model.")]
RemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run Python code that the model brings along.")]
Layers = Annotated[
    Any, typer.Option(parser=_numbers, metavar="LIST", help="Only these layers, as in 0-5,11; counted from 0.")
]
Heads = Annotated[Any, typer.Option(parser=_numbers, metavar="LIST", help="Only these heads.")]
Budget = Annotated[Any, typer.Option(parser=_bytes, metavar="SIZE", help="Memory that a capture may take, as in 4GB.")]
BatchTokens = Annotated[
    int | None,
    typer.Option(min=1, max=LARGEST, help="Tokens of a batch. [default: 512 on the CPU, 8192 on an accelerator]"),
]
CutToFit = Annotated[bool, typer.Option("--cut-to-fit", help="Cut a text that is too long around its target.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier run in that folder.")]
PageLanguage = Annotated[Literal["en", "zh"], typer.Option(help="Language of the page.")]
Seed = Annotated[int, typer.Option(min=0, max=LARGEST, help="Seed of all that is drawn at random.")]
Sentences = Annotated[int, typer.Option(min=0, max=LARGEST, help="At most so many sentences stand on the page.")]
Cut = Annotated[bool, typer.Option("--cut/--no-cut", help="Also cut edges and measure what that changes.")]
CutCases = Annotated[int, typer.Option(min=1, max=LARGEST, help="At most so many cases have their edges cut.")]
LayerCutCases = Annotated[
    int, typer.Option(min=0, max=LARGEST, help="At most so many of these are also cut layer by layer.")
]
HeadCutCases = Annotated[
    int, typer.Option(min=0, max=LARGEST, help="In at most so many the edge is cut in single heads; 0: none.")
]
ReadingCases = Annotated[
    int, typer.Option(min=0, max=LARGEST, help="At most so many cases without cues have every word cut; 0: none.")
]
ReferenceCases = Annotated[
    int, typer.Option(min=0, max=LARGEST, help="At most so many cases run through random weights as well; 0: none.")
]
Cache = Annotated[
    Any, typer.Option(parser=folder_named, metavar="FOLDER", help="Keep captures here and use them again.")
]
Claims = Annotated[
    list[Any] | None,
    typer.Option("--only", parser=_claim, metavar="CLAIM", help="Only this claim; may be given again. [default: all]"),
]
MarkdownFile = Annotated[
    Any, typer.Option("--markdown", parser=_markdown_file, metavar="FILE", help="Also write the table here, as .md.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A few cases of each, to see that it runs; no verdicts.")]
