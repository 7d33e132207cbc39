#!/usr/bin/env bash
# Runs the tests of the transports on 2, 3 and 4 ranks, whatever GPUs there are: ranks share them
# where they are fewer, and what needs a GPU for each rank is skipped then.
#
#   SPLAXEL_CUDA_MPI=DIR   the prefix of a CUDA-aware Open MPI: the same tests again with it
#   RANKS="2 3 4"          rank counts
#
# Needs no network, no parallel HDF5 and no pytest-mpi. Arguments go to pytest.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tools/mpi-env.sh
RANKS=${RANKS:-2 3 4}
LIMIT=${RANKS_LIMIT:-300} # seconds for each run
failed=0

# Runs the tests on $1 ranks, which expect transport $2 ("" for any); then options of mpirun.
run() {
    local ranks=$1 expected=$2
    shift 2
    echo "=== $ranks ranks, $(command -v mpirun)"
    SPLAXEL_EXPECT_TRANSPORT=$expected timeout -k 5 "$LIMIT" \
        mpirun -n "$ranks" "$@" python -m mpi4py -m pytest -q --color=no -m gpu \
        -p no:cacheprovider tests/gpu/test_transports.py "${arguments[@]}" || failed=1
}

arguments=("$@")
gpus=$(python -c 'import cupy; print(cupy.cuda.runtime.getDeviceCount())') || exit 2
for ranks in $RANKS; do
    run "$ranks" ""
done
if [ -n "${SPLAXEL_CUDA_MPI:-}" ]; then
    export OPAL_PREFIX=$SPLAXEL_CUDA_MPI PATH=$SPLAXEL_CUDA_MPI/bin:$PATH
    export LD_LIBRARY_PATH=$SPLAXEL_CUDA_MPI/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export UCX_MODULE_DIR=$SPLAXEL_CUDA_MPI/lib/ucx
    for ranks in $RANKS; do
        run "$ranks" cuda-aware -x UCX_MODULE_DIR -x LD_LIBRARY_PATH --mca pml ucx
    done
fi
echo "=== GPUs: $gpus, $([ "$failed" = 0 ] && echo "all runs passed" || echo "some runs failed")"
exit "$failed"
