from __future__ import annotations

import numpy as np

from memfit.demo.rows import draw_images


def test_the_images_are_the_same_every_time_and_all_different() -> None:
    images = draw_images(6, 32)
    assert images.shape == (6, 32, 32, 3)
    assert images.dtype == np.float32
    assert (images >= 0).all()
    assert (images <= 1).all()
    assert np.array_equal(images, draw_images(6, 32))
    assert len({image.tobytes() for image in images}) == 6
    assert not np.array_equal(images, draw_images(6, 32, seed=1))
