"""A second reading of the case sets that we wrote ourselves: a sheet without labels, and how far its reader agrees.

    python -m benchmarks.blind_reading draw SET --out SHEET.csv [--share 0.1] [--seed 0]
    python -m benchmarks.blind_reading save SET --sheet SHEET.csv --filled FILLED.csv [--out READING.csv]
    python -m benchmarks.blind_reading score SET [READING.csv] [--json]

The reader gets the sheet alone and hands back number,answer; `save` keeps them with the hash of each text that was
read, by default in benchmarks/readings, and `score` compares them with the labels that the set has now.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.agreement import Score, score_reading
from benchmarks.sheets import Reading, draw_sheet, load_answers, load_reading, load_sheet, read_sheet, save_rows
from probe.cases import load_cases
from probe.errors import CijingError
from probe.terminal import open_console, text_table

READINGS = Path(__file__).parent / "readings"


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, save or score; gives the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (CijingError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def show_score(score: Score) -> None:
    """Print the agreement, its parts and every disagreement."""
    console = open_console(sys.stdout)
    print(f"{score.set}: {score.agreed} of {score.read} cases read alike, of {score.cases} in the set")
    print(f"agreement {100 * score.agreement:.1f} (95 % exact binomial {100 * score.low:.1f}-{100 * score.high:.1f})")
    print("kappa " + ("undefined: there was nothing to choose" if score.kappa is None else f"{score.kappa:.2f}"))
    parts = [[part.word, part.sense, str(part.read), str(part.agreed)] for part in score.parts]
    console.print(text_table(["word", "sense", "read", "agreed"], parts))
    if score.disagreements:
        rows = [[str(one.number), one.case, one.text, one.label, one.answer] for one in score.disagreements]
        console.print(text_table(["number", "case", "text", "label", "answer"], rows))


def _draw(options: argparse.Namespace) -> int:
    sheet = draw_sheet(load_cases(options.set), share=options.share, seed=options.seed)
    save_rows(options.out, sheet.about, sheet.columns())
    print(f"{options.out}: {len(sheet.rows)} cases to read")
    return 0


def _save(options: argparse.Namespace) -> int:
    sheet = load_sheet(options.sheet)
    reading = read_sheet(sheet, load_answers(options.filled), name=str(options.filled))
    score_reading(load_cases(options.set), reading)  # refuses what could not be scored later
    out = options.out or _committed(options.set)
    out.parent.mkdir(exist_ok=True)
    save_rows(out, reading.about, reading.columns())
    print(f"{out}: {len(reading.rows)} answers")
    return 0


def _score(options: argparse.Namespace) -> int:
    reading: Reading = load_reading(options.reading or _committed(options.set))
    score = score_reading(load_cases(options.set), reading)
    if options.json:
        print(json.dumps(asdict(score), ensure_ascii=False, indent=1))
    else:
        show_score(score)
    return 0


def _committed(name: str) -> Path:
    return READINGS / f"{Path(name).stem}.csv"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blind_reading", description="A blind second reading.")
    commands = parser.add_subparsers(required=True)
    draw = commands.add_parser("draw", help="write a sheet for the reader")
    draw.add_argument("set")
    draw.add_argument("--out", type=Path, required=True, metavar="FILE")
    draw.add_argument("--share", type=_share, default=0.1, help="of the set that is read (0.1)")
    draw.add_argument("--seed", type=int, default=0)
    draw.set_defaults(run=_draw)
    save = commands.add_parser("save", help="keep a filled sheet with the hashes of its texts")
    save.add_argument("set")
    save.add_argument("--sheet", type=Path, required=True, metavar="FILE")
    save.add_argument("--filled", type=Path, required=True, metavar="FILE", help="columns number and answer")
    save.add_argument("--out", type=Path, metavar="FILE", help="default: benchmarks/readings/SET.csv")
    save.set_defaults(run=_save)
    score = commands.add_parser("score", help="compare a reading with the labels of the set")
    score.add_argument("set")
    score.add_argument("reading", type=Path, nargs="?", metavar="FILE", help="default: benchmarks/readings/SET.csv")
    score.add_argument("--json", action="store_true", help="print JSON")
    score.set_defaults(run=_score)
    return parser


def _share(given: str) -> float:
    try:
        share = float(given)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{given}: allowed is a number above 0 and at most 1")
    return share


if __name__ == "__main__":
    sys.exit(main())
