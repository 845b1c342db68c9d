"""One sentence and one text of 500 tokens through BertViz, TransformerLens, inseq and ours: time, memory, page.

    python -m benchmarks.peers setup [--folder FOLDER]
    python -m benchmarks.peers run   [--folder FOLDER] [--models M] [--runs 1] [--json FILE]
    python -m benchmarks.peers check [--folder FOLDER]

setup makes an environment for each tool. run measures every tool in its own, each case in a fresh process with one
thread: CPU seconds from text to attention, and the peak of memory over the loaded model. What a tool cannot do stands
in the table in its own words. check gives our exports to BertViz and TransformerLens: exit code 1 where they differ.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers.environments import DEFAULT, TOOLS, interpreter, set_up
from benchmarks.peers.running import MODELS, OURS, Result, measured

NAMES = {OURS: "Cijing", "bertviz": "BertViz 1.4.1", "transformerlens": "TransformerLens 4.3.0", "inseq": "inseq 0.7.1"}
GIVES = {OURS: "rows of 苹果", "bertviz": "all maps", "transformerlens": "all maps", "inseq": "last token's row"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; gives the exit code."""
    options = _parser().parse_args(arguments)
    folder = options.folder.resolve()
    if options.action == "setup":
        set_up(folder, [tool for tool in options.tools if tool != OURS])
        return 0
    pythons = {tool: Path(sys.executable) if tool == OURS else interpreter(tool, folder) for tool in options.tools}
    if options.action == "check":
        from benchmarks.peers.exports import checked  # ours and heavy, which setup does without

        return int(not checked(pythons))
    results = []
    print(header())
    for result in measured(options.models, pythons, runs=options.runs):
        print(shown(result), flush=True)
        results.append(result)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in results], indent=1, ensure_ascii=False), "utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("setup", "run", "check"))
    parser.add_argument("--folder", type=Path, default=DEFAULT, help="where the environments are")
    parser.add_argument("--tools", nargs="+", choices=(OURS, *TOOLS), default=[OURS, *TOOLS], help="only these tools")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="only these models")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    parser.add_argument("--runs", type=int, default=1, help="runs of each case; the table shows medians")
    return parser


def header() -> str:
    """The head of the table, as Markdown."""
    columns = ("model", "tokens", "tool", "gives", "weights", "CPU time", "memory", "page")
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def shown(result: Result) -> str:
    """A line of the table; an error takes the place of all numbers, or of the page alone where only that failed."""
    start = (result.model, f"{result.tokens}", NAMES[result.tool])
    cannot = f"cannot: `{result.error.replace('|', '/')}`" if result.error else ""
    if cannot and result.seconds is None:
        return f"| {' | '.join(start)} | {cannot} | | | | |"
    page = cannot or ("–" if result.page is None else size(result.page))
    numbers = (f"{result.weights:,}", f"{result.seconds:.2f} s", size(result.increase or 0), page)
    return f"| {' | '.join((*start, GIVES[result.tool], *numbers))} |"


def size(count: float) -> str:
    """Bytes as kB or MB, with three digits where there are not more before the point."""
    number, unit = (count / 1e3, "kB") if count < 999_500 else (count / 1e6, "MB")
    digits = 0 if number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:,.{digits}f} {unit}"


if __name__ == "__main__":
    sys.exit(main())
