"""Foretells a run without pixels and without a GPU (splaxel-mpi plan)."""
