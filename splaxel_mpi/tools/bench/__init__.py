"""Benchmarks of the parts, `splaxel-mpi bench`: how fast, how far from the hardware's floor."""
