"""Kernel sources, installed as the sub-package splaxel_mpi.cuda_src."""
