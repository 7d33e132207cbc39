#!/usr/bin/env bash
# Runs all tests: serially, then on 2, 3 and 4 ranks. Arguments go to every pytest.
#
# The last line counts the tests of all runs; the exit status is 0 only if every run ended well.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/mpi-env.sh
. .venv/bin/activate
# Workers and ranks have more threads than there are cores: who waits must not spin.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

RESULTS=build/test-results
SERIAL_LIMIT=${SERIAL_LIMIT:-1200}   # seconds for the serial run
WORKERS=${WORKERS:-2}               # of the serial run: each takes whole files
RANKS_LIMIT=${RANKS_LIMIT:-600}     # seconds for each run under mpirun
MPIRUN=${MPIRUN:-mpirun}
failed_runs=0

# Asked here: under mpirun every rank believes that it writes to a terminal.
if [ -t 1 ] && [ "${CI:-}" != true ]; then color=yes; else color=no; fi
rm -rf "$RESULTS"
mkdir -p "$RESULTS"

# Runs pytest as $1, within $2 seconds, behind the launcher of the remaining arguments up to --.
# Exit status 5 is "no tests": so it is while there are none with the mark mpi.
run() {
    local name=$1 limit=$2 status=0 launcher=()
    shift 2
    while [ "$1" != -- ]; do launcher+=("$1"); shift; done
    shift
    printf '\n=== %s ===\n' "$name"
    timeout -k 5 "$limit" "${launcher[@]}" -m pytest -q --color="$color" \
        --junitxml="$RESULTS/$name.xml" "$@" || status=$?
    case $status in
    0 | 5) ;;
    *)
        failed_runs=$((failed_runs + 1))
        printf '=== %s: failed with exit status %s (124: longer than %s seconds)\n' \
            "$name" "$status" "$limit"
        ;;
    esac
}

# Files start in the order of collection, slow ones first, instead of by their number of tests.
run serial "$SERIAL_LIMIT" python -- -n "$WORKERS" --dist loadfile --no-loadscope-reorder \
    -m "not mpi and not gpu" "$@"
# What tools print and files hold is seen on 2 ranks: such tests have a mark.
for ranks in 2 3 4; do
    marks="mpi and not gpu"
    [ "$ranks" = 2 ] || marks+=" and not up_to_2"
    # Signals do not interrupt a rank that waits inside MPI: the limit of a test needs a thread.
    run "ranks-$ranks" "$RANKS_LIMIT" "$MPIRUN" -n "$ranks" python -m mpi4py -- --only-mpi \
        -m "$marks" -p no:cacheprovider --timeout-method=thread "$@"
done

echo
python tools/count_tests.py "$RESULTS" "$failed_runs"
