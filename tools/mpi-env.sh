# Settings for mpirun on one machine. To be sourced; a value that is set already stays.
# Open MPI 4 reads OMPI_MCA_*, Open MPI 5 its launcher's PRTE_MCA_*; MPICH ignores both.

# Open MPI refuses root, which is who runs in a container.
if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# More ranks than cores, and waiting ranks leave their core to the others.
: "${OMPI_MCA_rmaps_base_oversubscribe:=1}"
: "${PRTE_MCA_rmaps_default_mapping_policy:=:oversubscribe}"
: "${OMPI_MCA_mpi_yield_when_idle:=1}"
export OMPI_MCA_rmaps_base_oversubscribe PRTE_MCA_rmaps_default_mapping_policy
export OMPI_MCA_mpi_yield_when_idle

# A rank has several threads: bound to one core, they would queue for it.
: "${OMPI_MCA_hwloc_base_binding_policy:=none}"
: "${PRTE_MCA_hwloc_default_binding_policy:=none}"
export OMPI_MCA_hwloc_base_binding_policy PRTE_MCA_hwloc_default_binding_policy

# Collective HDF5 writes are several times faster through ROMIO than through OMPIO.
: "${OMPI_MCA_io:=romio321}"
export OMPI_MCA_io
