"""What geometry alone says of a run before it starts."""

import numpy as np

from ..partition.content import ContentBoxes

# Views looked at: their mean is known to a few percent, and reading all of a city's would take
# longer than a step.
VIEWS = 256


def cells_of_views(config, world, state, tree, cameras):
    """One line: how many cells a view meets, predicted from content boxes (design section 4).

    state: with arrays on the host; cameras: those of the training views. Collective; the line
    is for the root.
    """
    boxes = ContentBoxes(config.partition.margin)
    boxes.update(state.gaussians, state.offsets, tree, world.exchange)
    if not world.is_root:
        return None
    places = np.unique(np.linspace(0, len(cameras) - 1, VIEWS).astype(int))
    counts = [len(boxes.participants(cameras[i], config.render.near)) for i in places]
    return (
        f"by its content boxes a view meets {np.mean(counts):.1f} of {tree.cells} cells on average "
        f"({min(counts)} to {max(counts)})"
    )
