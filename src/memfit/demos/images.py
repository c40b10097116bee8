"""Images that need nothing from outside: soft coloured discs on a gradient, the same on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np

Images = np.ndarray[Any, np.dtype[np.float32]]


def draw_images(count: int, size: int, seed: int = 0) -> Images:
    """`count` images of `size` × `size` × 3 with values from 0 to 1."""
    random = np.random.default_rng(seed)
    axis = np.linspace(0, 1, size, dtype=np.float32)
    y, x = np.meshgrid(axis, axis, indexing="ij")
    images = np.empty((count, size, size, 3), np.float32)
    for image in images:
        corner, opposite = random.random((2, 3), np.float32)
        image[:] = corner + (opposite - corner) * ((x + y) / 2)[..., None]
        for _ in range(4):
            _draw_disc(image, x, y, random)
    return images


def _draw_disc(image: Images, x: Images, y: Images, random: np.random.Generator) -> None:
    (center_x, center_y), radius = random.random(2, np.float32), 0.05 + 0.2 * random.random()
    distance = np.hypot(x - center_x, y - center_y)
    cover = np.clip((radius - distance) * 40 + 0.5, 0, 1, dtype=np.float32)[..., None]
    image += cover * (random.random(3, np.float32) - image)
