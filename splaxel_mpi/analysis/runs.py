"""The folder of a run, whatever state the run is in."""

import json
import os
from pathlib import Path

from ..checkpoint.resume import checkpoints
from ..errors import UserError
from .checkpoints import Checkpoint
from .metrics import Metrics

# A summary takes 1 kB and the settings some 10 kB: beyond this a file is something else.
MOST_TEXT = 16 << 20
# Bytes at the end of a log that are looked at for its last lines.
LOG_TAIL = 1 << 16


class Run:
    """A run's folder, <run.folder>/<run.name>: finished, under way or interrupted.

    Nothing is read before it is asked for. Raises UserError for a folder without any file of a
    run.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise UserError(f"{folder}: no such folder; name that of a run, such as runs/city")
        marks = ("config.yaml", "metrics.h5", "summary.json", "checkpoints")
        if not any((self.folder / name).exists() for name in marks):
            raise UserError(f"{folder}: holds no run; name a folder with metrics.h5 or config.yaml")

    @property
    def name(self):
        """Name of the run: that of its folder."""
        return self.folder.resolve().name

    def summary(self):
        """The figures of summary.json as a dict; None where the run has not come to its end."""
        text = self._text("summary.json")
        if text is None:
            return None
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise UserError(f"{self.folder / 'summary.json'}: not a summary; move it away")
        return found

    def metrics(self):
        """The open ``Metrics``, to be used as a context manager; None where none are written yet.
        Raises UserError where they cannot be read."""
        path = self.folder / "metrics.h5"
        return Metrics(path) if path.is_file() else None

    def checkpoints(self):
        """Paths of its checkpoints, newest (most images) first, by name alone."""
        return [Path(path) for path in checkpoints(self.folder / "checkpoints")]

    def checkpoint(self):
        """The newest ``Checkpoint``, open, to be used as a context manager; None where there is
        none. Raises UserError where it is damaged: open an earlier one then."""
        paths = self.checkpoints()
        return Checkpoint(paths[0]) if paths else None

    def pictures(self):
        """Paths of the held-out pictures (photograph | rendering | difference x 4), by name."""
        return sorted((self.folder / "pictures").glob("*.png"))

    def settings(self):
        """The settings in effect, YAML; None where none are written yet."""
        return self._text("config.yaml")

    def last_log_lines(self, count):
        """The last lines of log.txt, without their ends."""
        try:
            with open(self.folder / "log.txt", "rb") as file:
                file.seek(max(0, os.path.getsize(file.name) - LOG_TAIL))
                return file.read(LOG_TAIL).decode("utf-8", "replace").splitlines()[-count:]
        except OSError:
            return []

    def finished(self):
        """Whether the summary tells of all that the metrics tell of. A run that is not finished is
        under way or interrupted; ``last_written`` helps to tell which."""
        summary = self.summary()
        if summary is None:
            return False
        metrics = self.metrics()
        if metrics is None:
            return True
        with metrics:
            images = metrics["images_seen"]
        return not len(images) or summary.get("images_seen") == images[-1]

    def last_written(self):
        """Time of the last write to metrics or log, s since 1970; None where there is neither."""
        paths = [self.folder / name for name in ("metrics.h5", "log.txt")]
        return max((path.stat().st_mtime for path in paths if path.is_file()), default=None)

    def _text(self, name):
        """A small text file of the folder; None where it is not there."""
        path = self.folder / name
        try:
            if path.stat().st_size > MOST_TEXT:
                raise UserError(f"{path}: larger than any file of that name that a run writes")
            return path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}; see its rights") from error
