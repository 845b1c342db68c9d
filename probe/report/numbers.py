"""Numbers as a reader wants them: columns whose decimal points stand below each other, and no false zeros."""

import math
from collections.abc import Sequence

from markupsafe import Markup

from probe.report.sections import Cell


def is_numeric(cells: Sequence[Cell]) -> bool:
    """True if the column holds numbers and nothing else but gaps."""
    return any(cell is not None for cell in cells) and all(
        cell is None or (isinstance(cell, (int, float)) and not isinstance(cell, bool)) for cell in cells
    )


def percent(share: float) -> str:
    """Give a share as "12.3 %", a missing one as a dash."""
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def column_text(cells: Sequence[Cell], *, missing: str) -> tuple[str, ...]:
    """Give the cells of one column as text; floats share one number of decimals, an exact zero is `0`.

    A number too small for these decimals reads `<0.001`, never `0.000`.
    """
    floats = [abs(cell) for cell in cells if isinstance(cell, float) and math.isfinite(cell)]
    decimals = _decimals(max(floats, default=0.0))
    return tuple(_cell_text(cell, decimals=decimals, missing=missing) for cell in cells)


def value_html(value: float | None, *, missing: str) -> Markup:
    """Give one number of any size with few digits, powers of ten raised: 3.2 × 10<sup>−7</sup>."""
    if value is None or not math.isfinite(value):
        return Markup.escape(missing if value is None or math.isnan(value) else ("∞" if value > 0 else "−∞"))
    if value == int(value) and abs(value) < 1e6:
        return Markup(_signed(str(int(value))))
    if 1e-3 <= abs(value) < 1e6:
        return Markup(_signed(f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"))
    digits, exponent = f"{value:.1e}".split("e")
    return Markup(f"{_signed(digits)} × 10<sup>{_signed(str(int(exponent)))}</sup>")


def _decimals(largest: float) -> int:
    if largest == 0:
        return 0
    return min(max(2 - math.floor(math.log10(largest)), 1), 6) if largest < 0.1 or largest >= 10 else 3


def _cell_text(cell: Cell, *, decimals: int, missing: str) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return missing
    if not isinstance(cell, float):
        return _signed(str(cell)) if isinstance(cell, int) else cell
    if math.isinf(cell):
        return "∞" if cell > 0 else "−∞"
    if cell == 0:
        return "0"
    text = f"{cell:.{decimals}f}"
    if float(text) == 0:
        step = f"{10.0**-decimals:.{decimals}f}"
        return f"<{step}" if cell > 0 else f">−{step}"
    return _signed(text)


def _signed(text: str) -> str:
    return text.replace("-", "−")
