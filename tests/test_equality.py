"""P ranks are one rank: image and gradients of any partition equal plain 3DGS."""

import numpy as np
import pytest

from chain import DEFAULT_STOP, EXACT, HALF, compare, exchange_settings, self_exchange


@pytest.mark.parametrize("real", [np.float64, np.float32])
@pytest.mark.parametrize("cells", [2, 3, 5, 8])
def test_cells_of_one_rank_equal_plain(cells, real):
    compare(self_exchange(), cells, real, 0.0, EXACT[real], seed=cells)


@pytest.mark.parametrize("real", [np.float64, np.float32])
def test_one_rank_is_its_own_owner(real):
    compare(self_exchange(), 3, real, 0.0, EXACT[real], settings=exchange_settings("owner"))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", ["overlap", "owner"])
@pytest.mark.parametrize("real", [np.float64, np.float32])
@pytest.mark.parametrize("cells", [0, 1, 5, 8])
def test_ranks_equal_plain(comm, cells, real, strategy):
    """cells 0: one a rank; 1: all other ranks own nothing; 5 and 8: several on a rank."""
    from splaxel_mpi.mpi.host import HostExchange

    exchange, settings = HostExchange(comm), exchange_settings(strategy)
    compare(exchange, cells or comm.size, real, 0.0, EXACT[real], seed=3, settings=settings)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", ["overlap", "owner"])
@pytest.mark.parametrize("real", [np.float64, np.float32])
def test_half_precision_streams_stay_close(comm, strategy, real):
    from splaxel_mpi.mpi.host import HostExchange

    exchange, settings = HostExchange(comm), exchange_settings(strategy, "float16")
    compare(exchange, 5, real, 0.0, HALF, seed=3, settings=settings)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("cells", [0, 1])  # 1: ranks that have nothing to give back
def test_absolute_gradients_of_ranks_equal_plain(comm, cells):
    """Those of ghosts return to their owners too."""
    from splaxel_mpi.mpi.host import HostExchange

    exchange = HostExchange(comm)
    compare(exchange, cells or comm.size, np.float64, 0.0, EXACT[np.float64], seed=3, sides=True)


@pytest.mark.mpi(min_size=2)
def test_default_stop_stays_close(comm):
    from splaxel_mpi.mpi.host import HostExchange

    exchange = HostExchange(comm)
    compare(exchange, comm.size, np.float32, 1e-4, DEFAULT_STOP, absolute=True, seed=5)
