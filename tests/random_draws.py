"""What the generators of random models have in common."""

import numpy as np


class Again(Exception):
    """A draw that does not fit."""


class Draws:
    """Choices by `self.rng`."""

    def pick(self, items):
        return items[int(self.rng.integers(len(items)))]

    def chance(self, p):
        return self.rng.random() < p

    def draw(self, shape):
        return np.asarray(self.rng.uniform(-1.5, 1.5, shape))
