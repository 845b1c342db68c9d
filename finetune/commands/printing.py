"""What commands print for programs."""

import json
import unicodedata
from typing import Any


def json_line(value: Any) -> str:
    """Give a value as one line of JSON that moves nothing on a terminal: control and format characters are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(_escaped(sign) if unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp") else sign for sign in text)


def _escaped(sign: str) -> str:
    return json.dumps(sign)[1:-1] if ord(sign) > 0x7F else f"\\u{ord(sign):04x}"
