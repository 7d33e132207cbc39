"""`python -m splaxel_mpi` is `splaxel-mpi`."""

from .cli import main

if __name__ == "__main__":
    main()
