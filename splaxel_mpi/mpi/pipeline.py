"""Work that stops where it has begun an exchange, so that other work can go on meanwhile.

Such work is a generator: it yields after each start_alltoallv and the like, and takes what came
when it is resumed.
"""

from collections import deque


def alone(work):
    """Result of work with nothing beside it."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def in_flight(works, depth, progress):
    """Results of works, in their order, at most ``depth`` of them under way.

    works: iterable of generators, each asked for when its turn comes; progress: function that
    lets exchanges go on. In each round every work under way goes on to its next stop, the oldest
    first, and a new one joins. All of them make the same stops but for one at most, which a work
    may leave out (strips of colour that nobody needs). So an older one, a stop ahead when the next
    joins, is never behind: what each does between two stops comes in the order of the works,
    whatever the depth; and ranks with equal works begin their exchanges in the same order. While
    one has sent the pixels that it drew the next one draws.
    """
    queue, works = deque(), iter(works)
    while True:
        joining = next(works, None) if len(queue) < depth else None
        if joining is not None:
            queue.append(joining)
        if not queue:
            return
        for work in list(queue):
            try:
                next(work)
            except StopIteration as end:
                queue.remove(work)
                yield end.value
            if len(queue) > 1:  # or whoever has begun an exchange waits for it next
                progress()
