"""How long the predictor takes, learned from the batches it answered."""

from __future__ import annotations

import math

from carpool.scheduling import tuning


class ServiceModel:
    """Seconds as an affine function of the batch size, by recursive least squares with forgetting.

    While only one size has been seen, all of its time counts as fixed: the optimistic guess, under which a larger
    batch is worth trying. `spread` is the relative standard deviation of what the model did not explain.
    """

    # State: exponentially weighted sums over (size, seconds), the two coefficients, the residual's variance, and how
    # many samples in a row were far off.
    def __init__(self) -> None:
        self.samples = 0
        self.fixed = 0.0
        self.slope = 0.0
        self.is_varied = False  # whether several sizes were seen, so that the slope means something
        self.changes = 0  # how often the predictor turned out to be another
        self._variance = 0.0
        self._surprises = 0  # how many in a row were far off, negative when far below
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def __call__(self, size: float) -> float:
        """Expected seconds for a batch of `size` instances."""
        return self.fixed + self.slope * size

    @property
    def is_known(self) -> bool:
        """Whether at least one batch was observed."""
        return self.samples > 0

    @property
    def is_trusted(self) -> bool:
        """Whether enough batches were observed to decide by."""
        return self.samples >= tuning.ENOUGH

    @property
    def mean_size(self) -> float:
        """The weighted mean of the sizes seen, where the model knows most."""
        return self._x / self._n if self._n else 0.0

    @property
    def spread(self) -> float:
        """Relative standard deviation of the residuals."""
        return math.sqrt(self._variance)

    def pessimistic(self, size: float) -> float:
        """Seconds that a batch of `size` will rarely exceed."""
        return self(size) * (1 + min(tuning.LARGEST_MARGIN, tuning.Z * self.spread))

    def observe(self, size: int, seconds: float) -> None:
        """A batch of `size` took `seconds`."""
        self._judge(size, seconds)
        self._scale(tuning.FORGETTING)
        self._n += 1
        self._x += size
        self._y += seconds
        self._xx += size * size
        self._xy += size * seconds
        self.samples += 1
        mean_x, mean_y = self._x / self._n, self._y / self._n
        variance = self._xx / self._n - mean_x * mean_x
        self.is_varied = variance > 1e-3 * mean_x * mean_x + 1e-6
        if self.is_varied:
            slope = (self._xy / self._n - mean_x * mean_y) / variance
            self.slope = min(max(slope, 0.0), mean_y / mean_x)
        self.fixed = max(0.0, mean_y - self.slope * mean_x)

    def let_go(self) -> None:
        """Keep little of what was learned: the predictor is not what it was."""
        self._scale(tuning.KEPT_AFTER_CHANGE)
        self._surprises = 0

    def _scale(self, keep: float) -> None:
        self._n *= keep
        self._x *= keep
        self._y *= keep
        self._xx *= keep
        self._xy *= keep

    def _judge(self, size: int, seconds: float) -> None:
        """Learn how far off the model was, and notice when that is a change rather than noise."""
        expected = self(size)
        if not self.samples or expected <= 0:
            return
        residual = seconds / expected - 1
        if abs(residual) < 1:  # more than that is not noise but change
            self._variance += tuning.SPREAD_WEIGHT * (residual * residual - self._variance)
        is_surprise = residual > tuning.SURPRISE or residual < 1 / (1 + tuning.SURPRISE) - 1
        same_side = (residual > 0) == (self._surprises > 0)
        step = 1 if residual > 0 else -1
        self._surprises = (self._surprises + step if same_side else step) if is_surprise else 0
        if abs(self._surprises) >= tuning.SURPRISES:
            self.changes += 1
            self.let_go()
