# Finds the parallel HDF5 that goes with mpicc. To be sourced.
#
# find_hdf5 sets HDF5_INCLUDE (the folder of hdf5.h) and HDF5_LIB (of libhdf5.so), or returns 1.

# Settings of the HDF5 whose headers are in $1: some systems have one file for each word size.
hdf5_settings() { cat "$1"/H5pubconf*.h 2>/dev/null; }

# "openmpi" or "mpich": what Debian calls the MPI that mpicc belongs to.
mpi_flavour() {
    if mpicc -show 2>/dev/null | grep -q mpich; then echo mpich; else echo openmpi; fi
}

# Debian's HDF5 fits Debian's MPI only.
hdf5_package() { echo "libhdf5-$(mpi_flavour)-dev"; }

hdf5_candidates() {
    local compiler
    printf '%s\n' "${HDF5_DIR:-}" "${HDF5_ROOT:-}" "${HDF5_HOME:-}"
    compiler=$(command -v h5pcc || true)
    [ -z "$compiler" ] || dirname "$(dirname "$(readlink -f "$compiler")")"
    echo "/usr/lib/$(gcc -print-multiarch 2>/dev/null)/hdf5/$(mpi_flavour)"
}

# The first folder of the arguments after $1 that has a file $1.
folder_with() {
    local name=$1 folder
    shift
    for folder; do
        [ ! -e "$folder/$name" ] || { echo "$folder"; return; }
    done
    return 1
}

find_hdf5() {
    local folder
    while read -r folder; do
        [ -n "$folder" ] || continue
        # Fedora keeps the headers in MPI_INCLUDE, which its MPI modules set.
        HDF5_INCLUDE=$(folder_with hdf5.h "$folder/include" "${MPI_INCLUDE:-}") || continue
        HDF5_LIB=$(folder_with libhdf5.so "$folder/lib" "$folder/lib64" "$folder") || continue
        hdf5_settings "$HDF5_INCLUDE" | grep -q 'define H5_HAVE_PARALLEL 1' && return
    done < <(hdf5_candidates)
    return 1
}

hdf5_version() {
    hdf5_settings "$HDF5_INCLUDE" | sed -n 's/.*define H5_VERSION "\(.*\)"/\1/p' | head -n 1
}
