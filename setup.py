"""Builds the host kernels; everything else is in setup.cfg."""

from glob import glob

from setuptools import Extension, setup

# No -march=native: a wheel must run on any x86-64 node, the kernels dispatch at run time.
# Contraction is off so that a*b+c rounds alike on every rank; kernels ask for fma by name.
# Roots need not set errno, which would keep them from being vectorised.
setup(
    ext_modules=[
        Extension(
            "splaxel_mpi._host",
            sorted(glob("cuda_src/host/*.cpp")),
            depends=sorted(glob("cuda_src/host/*.h") + glob("cuda_src/math/*.cuh")),
            include_dirs=["cuda_src"],
            extra_compile_args=[
                "-O3",
                "-std=c++17",
                "-fopenmp",
                "-ffp-contract=off",
                "-fno-math-errno",
                "-Wno-psabi",
            ],
            extra_link_args=["-fopenmp"],
        )
    ]
)
