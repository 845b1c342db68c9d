"""Chat messages as a model reads them: through its own template, with the target found in what the template wrote."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probe.cases import case_of
from probe.errors import CasesError, ModelError
from probe.spans import tokenize, tokens_of

if TYPE_CHECKING:
    from probe.captures import Prepared
    from probe.models import LoadedModel

Message = Mapping[str, str]
BUILTINS = "neither builtin has one"
WAY_OUT = "give a chat model with --model, or the text itself"
ALLOWED = 'allowed is a JSON list of {"role": "user", "content": "…"}'


def load_messages(path: Path) -> tuple[Message, ...]:
    """Read the messages of one conversation from a JSON file; CasesError says what is wrong, and where."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise CasesError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise CasesError(f"{path}: byte {error.start} is not UTF-8; {ALLOWED}") from error
    except json.JSONDecodeError as error:
        raise CasesError(f"{path}:{error.lineno}: not JSON ({error.msg}); {ALLOWED}") from error
    except RecursionError as error:
        raise CasesError(f"{path}: nested too deeply; {ALLOWED}") from error
    if not isinstance(content, list) or not content:
        raise CasesError(f"{path}: holds no list of messages; {ALLOWED}")
    for number, message in enumerate(content, start=1):
        if not _is_message(message):
            raise CasesError(f"{path}: message {number} is not a role with a content; {ALLOWED}")
    return tuple(content)


def prepare_chat(
    loaded: "LoadedModel",
    messages: Sequence[Message],
    *,
    target: str,
    cues: Sequence[str] = (),
    occurrence: int = 1,
) -> "Prepared":
    """Give the conversation ready to be captured: the template's text, its special tokens read as such, none added."""
    from probe.captures import Prepared  # imports torch, which a bad file of messages should not have to wait for

    text = chat_text(loaded, messages)
    case = case_of(text, target=target, cues=cues, occurrence=occurrence, id="chat")
    tokens = tokenize(loaded.tokenizer, text, add_special_tokens=False, parse_special_tokens=True)
    if loaded.max_positions is not None and len(tokens.ids) > loaded.max_positions:
        raise ModelError(
            f"the conversation has {len(tokens.ids)} tokens, but {loaded.name} has {loaded.max_positions} positions"
        )
    return Prepared(
        case=case,
        tokens=tokens,
        target=tuple(tokens_of(case.target, tokens).tolist()),
        cues=tuple(tuple(tokens_of(cue, tokens).tolist()) for cue in case.cues),
    )


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def chat_text(loaded: "LoadedModel", messages: Sequence[Message], *, to_answer: bool = False) -> str:
    """Give what the model's template writes of the messages; `to_answer` opens the turn that the model is to write."""
    if not getattr(loaded.tokenizer, "chat_template", None):
        raise ModelError(f"{loaded.name} has no chat template ({BUILTINS}); {WAY_OUT}")
    try:
        text = loaded.tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=to_answer
        )
    except Exception as error:  # a template raises what its author chose, for example where roles do not alternate
        reason = " ".join(str(error).split())
        raise ModelError(f"the chat template of {loaded.name} refuses these messages: {reason}") from error
    return str(text)
