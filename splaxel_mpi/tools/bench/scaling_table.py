"""Rows of `splaxel-mpi bench scaling` in words and in figures."""

from .base import table
from .city_run import SHARE_WORDS, SHARES
from .links import Link
from .scaling_model import BASE_RANKS

HEADER = ("scaling", "views", "Gaussians", "variant", "transport", "ranks", "from", "images/s",
          "x one rank", *SHARE_WORDS, "MB a view", "U", "balance", "modelled images/s")
ORDER = ("ours", "paper", "gaussian")
SIZE = 11.0, 9.6  # inches of a page of figures
STYLES = ("-", "--", ":", "-.")  # of transports
MARKS = {"measured": "o", "modelled": "x"}
SHARE_LABELS = dict(zip(SHARES, SHARE_WORDS))


def report(rows, tell):
    """Print a table and the reasons of what did not run. rows: of scaling.run; sorted and given
    speed-ups in place. Returns them."""
    _compare(rows)
    for line in table(map(_cells, rows), HEADER):
        tell(line)
    tell(f"\nmodelled: {_links(rows)}, nothing hidden; calibrated on up to {BASE_RANKS} ranks, or "
         "the fewest on which the city fits. Parameters stay as they are.")
    for row in rows:
        if row["source"] == "not run":
            names = (row[name] for name in ("variant", "kind", "transport") if name in row)
            what = "".join(f", {name}" for name in names)
            tell(f"{row['gaussians']:,} Gaussians{what} on {row['ranks']} ranks: {row['reason']}")
    return rows


def _links(rows):
    """What the model takes links to be, by transport."""
    found = {}
    for row in sorted(rows, key=lambda row: row["ranks"]):
        if "link" in row:
            found.setdefault(row.get("transport"), Link(**row["link"]))
    for row in rows:  # what was given or assumed stands in modelled rows
        if row["source"] == "modelled":
            found[row.get("transport")] = Link(**row["link"])
    texts = [f"{name}: {link}" if name else str(link) for name, link in found.items()]
    return "; ".join(texts) or "no link was needed"


def _compare(rows):
    """Fill speed-ups over one rank, of measured rows over measured ones; sort the rows."""
    one = {_series(row): row["images_per_second"] for row in rows
           if row["source"] == "measured" and row["ranks"] == 1}
    for row in rows:
        base = one.get(_series(row))
        if base and "images_per_second" in row:
            row["speedup"] = row["images_per_second"] / base
    rows.sort(key=lambda row: (  # those that did not run, of no variant, last
        row["scaling"] == "weak", _series(row)[1], row.get("kind", "~"),
        ORDER.index(row["variant"]) if "variant" in row else len(ORDER),
        row["ranks"] > 1 and row.get("transport") or "", row["ranks"],
    ))


def _series(row):
    """What rows have in common that differ in ranks and transport alone."""
    parts = row["ranks"] if row["scaling"] == "weak" else 1
    return (row["scaling"], row["gaussians"] // parts, row.get("kind", ""),
            row.get("variant", ""))


def _cells(row):
    """A row of the table."""
    transport = row.get("transport") if row["ranks"] > 1 else None
    first = (row["scaling"], row.get("kind", "-"), f"{row['gaussians']:,}",
             row.get("variant", "-"), transport or "-", row["ranks"], row["source"])
    if row["source"] == "not run":
        return (*first, *["-"] * (len(HEADER) - len(first)))
    shares = dict(row.get("shares", {}), **{name: row[name] for name in SHARES if name in row})
    guess = row.get("modelled", {}).get("images_per_second")
    return (
        *first, f"{row['images_per_second']:.2f}",
        f"{row['speedup']:.2f}" if "speedup" in row else "-",
        *(f"{shares[name]:.0%}" if name in shares else "-" for name in SHARES),
        f"{row['total_bytes'] / 1e6:.3f}", f"{row['active']:.2f}", f"{row['balance']:.2f}",
        f"{guess:.2f} ({guess / row['images_per_second'] - 1:+.0%})" if guess else "-",
    )


def draw(rows, folder):
    """A page of figures for each city and kind of views: <folder>/<scaling>-<Gaussians>-<kind>.png
    (weak scaling: Gaussians of a rank) with images/s, speed-up, shares of time, waiting, bytes
    and utilisation against ranks.

    rows: of scaling.run; folder: pathlib.Path, made where it is missing. Returns the files.
    """
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    _compare(rows)
    groups, files = {}, []
    for row in rows:
        if "images_per_second" in row:
            groups.setdefault(_series(row)[:3], []).append(row)
    for (scaling, gaussians, kind), found in groups.items():
        figure = Figure(figsize=SIZE, layout="constrained")
        city = f"{gaussians:,} Gaussians" + " a rank" * (scaling == "weak")
        figure.suptitle(f"{scaling} scaling, {city}, {kind} views; o measured, x modelled")
        for axes, (title, panel) in zip(figure.subplots(3, 2).flat, PANELS.items()):
            panel(axes, found)
            axes.set_title(title, fontsize="medium")
            axes.grid(alpha=0.3)
            axes.set_ylim(bottom=0)
        files.append(folder / f"{scaling}-{gaussians}-{kind}.png")
        figure.savefig(files[-1], dpi=110)
    return files


def curves(axes, rows, value):
    """A line for each variant and transport; value: function of a row, None for no point."""
    transports = sorted({row.get("transport") or "" for row in rows if row["ranks"] > 1})
    for colour, variant in enumerate(ORDER):
        for style, transport in zip(STYLES, transports or [""]):
            points = sorted(
                (row["ranks"], value(row), row["source"]) for row in rows
                if row["variant"] == variant and value(row) is not None
                and (row["ranks"] == 1 or (row.get("transport") or "") == transport))
            if not points:
                continue
            ranks, values, sources = zip(*points)
            axes.plot(ranks, values, style, color=f"C{colour}", label=f"{variant} {transport}")
            for rank, height, source in points:
                axes.plot(rank, height, MARKS[source], color=f"C{colour}", markersize=4)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("ranks")
    axes.legend(fontsize="x-small")


def time_shares(axes, rows):
    """Stacked bars of the shares of each measured run but waiting, which has a panel."""
    runs = [row for row in rows if row["source"] == "measured"]
    labels = [f"{row['variant']} {row['ranks']}"
              + (f" {row['transport']}" if row["ranks"] > 1 else "") for row in runs]
    below = [0.0] * len(runs)
    for name in SHARES:
        heights = [100 * row["shares"].get(name, 0.0) for row in runs]
        if any(heights):
            axes.bar(range(len(runs)), heights, bottom=below, label=SHARE_LABELS[name])
            below = [low + height for low, height in zip(below, heights)]
    axes.set_xticks(range(len(runs)), labels, rotation=90, fontsize="xx-small")
    axes.set_ylabel("% of the time")
    axes.legend(fontsize="x-small")


def _waiting(row):
    """Percent of the time, of a measured row."""
    return 100 * row["shares"]["waiting"] if "shares" in row else None


PANELS = {
    "images a second": lambda axes, rows: curves(axes, rows, lambda row: row["images_per_second"]),
    "times one rank": lambda axes, rows: curves(axes, rows, lambda row: row.get("speedup")),
    "shares of the time": time_shares,
    "waiting, % of the time": lambda axes, rows: curves(axes, rows, _waiting),
    "MB a view that all ranks send": lambda axes, rows: curves(
        axes, rows, lambda row: row["total_bytes"] / 1e6),
    "utilisation U": lambda axes, rows: curves(axes, rows, lambda row: row["active"]),
}
