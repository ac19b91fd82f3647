"""Compute colours for charts on a dark page: hue and order of lightness stay those of the printed figures.

Colours are converted in Oklab (B. Ottosson, "A perceptual color space for image processing", 2020), in which
equal steps of lightness look equal.
"""

import numpy as np
from numpy.typing import NDArray

PAPER = "#171717"  # of the dark page
LIGHTEST, DARKEST = 0.84, 0.54  # of lines, in Oklab; at DARKEST the contrast with PAPER is above 3
SOURCE_RANGE = (0.3, 0.8)  # of the lightness of colours in print, mapped to that from DARKEST to LIGHTEST
CHROMA_STEPS = 50

_TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def dark_colour(colour: str) -> str:
    """Return a colour for a dark page: same hue, lighter, and as saturated as the screen can show."""
    lightness, *chroma = to_oklab(colour)
    low, high = SOURCE_RANGE
    share = float(np.clip((lightness - low) / (high - low), 0, 1))
    target = DARKEST + share * (LIGHTEST - DARKEST)
    for scale in np.linspace(1, 0, CHROMA_STEPS):
        rgb = _from_oklab(np.array([target, *(scale * np.array(chroma))]))
        if rgb.min() >= 0 and rgb.max() <= 1:
            break
    return _hex(np.clip(rgb, 0, 1))


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it, from 1 to 21."""
    low, high = sorted(float(_linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (first, second))
    return (high + 0.05) / (low + 0.05)


def to_oklab(colour: str) -> NDArray[np.float64]:
    """Return lightness and the two chroma coordinates of a colour."""
    return _TO_LAB @ np.cbrt(_TO_CONES @ _linear(colour))


def _from_oklab(lab: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return linear red, green and blue, which may lie outside 0 to 1."""
    return np.linalg.solve(_TO_CONES, np.linalg.solve(_TO_LAB, lab) ** 3)


def _linear(colour: str) -> NDArray[np.float64]:
    """Return linear red, green and blue of a colour like #004488."""
    encoded = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def _hex(linear: NDArray[np.float64]) -> str:
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * part):02x}" for part in encoded)
