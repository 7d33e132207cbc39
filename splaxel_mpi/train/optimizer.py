"""Adam under the batch rule (design section 8)."""

import math

# parameter group -> name of its learning rate in train.rates
RATES = {
    "means": "position",
    "scales": "scale",
    "quats": "rotation",
    "opacities": "opacity",
    "sh0": "sh0",
    "shN": "shN",
}


class Optimizer:
    """One update a batch: gradients / B, rates x sqrt(B), epsilon / sqrt(B), betas^B.

    settings: the train section; extent: of the scene, in its unit (scales the position rate);
    batch: B of all updates but the last of a run, which may have fewer images.
    ``selective`` updates only Gaussians that a view of the batch sees, ``dense`` all: as the
    settings say, or where ``dense`` is set for a densifier that needs it.
    broken: (groups,) int32 flags of the backend, which Backend.adam_groups raises; None: nobody
    asks.
    """

    def __init__(self, backend, settings, extent, batch, broken=None):
        self.backend, self.settings, self.extent, self.batch = backend, settings, extent, batch
        self.dense = settings.optimizer == "dense"
        self.broken = broken

    def rate(self, name, images_seen, views=None):
        """Learning rate of a group after so many images, for ``views`` images (None: a batch).

        The position rate falls log-linearly to position_final of itself over the run.
        """
        rate = getattr(self.settings.rates, RATES[name])
        if name == "means":
            done = min(1.0, images_seen / self.settings.images)
            rate *= self.extent * self.settings.rates.position_final**done
        return rate * math.sqrt(views or self.batch)

    @property
    def selective(self):
        """Whether only what a batch sees is updated."""
        return not self.dense

    def arguments(self, images_seen, views):
        """(rates by group, (betas, epsilon, step, scale)) of Backend.adam_groups for ``views``
        images after images_seen others."""
        settings = self.settings
        rates = {name: self.rate(name, images_seen, views) for name in RATES}
        return rates, (
            (settings.beta1**views, settings.beta2**views),
            settings.epsilon / math.sqrt(views),
            # moments have decayed by beta^images, whatever the sizes of the batches: this many
            # batches of the present size
            (images_seen + views) / views,
            1.0 / views,
        )

    def step(self, state, gradients, views):
        """Update state in place from gradients summed over ``views`` images, which follow the
        state.images_seen before them. Leaves the gradients zeroed, as State.gradients wants
        them: rows that are not updated have none.
        """
        state.step += 1
        seen = gradients.seen if self.selective else None
        rates, common = self.arguments(state.images_seen, views)
        groups = [
            (parameter, getattr(gradients, name), state.first[name], state.second[name],
             rates[name])
            for name, parameter in state.gaussians.groups()
        ]
        self.backend.adam_groups(groups, seen, *common, clear=True, broken=self.broken)
        gradients.seen.fill(0)
