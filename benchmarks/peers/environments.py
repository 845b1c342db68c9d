"""One virtual environment for each tool, from its own requirements file: no tool changes another's versions or ours."""

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
TOOLS = ("bertviz", "transformerlens", "inseq")
DEFAULT = HERE.parents[1] / ".peers"


def requirements(tool: str) -> Path:
    """The file with the tool's exact versions."""
    return HERE / f"requirements-{tool}.txt"


def interpreter(tool: str, folder: Path) -> Path:
    """The tool's Python; SystemExit with one line where its environment is missing or of other versions."""
    ready, python = folder / tool / ".ready", folder / tool / "bin" / "python"
    if not ready.exists() or not python.exists():
        raise SystemExit(f"{folder} has no environment for {tool}: python -m benchmarks.peers setup --folder {folder}")
    if ready.read_text("utf-8") != requirements(tool).read_text("utf-8"):
        raise SystemExit(
            f"{folder / tool} was made from other versions than {requirements(tool).name} names: "
            f"python -m benchmarks.peers setup --folder {folder}"
        )
    return python


def set_up(folder: Path, tools: Sequence[str]) -> None:
    """Make the environments that are missing or of other versions; SystemExit with pip's last line where it fails."""
    for tool in tools:
        place, wanted = folder / tool, requirements(tool)
        ready, text = place / ".ready", wanted.read_text("utf-8")
        if ready.exists() and ready.read_text("utf-8") == text:
            print(f"{tool}: ready in {place}")
            continue
        print(f"{tool}: installing into {place}", flush=True)
        ready.unlink(missing_ok=True)
        venv.create(place, with_pip=True, clear=True)
        # torch first: whatever else asks for torch then finds it, and takes no other build of it.
        torch = next(line for line in text.splitlines() if line.startswith("torch=="))
        for wish in ([torch], ["-r", str(wanted)]):
            _pip(place / "bin" / "python", wish, tool)
        ready.write_text(text, "utf-8")


def _pip(python: Path, wish: Sequence[str], tool: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wish]
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        raise SystemExit(f"{tool}: {lines[-1]}")
