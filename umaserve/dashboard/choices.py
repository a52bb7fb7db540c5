"""Models of this machine that a dashboard can load."""

from __future__ import annotations

from umaserve.assets import demo_model_path
from umaserve.dashboard.view import Model
from umaserve.models.finding.places import find_all, places


def models_here(model_dir: str = "") -> list[Model]:
    """Return names and paths, the bundled model last; looks into the folders of other tools."""
    found = [
        (one.name, one.path) for one in find_all(places(model_dir=model_dir)) if not one.problem
    ]
    return [*found, ("demo, the bundled model", str(demo_model_path()))]
