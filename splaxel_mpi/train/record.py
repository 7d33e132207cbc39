"""Figures of a run: the metrics file and the progress line."""

import logging
import math
import resource
import time

import numpy as np

from ..errors import UserError
from .accounts import line

log = logging.getLogger(__name__)

# (Tile, cell) pairs of views that were drawn, masked, and flips among the masked ones: the share
# of these is the paper's flip rate (table 8). Names of Saturation.take_counts.
TILE_COUNTS = ("tiles/drawn", "tiles/masked", "tiles/flipped")


class Recorder:
    """Collects shares of losses and writes one row of metrics at each report.

    series: evaluate.series.Series; progress: progress.Progress; accounts: accounts.Accounts;
    config: config.Config.
    """

    def __init__(self, world, series, progress, accounts, config):
        self.world, self.series, self.progress = world, series, progress
        self.accounts, self.full = accounts, config.log.ranks
        self.ssim_weight = config.train.ssim_weight
        self.shares, self.views = [], []
        self.start = self.last = time.perf_counter()
        self.spent = self.moved = 0  # seconds and bytes of the run before this process
        self.images, self.shown, self.initial_psnr = 0, {}, math.nan
        self.visible = 0  # splats of all views reported by this process, over all ranks
        self.detail = None  # second line of a report

    def add(self, views, shares):
        """Keep the views of a batch until the next report, and this rank's shares (k, 3) of
        those views, this batch's or earlier ones, whose losses have become known."""
        self.views += views
        self.shares.append(shares)
        self.images += len(views)

    def tick(self, images_seen):
        """Move the progress bar, with the figures of the last report."""
        self.progress.update(images_seen, self.detail, **self.shown)

    @property
    def seconds(self):
        """Training time of the run so far, earlier processes included."""
        return self.spent + time.perf_counter() - self.start

    def history(self):
        """What the figures of a resumed run need of its past, equal on all ranks. Collective."""
        seconds = self.world.comm.bcast(self.seconds, root=self.world.root)
        return dict(seconds=seconds, bytes=self.total_bytes(), psnr=self.initial_psnr)

    def restore(self, history):
        """Go on from a stored history."""
        self.spent, self.moved = history["seconds"], int(history["bytes"])
        self.initial_psnr = history["psnr"]

    def start_from(self, quality):
        """Keep the held-out quality of the initial points, and start the clock."""
        if quality is not None:
            self.initial_psnr = quality.psnr
            self.quality(quality, 0)
        self.start = self.last = time.perf_counter()
        self.accounts.start()

    def total_bytes(self):
        """Bytes that all ranks sent to others in the run so far. Collective."""
        local = np.array([sum(self.world.exchange.bytes.values())], np.int64)
        return self.moved + int(self.world.exchange.allreduce("figures", local)[0])

    def report(self, state, renderer, figures):
        """Reduce what was collected over ranks and write it, and figures by name. Collective.

        Losses that are not finite are left out: they are the guard's to tell.
        """
        exchange = self.world.exchange
        losses = exchange.allreduce("figures", np.concatenate(self.shares))
        losses = losses[np.isfinite(losses).all(1)]
        l1, dissimilarity, error = losses.mean(0) if len(losses) else (math.nan,) * 3
        accounts, job = self.accounts.take(len(self.views))
        names, ranks = self._gather(dict(self._rank_figures(state, renderer), **accounts))
        self.visible += int(ranks[:, names.index("visible")].sum())
        if self.world.is_root:
            row = dict(
                images_seen=state.images_seen,
                step=state.step,
                time=self.seconds,
                loss=(1 - self.ssim_weight) * l1 + self.ssim_weight * dissimilarity,
                l1=l1,
                ssim=1 - dissimilarity,
                psnr=-10 * math.log10(max(error, 1e-12)),
                images_per_second=len(self.views) / (time.perf_counter() - self.last),
                **figures,
                **job,
            )
            row.update(self._spread(names, ranks))
            if TILE_COUNTS[0] in names:
                drawn, masked, flipped = (ranks[:, names.index(n)].sum() for n in TILE_COUNTS)
                row["masked_share"] = masked / max(drawn + masked, 1)
                row["flip_rate"] = flipped / max(masked, 1)
            self.series.append(row)
            gaussians, visible, ghosts = (
                int(ranks[:, names.index(name)].sum())
                for name in ("gaussians", "visible", "ghosts")
            )
            # of the visible Gaussians; nothing to tell where none travel
            share = ghosts / visible if ghosts else None
            self.shown = dict(
                loss=row["loss"], psnr=row["psnr"], gaussians=gaussians, ghosts=share
            )
            self.detail = line(dict(zip(names, ranks.mean(0))), job)
        self.views, self.shares, self.last = [], [], time.perf_counter()

    def check_visible(self, state):
        """Raise UserError when no view so far has shown a Gaussian: nothing can be learned."""
        if not self.visible:
            raise UserError(
                f"none of the {self.images} views up to image {state.images_seen} shows a "
                "Gaussian: the points of the data set lie outside of all photographs or nearer "
                "than render.near; see that points and poses are of one frame and unit"
            )

    def _rank_figures(self, state, renderer):
        """This rank's figures since the last report, by name."""
        visible, ghosts = renderer.take_counts()
        tiles = {}
        if renderer.saturation:
            counts = renderer.saturation.take_counts().tolist()
            tiles = dict(zip(TILE_COUNTS, counts))
        return {
            "gaussians": len(state.gaussians),
            "visible": visible,
            "ghosts": ghosts,
            **tiles,
            "store": state.nbytes,
            "fits": state.budget.rank,
            **self.world.backend.memory.figures(),
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }

    def _gather(self, local):
        """Names of all ranks' figures, and their values (ranks, names). Collective.

        A rank has no seconds of a stage that it never entered (one without a cell does not
        rasterize), so ranks agree on the names first.
        """
        found = self.world.comm.allgather(list(local))
        names = list(dict.fromkeys(name for rank in found for name in rank))
        values = np.array([local.get(name, 0) for name in names], np.float64)
        return names, self.world.exchange.allgather("figures", values)

    def _spread(self, names, ranks):
        """Minimum, mean and maximum over ranks of each figure, and all where asked for."""
        return {
            name: dict(
                min=column.min(), mean=column.mean(), max=column.max(),
                **(dict(full=column) if self.full else {}),
            )
            for name, column in zip(names, ranks.T)
        }

    def densified(self, done, state):
        """Say what an event changed. Collective; returns its counts over all ranks. Raises
        UserError when no Gaussian is left."""
        names = sorted(done)
        local = np.array([*(done[name] for name in names), len(state.gaussians)], np.int64)
        *total, left = self.world.exchange.allreduce("figures", local).tolist()
        text = ", ".join(f"{count} {name}" for name, count in zip(names, total) if count)
        log.debug("density control: %s", text or "nothing changed")
        if not left:
            raise UserError(
                f"no Gaussian is left after image {state.images_seen} ({text}); lower "
                "densify.prune_opacity or train.rates, or raise densify.prune_scale"
            )
        return dict(zip(names, total))

    def repartitioned(self, done, state):
        """Tell of a new tree. done: partition.balance.Repartition."""
        if not self.world.is_root:
            return
        self.progress.message(
            f"repartitioned after {state.images_seen} images: imbalance {done.before:.3f} -> "
            f"{done.after:.3f}, moved {done.moved:,} of {done.total:,} Gaussians, "
            f"{done.bytes / 1e6:,.1f} MB, {done.seconds:.2f} s"
        )
        self.series.append(
            dict(
                images_seen=state.images_seen,
                imbalance_before=done.before,
                imbalance_after=done.after,
                moved=done.moved,
                repartition_seconds=done.seconds,
            )
        )

    def quality(self, quality, images):
        """Record held-out quality measured during the run (on the root)."""
        if quality is not None and self.world.is_root:
            self.series.append(
                dict(images_seen=images, heldout_psnr=quality.psnr, heldout_ssim=quality.ssim)
            )
            self.progress.message(
                f"held-out PSNR {quality.psnr:.2f} dB, SSIM {quality.ssim:.4f} "
                f"after {images} images"
            )

    def flush(self):
        """Bring the metrics file up to date; a failure is a warning."""
        self.series.try_flush()

    def close(self):
        """Write what is left and take the progress bar down."""
        self.series.close()
        self.progress.close()
