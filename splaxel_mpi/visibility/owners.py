"""Which rank composes and supervises which part of a view (design section 6, strategy owner)."""

import numpy as np

from ..backends.host_library import call

# Side of a macro-tile in tiles. Its owner gets what others hold in it and neighbours get strips of
# its border: small macro-tiles follow what ranks hold, large ones have less border. On aerial
# views of a city of 4 M Gaussians over 8 cells, MB a view: 16 tiles 6.21, 8 tiles 5.62, 4 tiles
# 5.47, 2 tiles 5.47, 1 tile 5.50; on street views all of them 24.5.
MACRO = 4


def assign(held, camera, load):
    """Owner of every tile of a view, (tile_count,) int32, the same on every rank.

    held: (ranks, tile_count) bool; load: (ranks,) int64, pixels that ranks own already. The owner
    of a macro-tile is the rank that holds most of its pixels; of equals the one that holds most of
    the view, since strips travel where owners change, then the one with the least load. Macro-tiles
    that nobody holds go in runs to the participants of the view, so that loads become even.
    """
    held, load = np.ascontiguousarray(held, bool), np.ascontiguousarray(load, np.int64)
    owner = np.empty(camera.tile_count, np.int32)
    call("spx_assign_owners", held, len(held), camera.width, camera.height, load, MACRO, owner)
    return owner
