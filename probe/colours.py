"""The colours of attention, for figures and page alike: even steps of lightness, safe for colour-blind readers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def attention_colours(steps: int, *, dark: bool = False) -> tuple[str, ...]:
    """Give malachite to azurite, in even steps of OKLab lightness: `#rrggbb` from no attention to all of it."""
    at = np.linspace(0.0, 1.0, steps)
    if dark:
        lightness, hue, chroma = 0.30 + 0.60 * at, 262 - 92 * at, 0.045 + 0.075 * np.sin(np.pi * at**0.9)
    else:
        lightness, hue, chroma = 0.960 - 0.60 * at, 158 + 104 * at, 0.022 + 0.098 * at**0.8
    rgb = _srgb_of_oklch(lightness, chroma, np.deg2rad(hue))
    return tuple("#" + bytes(np.round(255 * colour).astype(np.uint8)).hex() for colour in rgb)


def _srgb_of_oklch(lightness: Any, chroma: Any, hue: Any) -> NDArray[np.float64]:
    """Ottosson's OKLab (2020), clipped to sRGB: [colour, 3] in 0 to 1."""
    lab = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=-1)  # [colour, 3]
    cone = lab @ np.array([[1, 1, 1], [0.3963377774, -0.1055613458, -0.0894841775],
                           [0.2158037573, -0.0638541728, -1.2914855480]])  # fmt: skip
    linear = cone**3 @ np.array([[4.0767416621, -1.2684380046, -0.0041960863],
                                 [-3.3077115913, 2.6097574011, -0.7034186147],
                                 [0.2309699292, -0.3413193965, 1.7076147010]])  # fmt: skip
    linear = np.clip(linear, 0, 1)
    encoded: NDArray[np.float64] = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return encoded
