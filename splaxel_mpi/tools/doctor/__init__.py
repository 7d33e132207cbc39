"""Looks at a machine before a run does (splaxel-mpi doctor)."""
