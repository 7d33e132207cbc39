#!/usr/bin/env bash
# Scaling on the GPUs of this host, in under 9 minutes on a bare machine: one table, JSON, figures.
#
# On 1, 2, 4, ... GPUs, as many as there are: the city of Gaussians of 40 M and 10 M (strong
# scaling) and of 15 M a GPU (weak), street and aerial views of 1920 x 1080; then the largest scene
# that fits. Every run has a time limit, what was left out for want of time is said. Without a GPU,
# or with SCALING_DRY=1: the same on 8 ranks of the CPU, at the size of a toy.
#
#   SPLAXEL_CUDA_MPI=PATH  a CUDA-aware Open MPI: its prefix, or a tarball of it. Without: the MPI
#                          at hand, with NCCL and through host memory
#   SCALING_WHEELS=DIR     wheels of what the machine lacks
#   SCALING_SECONDS=520    for everything
#   SCALING_RANKS=8        of the dry run
#   SCALING_SIZE=25        of its smaller city, thousands of Gaussians
#   OUT=build/scaling      folder of what comes out
#
# Needs no network, no parallel HDF5. PYTHON and MPIRUN name other programs.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tools/mpi-env.sh
PYTHON=${PYTHON:-python3}
MPIRUN=${MPIRUN:-mpirun}
TOTAL=${SCALING_SECONDS:-520}
OUT=${OUT:-build/scaling}
LEAVE=30    # seconds of a run between its last measurement and its end
LAST=15     # seconds for the table
failed=0
for name in SCALING_SECONDS SCALING_RANKS SCALING_SIZE; do
    if ! [[ ${!name:-1} =~ ^[1-9][0-9]{0,5}$ ]]; then
        echo "$name=${!name}: expected a whole number from 1 to 999999" >&2
        exit 2
    fi
done
SECONDS=0
mkdir -p "$OUT" && work=$(mktemp -d) || exit 2
# what ends the script ends the ranks, which timeout keeps in a process group of their own
trap 'rm -rf "$work"; jobs=$(jobs -p); [ -z "$jobs" ] || kill $jobs' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
exec > >(tee "$OUT/log.txt") 2>&1
export PYTHONUNBUFFERED=1

say() { echo "=== $SECONDS s: $*"; }

# Unpacks or takes SPLAXEL_CUDA_MPI; the environment is left alone where it does not run here.
cuda_mpi() {
    local prefix=$SPLAXEL_CUDA_MPI
    if [ -f "$prefix" ]; then
        mkdir "$work/mpi" && tar xf "$prefix" -C "$work/mpi" || return 1
        prefix=$(find "$work/mpi" -path '*/bin/mpirun' | head -1)
        prefix=${prefix%/bin/mpirun}
    fi
    [ -x "$prefix/bin/mpirun" ] || return 1
    local found=(
        OPAL_PREFIX="$prefix" PATH="$prefix/bin:$PATH" UCX_MODULE_DIR="$prefix/lib/ucx"
        LD_LIBRARY_PATH="$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    )
    env "${found[@]}" timeout -k 5 60 mpirun -n "$ranks" -x UCX_MODULE_DIR -x LD_LIBRARY_PATH \
        --mca pml ucx "$PYTHON" -c 'from mpi4py import MPI; MPI.COMM_WORLD.Barrier()' || return 1
    export "${found[@]}"
    launch=(mpirun -x UCX_MODULE_DIR -x LD_LIBRARY_PATH --mca pml ucx)
}

# Runs `splaxel-mpi bench` with arguments on all ranks, for at most $2 hundredths of what is left;
# $1: its name, and that of its report.
run() {
    local name=$1 seconds=$(((TOTAL - LAST - SECONDS) * $2 / 100)) status=0
    shift 2
    if [ "$seconds" -le "$LEAVE" ]; then
        say "$name: not run, no time is left"
        failed=1
        return
    fi
    say "$name, at most $seconds s"
    timeout -k 5 "$seconds" "${launch[@]}" -n "$ranks" "$PYTHON" -m splaxel_mpi bench "$@" \
        --limit $((seconds - LEAVE)) --json "$OUT/$name.json" "${backend[@]}" &
    wait $! || status=$?  # a signal interrupts wait, but no program in the foreground
    if [ "$status" != 0 ]; then
        say "$name: ended with status $status (124: longer than $seconds s); what it had done by" \
            "then is in $name.json"
        failed=1
    fi
}

if [ -n "${SCALING_WHEELS:-}" ]; then
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target "$work/site" "$SCALING_WHEELS"/*.whl || exit 2
    export PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
ranks=0
if [ "${SCALING_DRY:-0}" = 0 ]; then
    ranks=$("$PYTHON" -c 'import cupy; print(cupy.cuda.runtime.getDeviceCount())') || ranks=0
fi
"$PYTHON" setup.py -q build_ext --inplace || exit 2
launch=("$MPIRUN")
strong=(--gaussians 40M --gaussians 10M --side 1600 --count 64 --size 1920x1080)
weak=(--no-strong --per-rank 15M --side 1000 --count 32 --size 1920x1080)
fit=(--gaussians 120M)
backend=(backend.name=cuda)
if [ "$ranks" = 0 ]; then
    ranks=${SCALING_RANKS:-8}
    say "no GPU is used: a dry run on $ranks ranks of the CPU"
    size=${SCALING_SIZE:-25}
    strong=(--gaussians $((4 * size))k --gaussians "${size}k" --side 300 --size 320x180)
    weak=(--no-strong --per-rank "${size}k" --side 150 --size 320x180)
    fit=(--gaussians $((6 * size))k --side 300 --size 320x180 --share 0.7 --share 1)
    backend=(backend.name=host backend.threads=1)
    memory=(backend.memory=$((size * 2))M)
else
    memory=()
    transports=(nccl staged)
    if [ -n "${SPLAXEL_CUDA_MPI:-}" ]; then
        if cuda_mpi; then
            transports=(cuda-aware staged nccl)
        else
            say "$SPLAXEL_CUDA_MPI does not run here: the MPI at hand is taken"
        fi
    fi
    for name in "${transports[@]}"; do
        strong+=(--transport "$name")
        weak+=(--transport "$name")
    done
    say "GPUs: $ranks"
fi
for more in 2 4 8 $((2 * ranks)); do
    if [ "$more" -gt "$ranks" ]; then strong+=(--model "$more"); fi
done
rm -f "$OUT"/{strong,weak,fit,scaling}.json

run strong 55 scaling "${strong[@]}"
run weak 45 scaling "${weak[@]}"
run fit 100 fit "${fit[@]}" ${memory[@]+"${memory[@]}"}
reports=()
for name in strong weak; do
    if [ -s "$OUT/$name.json" ]; then reports+=("$OUT/$name.json"); fi
done
say "all runs"
if [ ${#reports[@]} = 0 ]; then
    say "nothing was measured"
    exit 1
fi
"$PYTHON" -m splaxel_mpi bench scaling-table "${reports[@]}" --json "$OUT/scaling.json" \
    --figures "$OUT/figures" || failed=1
say "$([ "$failed" = 0 ] && echo "all runs ended well" || echo "some runs did not end well"):" \
    "$OUT/scaling.json, $OUT/fit.json, $OUT/figures, $OUT/log.txt"
exit "$failed"
