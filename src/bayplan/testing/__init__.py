"""For tests, and for people who write plugins: a small world, and a checker for a plugin."""

from bayplan.testing.checker import check_plugin
from bayplan.testing.world import World

__all__ = ["World", "check_plugin"]
