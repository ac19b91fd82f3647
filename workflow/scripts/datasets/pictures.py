"""Read pictures of any format and mode the way viewers show them."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from common.errors import InputError

WHITE = (255, 255, 255, 255)
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
EIGHT_BITS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")


def is_visible(path: Path) -> bool:
    """Return whether a file is neither hidden nor the cache that Windows adds to folders of pictures."""
    return not path.name.startswith(".") and path.name != "Thumbs.db"


def read_picture(source: Path | bytes, name: object) -> Image.Image:
    """Return a picture with 8 bits per channel, without transparency.

    Its EXIF orientation is applied, transparent pixels are blended with white, and 16-bit grey is scaled to
    8 bits.

    Args:
        source: The file, or its content.
        name: The name of the file in errors.

    Raises:
        InputError: If it is not a picture, has several frames, or has pixels of an unknown range.
    """
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
            if (n_frames := getattr(opened, "n_frames", 1)) > 1:
                raise _unknown(name, f"has {n_frames} frames", "a picture of one frame")
            image = ImageOps.exif_transpose(opened)
            if image.mode in SIXTEEN_BITS:
                grey = np.asarray(image).astype(np.float64) / 257  # 65535 / 255
                image = Image.fromarray(np.round(grey).astype(np.uint8))
            elif image.mode not in EIGHT_BITS:
                raise _unknown(name, f"has pixels of kind {image.mode}", "8 or 16 bits per channel")
            if image.has_transparency_data:
                rgba = image.convert("RGBA")
                return Image.alpha_composite(Image.new("RGBA", rgba.size, WHITE), rgba).convert("RGB")
            return image.convert("L" if image.mode in ("1", "L") else "RGB")
    except UnidentifiedImageError:
        raise _unknown(name, "has none of Pillow's formats", "a picture, or a hidden file") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _unknown(name, f"cannot be read: {error}", "a picture, or a hidden file") from None


def crop_picture(picture: Image.Image, shape: Sequence[int]) -> np.ndarray:
    """Return a picture as uint8 [H, W, C] of this shape, scaled to cover it and cropped around the centre."""
    height, width, channels = shape
    fitted = ImageOps.fit(picture.convert("L" if channels == 1 else "RGB"), (width, height))
    return np.asarray(fitted, np.uint8).reshape(shape)


def _unknown(name: object, problem: str, expected: str) -> InputError:
    return InputError("unknown-picture", problem, file=name, expected=expected)
