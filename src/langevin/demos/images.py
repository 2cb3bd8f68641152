"""Images of digits, one a row, with grey values from 0 to 1: MNIST from its files, or those of scikit-learn."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np

from langevin.errors import DataError


class Images(NamedTuple):
    """Images, one a row, and the digits that they show."""

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray

    @property
    def side(self) -> int:
        """Pixels along an edge."""
        return round(self.train.shape[1] ** 0.5)

    def binarised(self, threshold: float) -> Images:
        """1 where a pixel is above the threshold, 0 elsewhere."""
        train, test = ((images > threshold).astype(np.float32) for images in (self.train, self.test))
        return self._replace(train=train, test=test)


def digits() -> Images:
    """The 1,797 images of 8 x 8 pixels that come with scikit-learn; every fifth is for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("The digits come with scikit-learn: pip install scikit-learn, or give MNIST.") from error
    found = load_digits()
    images, labels = (found.data / 16).astype(np.float32), found.target
    test = np.arange(len(images)) % 5 == 4
    return Images(images[~test], labels[~test], images[test], labels[test])


def mnist(folder: str | Path) -> Images:
    """MNIST from its four idx files, compressed or not."""
    parts = []
    for kind in ("train", "t10k"):
        for what in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            parts.append(_idx(Path(folder), f"{kind}-{what}"))
    train, train_labels, test, test_labels = parts
    train, test = ((images.reshape(len(images), -1) / 255).astype(np.float32) for images in (train, test))
    return Images(train, train_labels.astype(np.int32), test, test_labels.astype(np.int32))


def _idx(folder: Path, name: str) -> np.ndarray:
    for path, opener in ((folder / name, open), (folder / f"{name}.gz", gzip.open)):
        if path.exists():
            with opener(path, "rb") as file:
                content = file.read()
            axes = content[3]
            shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
            return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
    raise DataError(f"There is no {name} (nor {name}.gz) in {folder}.")
