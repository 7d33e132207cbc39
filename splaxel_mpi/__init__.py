"""Train 3D Gaussian Splatting of large scenes on MPI ranks by exchanging partial pixels."""

__version__ = "0.1.0"
