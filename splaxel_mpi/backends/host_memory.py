"""Memory of the host, as the host backend takes it."""

from ..data.budget import memory_limit

MEMINFO = "/proc/meminfo"


class HostMemory:
    """Interface shared with cuda_memory.DeviceMemory; numpy needs no more of it."""

    spent = False  # numpy has no reserve: Linux promises memory that it may not have

    def available(self):
        """Bytes that all ranks of this node together may still take."""
        try:
            with open(MEMINFO, encoding="ascii") as file:
                lines = dict(line.split(":", 1) for line in file)
            free = int(lines["MemAvailable"].split()[0]) * 1024
        except (OSError, KeyError, ValueError):
            return memory_limit()
        return min(free, memory_limit())

    def figures(self):
        """Bytes by name, for the metrics."""
        return {}

    def hold(self, size):
        """Nothing is held back."""

    def renew(self):
        """See DeviceMemory."""
