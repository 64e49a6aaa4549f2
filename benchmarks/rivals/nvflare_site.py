"""A site's training script for NVFlare's Client API."""

from __future__ import annotations

import nvflare.client as flare
from processes import inherited
from work import adamw, batches, train_epoch


def main() -> None:
    settings = inherited()
    work, run = settings.work, settings.run
    sites, model = work.load_sites(), work.build_model(run.seed, tuned=settings.tuned)
    flare.init()
    # Its simulator calls them site-1, site-2, …
    number = int(flare.get_site_name().removeprefix("site-")) - 1
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        model.load_state_dict(received.params)
        source = batches(work, sites[number].train, number, received.current_round, run.seed)
        steps = train_epoch(model, adamw(model, tuned=settings.tuned), source, run.proximal)
        sent = {name: entry.contiguous() for name, entry in model.state_dict().items()}
        flare.send(flare.FLModel(params=sent, metrics={"steps": steps}, meta={"NUM_STEPS_CURRENT_ROUND": steps}))


if __name__ == "__main__":
    main()
