"""Pictures, with Matplotlib, which is imported when the first one is drawn.

`langevin.pictures.Pictures` has those of a fit as its methods.
"""

from langevin.plots.canvas import BLUE, GREY, RED, check, figure
from langevin.plots.contours import contours_of_draws, contours_of_grid

__all__ = ["BLUE", "GREY", "RED", "check", "contours_of_draws", "contours_of_grid", "figure"]
