"""How many blocks of a kernel a multiprocessor holds, from driver attributes through PyCUDA."""

from dataclasses import dataclass

# CUDA gives registers to a warp in pieces of 256 and takes 1 KiB of shared memory a block for
# itself on all architectures that are built for; shared memory comes in pieces of 128 bytes.
REGISTER_UNIT, SHARED_UNIT, SHARED_RESERVE = 256, 128, 1024
WARP = 32
# A multiprocessor has four partitions, each with registers and warps of its own.
PARTITIONS = 4


@dataclass
class Limits:
    """What one multiprocessor has."""

    threads: int
    blocks: int
    registers: int
    shared: int  # bytes


def resident_blocks(limits, registers, shared, threads):
    """Blocks of `threads` threads that fit a multiprocessor at once.

    registers: of a thread; shared: bytes of a block, static and dynamic.
    """
    warps = -(-threads // WARP)
    pieces = max(1, -(-registers * WARP // REGISTER_UNIT)) * REGISTER_UNIT
    by_registers = PARTITIONS * (limits.registers // PARTITIONS // pieces) // warps
    taken = -(-(shared + SHARED_RESERVE) // SHARED_UNIT) * SHARED_UNIT
    return min(limits.threads // (warps * WARP), limits.blocks, by_registers,
               limits.shared // taken)


# What the report tells of a device: attribute, in words, divisor and unit.
ATTRIBUTES = (
    ("MULTIPROCESSOR_COUNT", "multiprocessors", 1, ""),
    ("CLOCK_RATE", "clock", 1e3, " MHz"),
    ("MEMORY_CLOCK_RATE", "memory clock", 1e3, " MHz"),
    ("GLOBAL_MEMORY_BUS_WIDTH", "memory bus", 1, " bits"),
    ("L2_CACHE_SIZE", "L2 cache", 1 << 20, " MiB"),
    ("MAX_THREADS_PER_MULTIPROCESSOR", "threads a multiprocessor", 1, ""),
    ("MAX_REGISTERS_PER_MULTIPROCESSOR", "registers a multiprocessor", 1, ""),
    ("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", "shared memory a multiprocessor", 1 << 10, " KiB"),
)


class Device:
    """The first GPU as PyCUDA's driver interface sees it."""

    def __init__(self, driver):
        self.driver = driver
        device = driver.Device(0)
        self.context = device.retain_primary_context()
        major, minor = device.compute_capability()
        self.arch, self.name = f"sm_{major}{minor}", device.name()
        names = driver.device_attribute
        self.attributes = [f"memory {device.total_memory() / (1 << 30):.1f} GiB"]
        for name, words, unit, suffix in ATTRIBUTES:
            if hasattr(names, name):  # each release of PyCUDA knows its own
                value = device.get_attribute(getattr(names, name)) / unit
                self.attributes.append(f"{words} {value:g}{suffix}")
        self.limits = Limits(
            device.get_attribute(names.MAX_THREADS_PER_MULTIPROCESSOR),
            _blocks(device, names),
            device.get_attribute(names.MAX_REGISTERS_PER_MULTIPROCESSOR),
            device.get_attribute(names.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        )

    def shown(self, path, arch, usage):
        """Columns of the report: threads of a block, blocks and warps of a multiprocessor.

        The largest block that the kernel allows, without dynamic shared memory. path: binary;
        empty for another architecture than the GPU's.
        """
        if arch.rstrip("a") != self.arch:
            return ""
        self.context.push()
        try:
            function = self.driver.module_from_file(str(path)).get_function(usage.kernel)
            attribute = self.driver.function_attribute
            threads = function.get_attribute(attribute.MAX_THREADS_PER_BLOCK)
            registers = function.get_attribute(attribute.NUM_REGS)
            shared = function.get_attribute(attribute.SHARED_SIZE_BYTES)
        finally:
            self.context.pop()
        blocks = resident_blocks(self.limits, registers, shared, threads)
        return f" {threads:8d} {blocks:6d} {blocks * -(-threads // WARP):6d}"


def _blocks(device, names):
    """Blocks of a multiprocessor, whatever their size: 16 where PyCUDA has no name for it,
    which every architecture since sm_75 has at least."""
    name = getattr(names, "MAX_BLOCKS_PER_MULTIPROCESSOR", None)
    return 16 if name is None else device.get_attribute(name)


def find_device():
    """(Device or None, why in words)."""
    try:
        import pycuda.driver as driver
    except ImportError:
        return None, "needs PyCUDA (pip install -e '.[pycuda]') on a node with a GPU"
    try:
        driver.init()
        device = Device(driver)
    except driver.Error as error:
        return None, f"PyCUDA finds no GPU: {error}"
    return device, f"of {device.name} ({device.arch}), largest blocks, no dynamic shared memory"
