"""Several processes of one run (accelerate launch, torchrun): who checks the folder first, and who speaks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def speaks() -> bool:
    """Whether this process prints and writes: the first, or the only one."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def in_turn(arguments: Any) -> Iterator[None]:
    """The block in the first process, then in the others, and none goes on before all have left it.

    `arguments` are the TrainingArguments, which say how processes talk to each other; one process asks for none. Where
    the first one fails the others wait in vain, and the launcher ends them.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    from accelerate import PartialState

    _ = arguments.device  # sets the process group up
    state = PartialState()
    with state.main_process_first():
        yield
    state.wait_for_everyone()
