"""Lines of JSON on a terminal."""

import json

from finetune.commands.printing import json_line


def test_a_line_of_json_holds_nothing_that_moves_a_terminal_and_is_the_same_value():
    value = {"text": "苹果\u202e酸\x9b2J\x1b[0m\u2028\U000e0001", "n": [1, None, 0.5]}
    line = json_line(value)
    assert json.loads(line) == value and "苹果" in line
    assert not {"\u202e", "\x9b", "\x1b", "\u2028", "\U000e0001", "\n"} & set(line)
