#!/usr/bin/env bash
# Makes .venv: MPI, mpi4py, h5py on parallel HDF5, and this package (editable).
#
#   PYTHON=python3.11      interpreter to use (default: python3)
#   HDF5_DIR=...           a parallel HDF5 (default: h5pcc, then Debian's folder)
#   MPIRUN=srun            launcher, where it is not mpirun
#
# Calling it again does only what has changed. An interrupted run is taken up where it stopped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/mpi-env.sh
. tools/hdf5.sh

PYTHON=${PYTHON:-python3}
MPIRUN=${MPIRUN:-mpirun}
VENV=$PWD/.venv
STAMPS=$VENV/stamps
LOG=$PWD/build/env.log
mkdir -p build
trap 'echo "[env] interrupted" >&2; exit 130' INT TERM
# An activated .venv must not be the Python that makes it.
PATH=${PATH//"$VENV/bin:"/}
# The interpreter itself: a version manager's wrapper would add a tenth of a second to each call.
if found=$("$PYTHON" -c 'import sys; print(sys.executable)' 2>/dev/null); then PYTHON=$found; fi

say() { printf '[env] %s\n' "$*"; }

die() {
    printf '[env] error: %s\n' "$*" >&2
    exit 1
}

# Runs a command quietly; when it fails, shows the end of its output and the advice $1.
quietly() {
    local advice=$1
    shift
    "$@" >"$LOG" 2>&1 && return
    tail -n 15 "$LOG" >&2
    die "$advice (all output: build/env.log)"
}

# --- What the system must have ---------------------------------------------------------------

has_python() { "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; }
has_venv() { "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null; }
has_headers() {
    "$PYTHON" -c 'import os, sysconfig as s
open(os.path.join(s.get_paths()["include"], "Python.h"))' 2>/dev/null
}
has_compiler() {
    echo 'int main() { if constexpr (true) return 0; }' |
        ${CXX:-g++} -std=c++17 -fopenmp -x c++ -fsyntax-only - 2>/dev/null
}
has_mpi() { command -v mpicc >/dev/null && command -v "$MPIRUN" >/dev/null; }

# Prints a line "what|Debian packages" for each thing that is missing.
missing() {
    has_python || echo "Python 3.9 or newer as '$PYTHON'|python3"
    has_venv || echo "Python's venv module|python3-venv"
    has_headers || echo "Python's C headers|python3-dev"
    has_compiler || echo "a C++17 compiler with OpenMP|g++"
    has_mpi || echo "MPI (mpicc and $MPIRUN)|openmpi-bin libopenmpi-dev"
    find_hdf5 || echo "parallel HDF5 for that MPI|$(hdf5_package)"
}

explain_missing() {
    local packages what
    packages=$(cut -d'|' -f2 <<<"$1" | tr '\n' ' ')
    what=$(cut -d'|' -f1 <<<"$1" | paste -sd';' | sed 's/;/; /g')
    die "this machine lacks: $what. Get it by one of:
  on a cluster    module load gcc python openmpi hdf5   (names differ: 'module avail'; the HDF5 must
                  be the parallel one; when it is not found, also: export HDF5_DIR=its folder)
  Debian, Ubuntu  sudo apt-get install ${packages% }
  Fedora, RHEL    sudo dnf install gcc-c++ python3-devel openmpi-devel hdf5-openmpi-devel
                  && module load mpi/openmpi-$(uname -m)
then run 'make env' again."
}

install_missing() {
    local packages
    packages=$(cut -d'|' -f2 <<<"$1" | tr '\n' ' ')
    say "installing with apt-get: $packages"
    export DEBIAN_FRONTEND=noninteractive
    quietly "apt-get could not read its package lists: is the network or its proxy down?" \
        apt-get update -qq
    # Word splitting makes a list of the names.
    quietly "apt-get could not install $packages" \
        apt-get install -y -qq --no-install-recommends $packages
    hash -r
}

check_system() {
    local lack
    lack=$(missing)
    if [ -n "$lack" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        install_missing "$lack"
        lack=$(missing)
    fi
    [ -z "$lack" ] || explain_missing "$lack"
    find_hdf5
}

# --- Python packages ---------------------------------------------------------------------------

# Requirements of setup.cfg, one a line, with the extra "test"; h5py is built apart.
requirements() {
    "$PYTHON" - <<'PY'
from configparser import ConfigParser

cfg = ConfigParser()
cfg.read("setup.cfg", encoding="utf-8")
lines = cfg["options"]["install_requires"] + cfg["options.extras_require"]["test"]
print("\n".join(line for line in lines.split() if not line.startswith("h5py")))
PY
}

# The newest h5py that was tried; it needs Python 3.10, the one before is for 3.9.
h5py_version() {
    "$PYTHON" -c 'import sys; print("3.16.0" if sys.version_info >= (3, 10) else "3.14.0")'
}

# What a built h5py depends on: names its folder in the caches.
h5py_key() {
    local python mpi
    python=$("$PYTHON" -c 'import sys, platform
print(sys.implementation.cache_tag, platform.machine(), sep="-")')
    mpi=$({ mpicc -show; mpicc -dM -E -include mpi.h - </dev/null |
        grep -E 'OMPI_(MAJOR|MINOR|RELEASE)_VERSION|MPICH_VERSION'; } 2>/dev/null | cksum)
    echo "h5py-$(h5py_version)-$python-mpi${mpi%% *}-hdf5_$(hdf5_version)"
}

# A step runs when its stamp differs from what it depends on, and is stamped once it worked.
stale() { [ "$(cat "$STAMPS/$1" 2>/dev/null)" != "$2" ]; }
stamp() { printf '%s\n' "$2" >"$STAMPS/$1"; }

pip_install() {
    touch "$STAMPS/unfinished"
    quietly "pip could not install: without access to a package index, set HTTPS_PROXY,
PIP_INDEX_URL or PIP_FIND_LINKS to what your site offers" \
        "$VENV/bin/python" -m pip install -q --disable-pip-version-check "$@"
    rm "$STAMPS/unfinished"
}

make_venv() {
    local key
    key="$VENV $("$PYTHON" -c 'import sys; print(sys.version, sys.base_prefix)')"
    # A package that was being installed when we were stopped may look complete to pip.
    if [ ! -e "$STAMPS/unfinished" ] && ! stale venv "$key"; then return 0; fi
    say "making .venv with $("$PYTHON" --version)"
    rm -rf "$VENV"
    quietly "could not make .venv" "$PYTHON" -m venv "$VENV"
    mkdir -p "$STAMPS"
    stamp venv "$key"
}

install_packages() {
    local list
    list=$(requirements)
    stale packages "$list" || return 0
    say "installing Python packages (about a minute)"
    # The second line is what builds h5py and this package, both without build isolation:
    # that would compile mpi4py from source for many minutes. Python compiles what it imports:
    # to do it here for everything would double the time.
    # shellcheck disable=SC2086
    pip_install --prefer-binary --no-compile $list \
        'pip>=23' 'setuptools>=77' 'cython>=3,<4' pkgconfig
    check_mpi4py
    stamp packages "$list"
}

world_size() {
    timeout -k 5 60 "$MPIRUN" -n 2 "$VENV/bin/python" -c \
        'from mpi4py import MPI; print(MPI.COMM_WORLD.size)' 2>/dev/null | tr -d '\n'
}

# The wheel of mpi4py takes the first MPI library it meets: it must be the one of mpirun.
check_mpi4py() {
    [ "$(world_size)" != 22 ] || return 0
    say "the ready-made mpi4py does not fit this MPI: building it (some minutes)"
    MPICC=$(command -v mpicc) pip_install --force-reinstall --no-deps --no-cache-dir \
        --no-binary=mpi4py mpi4py
    [ "$(world_size)" = 22 ] ||
        say "warning: '$MPIRUN -n 2' does not give two ranks here; 'make test' needs that"
}

# --- h5py on parallel HDF5 ---------------------------------------------------------------------

build_h5py() {
    local target=$1 cores
    say "building h5py on parallel HDF5 $(hdf5_version) in $HDF5_LIB (two to four minutes, once)"
    cores=$(nproc)
    rm -rf build/h5py
    mkdir -p build/h5py
    printf '[build_ext]\nparallel = %s\n' "$((cores < 8 ? cores : 8))" >build/h5py.cfg
    # -O1: h5py only calls HDF5, and -O3 takes three times as long. No pip cache: it does not
    # know of HDF5_MPI.
    CC=mpicc HDF5_MPI=ON CFLAGS="-O1 -g0" DIST_EXTRA_CONFIG=$PWD/build/h5py.cfg \
        HDF5_INCLUDEDIR=$HDF5_INCLUDE HDF5_LIBDIR=$HDF5_LIB \
        quietly "h5py did not build: was the HDF5 in $HDF5_LIB made with this mpicc?" \
        "$VENV/bin/python" -m pip wheel -q --disable-pip-version-check --no-cache-dir --no-deps \
        --no-build-isolation --no-binary=h5py -w build/h5py "h5py==$(h5py_version)"
    keep_wheel build/h5py "$target"
}

# Copies the wheel in folder $1 to folder $2, which appears complete or not at all.
keep_wheel() {
    mkdir -p "$2.$$" && cp "$1"/h5py-*.whl "$2.$$/" && rm -rf "$2" && mv "$2.$$" "$2"
}

install_h5py() {
    local key here user
    key=$(h5py_key)
    stale h5py "$key" || return 0
    here=wheelhouse/$key
    user=${XDG_CACHE_HOME:-${HOME:-$PWD/build}/.cache}/splaxel-mpi/$key
    if [ ! -d "$here" ]; then
        if [ -d "$user" ]; then
            say "taking h5py from $user"
            keep_wheel "$user" "$here"
        else
            build_h5py "$here"
        fi
    fi
    [ -d "$user" ] || keep_wheel "$here" "$user" 2>/dev/null ||
        say "could not keep a copy of h5py in $user"
    pip_install --force-reinstall --no-deps "$here"/h5py-*.whl
    quietly "the h5py in $here does not work: remove it and $user" \
        "$VENV/bin/python" -c 'import h5py; assert h5py.get_config().mpi, "no MPI in h5py"'
    stamp h5py "$key"
}

# --- This package ------------------------------------------------------------------------------

install_package() {
    local changed
    changed=$(find setup.py setup.cfg pyproject.toml cuda_src -type f -not -name '*.pyc' \
        -newer "$STAMPS/package" 2>/dev/null | head -n 1) || changed=first
    if [ -z "$changed" ] && compgen -G 'splaxel_mpi/_host*.so' >/dev/null; then return 0; fi
    say "compiling the host kernels and installing splaxel_mpi"
    touch build/package.started
    quietly "splaxel_mpi did not build" "$VENV/bin/python" -m pip install -q \
        --disable-pip-version-check --no-build-isolation --no-deps -e .
    quietly "the Python packages in .venv do not fit together" "$VENV/bin/python" -m pip check
    # The time of the start: what was edited meanwhile counts as changed.
    cp -p build/package.started "$STAMPS/package"
}

check_system
make_venv
install_packages
install_h5py
install_package
say "ready: . .venv/bin/activate"
