"""What every script here answers: one model and one text in, one line of JSON out; runs in the peers' interpreters.

It imports nothing of probe or finetune, only the meter, so that each tool is measured by the same one.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Work, cost_and_result

Ready = Callable[[dict[str, str]], Work]
WARM = "我们"  # runs through the tool before anything is measured


def answer(
    ready: Ready, *, weights: Callable[[Any], int], page: Callable[[Any, dict[str, str]], str] | None = None
) -> None:
    """Measure ready(job)() in this process, which is a fresh one, then make the page of the same case.

    Prints a line of JSON for each, so that what was measured stands where the page then fails.

    weights counts the numbers of attention that the work gave; page is the HTML that the tool makes of them.
    """
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    cost, found = cost_and_result(ready, job)
    print(json.dumps({"seconds": cost.seconds, "increase": cost.increase, "weights": weights(found)}), flush=True)
    if page is not None:
        start = time.process_time()
        html = page(found, job)
        print(json.dumps({"page_seconds": time.process_time() - start, "page": len(html.encode())}))
