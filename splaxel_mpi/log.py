"""Messages of a run: standard error and, on rank 0, a file.

Modules log through logging.getLogger(__name__). Rank 0 tells everything from INFO on; the other
ranks speak on standard error alone, tagged, from WARNING on.
"""

import logging
import logging.handlers
import os
import sys

from .errors import UserError

NAME = "splaxel_mpi"
# kept for the log file until its place is known; reading data tells far less
EARLY_LINES = 1000


class StandardError(logging.StreamHandler):
    """Standard error, without tearing a progress bar apart.

    Records with the attribute file_only (what the bar shows already) are left to the file.
    """

    def __init__(self):
        super().__init__(sys.stderr)
        self.addFilter(lambda record: not getattr(record, "file_only", False))

    def emit(self, record):
        """Write one record; bars are cleared and drawn again below it."""
        tqdm = sys.modules.get("tqdm")
        if tqdm is None:  # no bar can be up
            super().emit(record)
            return
        try:
            tqdm.tqdm.write(self.format(record), file=self.stream)
            self.flush()
        except Exception:
            self.handleError(record)


def setup(path, rank, size, level=logging.INFO):
    """Start logging; replaces what an earlier call set up.

    path: the run's log file, made with its folders on rank 0 and continued where it exists
    (a resumed run); None: standard error only. rank, size: of the communicator. Returns the
    package's logger. Raises UserError when the file cannot be written.
    """
    early = _early()
    close()
    logger = logging.getLogger(NAME)
    logger.propagate = False
    logger.setLevel(level if rank == 0 else logging.WARNING)
    tag = f"[rank {rank}/{size}] " if rank else ""
    console = StandardError()
    console.setFormatter(_Formatter(tag + "%(warning)s%(message)s"))
    logger.addHandler(console)
    if rank == 0:
        file = logging.handlers.MemoryHandler(EARLY_LINES, logging.CRITICAL + 1, None, False)
        if path is not None:
            file = _file(path)
            for record in early:
                file.handle(record)
        logger.addHandler(file)
    return logger


def _early():
    """Records that were told before the log file was known, as the file is to repeat them."""
    handlers = logging.getLogger(NAME).handlers
    return [
        record
        for handler in handlers
        if isinstance(handler, logging.handlers.MemoryHandler)
        for record in handler.buffer
    ]


def close():
    """Flush and detach the handlers."""
    logger = logging.getLogger(NAME)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


class _Formatter(logging.Formatter):
    """Formatter with %(warning)s: the level's name where it is worth a look, else nothing."""

    def format(self, record):
        severe = record.levelno >= logging.WARNING
        record.warning = f"{record.levelname.lower()}: " if severe else ""
        return super().format(record)


def _file(path):
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        handler = logging.FileHandler(path, "a", "utf-8")
    except OSError as error:
        reason = f"the log cannot be written: {error.strerror}; move it away"
        raise UserError(f"{path}: {reason}") from None
    handler.setFormatter(_Formatter("%(asctime)s %(warning)s%(message)s"))
    return handler
