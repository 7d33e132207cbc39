"""What the cost model says of a study of scaling, calibrated on its smallest counts of ranks."""

from dataclasses import dataclass, replace

from .cost_model import CostModel, alone, load_of
from .links import ASSUMED, Link

BASE_RANKS = 2  # the model is calibrated on counts up to this


@dataclass
class Prediction:
    """Figures of one count of ranks over one transport (None: none was measured)."""

    figures: dict
    transport: str
    link: Link
    costs: list  # seconds of cost_model's a, b, c, d, e


def predict(study, pool, kind, variant, settings, config):
    """List of Prediction for a kind of views and a variant.

    study: scaling.Study; pool: other studies, whose runs on the counts of ranks that calibrate
    count as well: cities of several sizes tell what stored Gaussians cost; settings: as for
    scaling.run; config: function of a number of ranks -> Config.
    """
    ours = [key for key in study.measured if key[:2] == (kind, variant)]
    out = []
    for transport in sorted({key[2] for key in ours if key[2]}) or [None]:
        found = {key[3] for key in ours if key[2] in (None, transport)} & {*study.counts}
        if not found:
            continue
        base = [ranks for ranks in sorted(found) if ranks <= BASE_RANKS] or [min(found)]
        points = [point for one in (study, *pool) for ranks in base
                  for point in _points(one, (kind, variant, transport), ranks, config)]
        link = _link(study, transport, settings)
        model = CostModel.fit(*zip(*points), 1e9 * link.bandwidth, 1e-6 * link.latency)
        costs = [*model.costs.tolist(), model.joint]
        for ranks in sorted(ranks for ranks in study.counts if ranks >= base[0]):
            figures = model.predict(_load(study, kind, ranks, config), config(ranks))
            out.append(Prediction(figures, transport, link, costs))
    return out


def _points(study, which, ranks, config):
    """[(Measured, Load)] of a count of ranks, of one rank that of smaller views, too; [] where it
    was not measured and counted."""
    kind, variant, transport = which
    key = (kind, variant, transport if ranks > 1 else None, ranks)
    if key not in study.measured or ranks not in study.counts:
        return []
    points = [(study.measured[key], _load(study, kind, ranks, config))]
    small = study.small.get((kind, variant))
    if ranks == 1 and small and study.small_counts:
        points.append((small, alone(study.small_counts[kind], study.city(1)[0])))
    return points


def _load(study, kind, ranks, config):
    """cost_model.Load of a study's views on so many ranks."""
    counts, (total, _) = study.counts[ranks][kind], study.city(ranks)
    return alone(counts, total) if ranks == 1 else load_of(counts, config(ranks), total)


def _link(study, transport, settings):
    """Link of a transport: as given, else as measured on the fewest ranks, else assumed."""
    measured = [study.links[key] for key in sorted(study.links) if key[0] == transport]
    link = measured[0] if measured else ASSUMED
    given = {name: settings[name] for name in ("bandwidth", "latency")
             if settings[name] is not None}
    return replace(link, **given, source="given") if given else link
