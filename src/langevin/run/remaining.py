"""How long a run will still take, told from how fast it was of late."""

from __future__ import annotations

from langevin.contracts import Chunk

# So long it is watched before anything is said.
LEAST_SECONDS = 1.0
# The speed is that of the latest part of a phase: early warm-up has other trajectories than late.
LATE = 0.5


class Remaining:
    """The speed of a phase, and the time left for the whole run."""

    def __init__(self) -> None:
        self._phase, self._has_draws = "", False
        self._seen: list[tuple[float, int]] = []

    def note(self, chunk: Chunk, now: float) -> None:
        """Learns from a chunk that ended now. The first one of a phase may have compiled, and only begins the count."""
        if chunk.phase != self._phase:
            self._phase, self._seen, self._has_draws = chunk.phase, [], False
        self._has_draws |= bool(chunk.draws)
        self._seen.append((now, chunk.done))
        began = self._seen[0][0]
        while len(self._seen) > 2 and self._seen[1][0] < now - max(LATE * (now - began), LEAST_SECONDS):
            self._seen.pop(1)

    def left(self, chunk: Chunk) -> float | None:
        """Seconds until the run is over; None if it cannot be told yet."""
        # Draws come in the last phase only.
        later = 0 if self._has_draws else chunk.later
        if later is None or len(self._seen) < 3:
            return None
        (since, before), (now, done) = self._seen[1], self._seen[-1]
        if now - since < LEAST_SECONDS / 2 or done <= before:
            return None
        return (max(chunk.total - done, 0) + later) * (now - since) / (done - before)
