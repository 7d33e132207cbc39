"""Builds the host kernels; everything else is in setup.cfg."""

import os
import sys
from glob import glob
from multiprocessing.pool import ThreadPool

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Each compiler takes up to about 1 GB, and login nodes with a hundred cores are shared.
MOST_JOBS = 8


class ParallelBuild(build_ext):
    """build_ext that compiles the files of an extension side by side, and only stale ones."""

    def build_extension(self, ext):
        # One folder for every way to build: an editable install would get an empty one each time.
        tag = f"{self.plat_name}-{sys.implementation.cache_tag}"
        self.build_temp = os.path.join("build", f"temp.{tag}")
        serial = self.compiler.compile

        def compile_one(source, options):
            target = self.compiler.object_filenames([source], output_dir=options["output_dir"])[0]
            inputs = [source, "setup.py", *options["depends"]]
            if os.path.exists(target) and all(older(name, target) for name in inputs):
                return [target]
            return serial([source], **options)

        def compile_all(sources, **options):
            with ThreadPool(jobs()) as pool:
                parts = pool.map(lambda source: compile_one(source, options), sources, 1)
            return [name for part in parts for name in part]

        self.compiler.compile = compile_all
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = serial


def older(first, second):
    return os.path.getmtime(first) < os.path.getmtime(second)


def jobs():
    if "MAX_JOBS" in os.environ:
        return max(1, int(os.environ["MAX_JOBS"]))
    return min(MOST_JOBS, len(os.sched_getaffinity(0)))


# No -march=native: a wheel must run on any x86-64 node, the kernels dispatch at run time.
# Contraction is off so that a*b+c rounds alike on every rank; kernels ask for fma by name.
# Roots need not set errno, which would keep them from being vectorised.
setup(
    cmdclass={"build_ext": ParallelBuild},
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
    ],
)
