"""How far a run is, on rank 0: a bar on a terminal, plain lines elsewhere."""

import logging
import sys
import time

log = logging.getLogger(__name__)

# how figures are shown; others as they are
FORMATS = {
    "loss": "{:.4f}",
    "psnr": "{:.2f}",
    "gaussians": "{:,}",
    "ghosts": "{:.1%}",
    "images/s": "{:.3g}",
}


class Progress:
    """Progress of one loop; silent on other ranks than 0.

    total, initial: units at the end and done before this start (a resumed run); enabled: False
    for silence; is_rank0: whether this rank speaks; every: units between lines of the log;
    unit: what is counted; bar: whether to draw one (None: if standard error is a terminal).
    """

    def __init__(self, total, initial=0, enabled=True, is_rank0=True, every=100, unit="images",
                 bar=None):
        self.total, self.done, self.every, self.unit = total, initial, every, unit
        self.speaks = enabled and is_rank0
        self._start, self._initial, self._told = time.monotonic(), initial, initial // every
        self._bar = None
        if self.speaks and (sys.stderr.isatty() if bar is None else bar):
            from tqdm import tqdm

            # half a second between drawings: job logs and slow terminals
            self._bar = tqdm(total=total, initial=initial, unit=f" {unit}", mininterval=0.5,
                             dynamic_ncols=True, file=sys.stderr)

    def update(self, done, detail=None, **figures):
        """Tell that `done` units of the total are finished, with figures such as loss, psnr,
        gaussians (numbers, or None where there is none yet). detail: a second line of the log."""
        if not self.speaks:
            return
        step, self.done = done - self.done, done
        if self._bar is not None:
            self._bar.set_postfix(_shown(figures), refresh=False)
            self._bar.update(step)
        if done // self.every > self._told or done >= self.total > done - step:
            self._told = done // self.every
            for text in filter(None, (self._line(figures), detail)):
                log.info(text, extra={"file_only": self._bar is not None})

    def message(self, text):
        """A line of the log, above the bar."""
        if self.speaks:
            log.info(text)

    def close(self):
        """Take the bar down."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def _line(self, figures):
        seconds = max(time.monotonic() - self._start, 1e-9)
        rate = (self.done - self._initial) / seconds
        shown = [f"{name} {value}" for name, value in _shown(figures).items()]
        shown.append(f"{rate:.3g} {self.unit}/s")
        if rate > 0 and self.done < self.total:
            shown.append(f"left {_clock((self.total - self.done) / rate)}")
        percent = 100 * self.done / self.total if self.total else 100
        return f"{self.done}/{self.total} {self.unit} ({percent:.1f} %)  " + "  ".join(shown)


def _shown(figures):
    return {
        name: FORMATS.get(name, "{}").format(value)
        for name, value in figures.items()
        if value is not None
    }


def _clock(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
