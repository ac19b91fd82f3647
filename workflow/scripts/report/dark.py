"""Compute colours for charts on a dark page. Hue and order of lightness stay as in the printed figures."""

import colorsys

from matplotlib.colors import to_hex, to_rgb

PAPER = "#171717"  # Background of the dark page.
LIGHTEST, DARKEST = (0.88, 0.55)  # Lightness of lines in HLS; at DARKEST the contrast with PAPER is above 3.
LUMINANCE = (0.2126, 0.7152, 0.0722)  # Weights of linear red, green and blue.


def dark_colour(colour: str) -> str:
    """Return a colour for a dark page: same hue and saturation, but lighter."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    return to_hex(colorsys.hls_to_rgb(hue, DARKEST + lightness * (LIGHTEST - DARKEST), saturation))


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it, from 1 to 21."""
    low, high = sorted(
        sum(
            weight * (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
            for weight, part in zip(LUMINANCE, to_rgb(colour), strict=True)
        )
        for colour in (first, second)
    )
    return (high + 0.05) / (low + 0.05)
