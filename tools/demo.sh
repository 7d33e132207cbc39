#!/usr/bin/env bash
# Makes the synthetic city once, trains it on 4 ranks, and says where the results are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/mpi-env.sh
. .venv/bin/activate

run() {
    printf '\n$ %s\n' "$*"
    "$@"
}

# The folder appears whole or not at all: an interrupted one is made again.
if [ ! -d scenes/city ]; then
    mkdir -p scenes
    run mpirun -n 2 splaxel-mpi synth city scenes/city
fi
run mpirun -n 4 splaxel-mpi train configs/city.yaml

echo
echo "Results:"
find runs/city -maxdepth 2 -type f | sort |
    sed -n -E '/summary\.json$|\.(png|ply|h5)$/s/^/  /p'
