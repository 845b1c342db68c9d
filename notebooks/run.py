"""Run the notebooks as CI does: with PRESET=ci, each in a kernel of its own, at most 60 seconds, files unchanged.

python notebooks/run.py [NOTEBOOK ...]     exit code 1 where a notebook fails, takes too long or holds stored outputs
"""

import os
import re
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

HERE = Path(__file__).resolve().parent
LIMIT = 60.0  # seconds for one notebook, its kernel's start included


def run(path: Path, *, limit: float = LIMIT) -> str | None:
    """Run one notebook for at most `limit` seconds; give what is wrong with it, or None."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    stored = [cell.id for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count") is not None]
    if stored:
        return f"outputs are stored in {', '.join(stored)}; clear them"
    end = time.monotonic() + limit
    client = NotebookClient(
        notebook,
        timeout_func=lambda cell: max(1, round(end - time.monotonic())),
        resources={"metadata": {"path": str(HERE)}},
    )
    try:
        client.execute(env=_environment())
    except CellTimeoutError:
        return f"takes more than {limit:.0f} s"
    except (CellExecutionError, DeadKernelError) as error:
        return re.sub(r"\x1b\[[\d;]*m", "", str(error))  # without the terminal's colours
    return None if time.monotonic() <= end else f"takes more than {limit:.0f} s"


def _environment() -> dict[str, str]:
    """PRESET=ci, and the checkout on the path of the kernel, installed or not."""
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    ours = {"PRESET": "ci", "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    # One thread: on short texts several only wait for each other, on a busy machine for many times as long.
    return {"OMP_NUM_THREADS": "1", **os.environ, **ours}


def main(arguments: list[str]) -> int:
    """Run the named notebooks, or all of this folder, and say how long each took."""
    failed = 0
    for path in map(Path, arguments) if arguments else sorted(HERE.glob("*.ipynb")):
        start = time.monotonic()
        problem = run(path)
        print(f"{path.name}: {problem or 'ok'} ({time.monotonic() - start:.1f} s)", flush=True)
        failed += problem is not None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
