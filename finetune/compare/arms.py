"""The arms of a comparison: what each is trained with, what it is asked with, for which tasks it makes sense."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from finetune.compare.items import BASE, UNTRAINED
from finetune.dataconfig import Task
from finetune.runfolder import FinishedRun
from probe import LoadedModel

PromptKind = Literal["plain", "gloss", "passages"]
EVERY_TASK: tuple[Task, ...] = ("causal-lm", "masked-lm", "sense", "word-in-context", "classification")
PROMPTED: tuple[Task, ...] = ("causal-lm",)
WITH_READER: tuple[Task, ...] = ("causal-lm", "sense")
_NO_PROMPT = "it has no prompt to put anything before"
_NO_READER = "it has no ending and no target whose edge could be raised"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to a model that knows the domain."""

    name: str
    run: str | None = None  # the arm whose training it is measured after: its own name, or another's; None: the base
    overrides: Mapping[str, Any] = field(default_factory=dict)  # of the run's file, where it is trained itself
    after: str | None = None  # an arm whose finished run of the same seed decides what its own run needs
    supervised: bool = False  # it reads the pairs in training
    more_text: bool = False  # it is trained on further texts, in as many steps as the run that it comes after
    prompt: PromptKind = "plain"
    edge_bias: bool = False  # logits of the edge to the pair's word are raised
    tasks: tuple[Task, ...] = EVERY_TASK
    unfit: str = ""  # why it makes no sense for other tasks

    @property
    def adapted(self) -> bool:
        """Whether what it trains is an adapter."""
        return self.overrides.get("method") != "full"

    @property
    def trained(self) -> bool:
        """Whether it has a run of its own."""
        return self.run == self.name

    @property
    def asks_otherwise(self) -> bool:
        """Whether it differs from another arm of the same weights in how questions are put alone."""
        return self.prompt != "plain" or self.edge_bias

    def seed_of(self, seed: int) -> int:
        """The seed of its job: an arm that learns nothing has one for all seeds."""
        return seed if self.run is not None else UNTRAINED


# Each arm stands behind those whose runs it takes.
ARMS: Mapping[str, Arm] = {
    one.name: one
    for one in (
        Arm(name=BASE),
        Arm(name="gloss", prompt="gloss", tasks=PROMPTED, unfit=_NO_PROMPT),
        Arm(name="edge-bias", edge_bias=True, tasks=WITH_READER, unfit=_NO_READER),
        Arm(name="rag", prompt="passages", tasks=PROMPTED, unfit=_NO_PROMPT),
        Arm(name="lora", run="lora"),
        Arm(name="lora-attention", run="lora-attention", overrides={"attention.mode": "pairs"}, supervised=True),
        Arm(
            name="lora-random", run="lora-random", overrides={"attention.mode": "random"}, after="lora-attention",
            supervised=True,
        ),
        Arm(name="lora-more-text", run="lora-more-text", after="lora", more_text=True),
        Arm(name="lora-rag", run="lora", prompt="passages", tasks=PROMPTED, unfit=_NO_PROMPT),
        Arm(name="lora-attention-rag", run="lora-attention", prompt="passages", tasks=PROMPTED, unfit=_NO_PROMPT),
        Arm(name="full", run="full", overrides={"method": "full"}),
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmModel:
    """What is measured for one arm and seed: a model in eval mode, adapted where the arm learned."""

    arm: Arm
    seed: int  # UNTRAINED for an arm that learns nothing
    loaded: LoadedModel  # the base: tokenizer, kind, backbone
    model: Any  # the base's model, or the run's with adapter and head
    run: FinishedRun | None  # the run that it was trained in; None for the base's weights
    notes: tuple[str, ...] = ()  # what a reader of its numbers must know
