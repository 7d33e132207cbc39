"""Places for blocks of different size in one buffer."""

ALIGNMENT = 64  # a cache line, so that two ranks never write to the same one


class Arena:
    """First-fit allocator over ``size`` bytes. The same calls give the same places on every
    rank, so a shared buffer needs no messages to agree on them."""

    def __init__(self, size):
        self.size = size
        self.holes = [(0, size)]  # (start, end), ascending, never touching

    @staticmethod
    def rounded(count):
        """Bytes that a block of count bytes takes."""
        return -(-count // ALIGNMENT) * ALIGNMENT

    def take(self, count):
        """Start of a free block of count bytes, None when no hole is long enough."""
        count = self.rounded(count)
        for index, (start, end) in enumerate(self.holes):
            if end - start >= count:
                rest = [(start + count, end)] if end - start > count else []
                self.holes[index : index + 1] = rest
                return start
        return None

    def give(self, start, count):
        """Frees a block taken before."""
        merged = []
        for hole in sorted([*self.holes, (start, start + self.rounded(count))]):
            if merged and merged[-1][1] == hole[0]:
                merged[-1] = (merged[-1][0], hole[1])
            else:
                merged.append(hole)
        self.holes = merged
