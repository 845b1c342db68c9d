"""The colours of attention: a reader compares lightness, so lightness must be what steps evenly."""

import numpy as np
import pytest

from probe.colours import attention_colours


@pytest.mark.parametrize("dark", [False, True])
def test_attention_colours_step_evenly_in_lightness(dark):
    def lightness(colour):  # CIE L*, another scale than the one the colours are made in
        rgb = np.array(list(bytes.fromhex(colour[1:]))) / 255
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return 116 * np.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16

    steps = np.diff([lightness(colour) for colour in attention_colours(17, dark=dark)])
    assert (steps > 0).all() if dark else (steps < 0).all()
    assert np.abs(steps).max() < 1.8 * np.abs(steps).min()


def test_colours_are_six_hexadecimal_digits_from_pale_to_deep_and_the_other_way_round_in_the_dark():
    light, dark = attention_colours(3), attention_colours(3, dark=True)
    assert all(len(colour) == 7 and colour[0] == "#" and int(colour[1:], 16) >= 0 for colour in light + dark)
    assert light[0] > light[-1] and dark[0] < dark[-1]
