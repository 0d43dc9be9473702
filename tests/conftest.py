"""How many examples Hypothesis tries: a few hundred every day, 10,000 in the nightly run (`make nightly`).

A test that says nothing itself takes the profile's number.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile("everyday", max_examples=200, deadline=None)
settings.register_profile("nightly", max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
# Whether a planted bug is noticed, not what the smallest example of it is.
settings.register_profile(
    "mutation", max_examples=200, deadline=None, database=None, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("FAUXRDMA_HYPOTHESIS", "everyday"))
