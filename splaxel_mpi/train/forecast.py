"""What geometry alone says of a run before it starts."""

import numpy as np

# Views looked at: their mean is known to a few percent, and reading all of a city's would take
# longer than a step.
VIEWS = 256


def cells_of_views(boxes, cameras, near):
    """One line: how many cells a view meets, predicted from content boxes (design section 4).

    boxes: ContentBoxes, up to date; cameras: those of the training views; near: view depth of
    the near plane.
    """
    places = np.unique(np.linspace(0, len(cameras) - 1, VIEWS).astype(int))
    counts = (boxes.areas([cameras[i] for i in places], near) > 0).sum(axis=1)
    return (
        f"by its content boxes a view meets {np.mean(counts):.1f} of {len(boxes.boxes)} cells on "
        f"average ({min(counts)} to {max(counts)})"
    )
