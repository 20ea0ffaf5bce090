"""How long ago something was, in kubectl's short words."""

import re
from datetime import datetime

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def since(time: str | None, wall: float) -> str:
    if not time:
        return "<unknown>"
    try:
        then = datetime.fromisoformat(time).timestamp() if _TIME.fullmatch(time) else None
    except (ValueError, OverflowError):  # the 30th of February
        then = None
    if then is None:
        return "<invalid>"
    seconds = int(wall - then)
    return duration(max(seconds, 0)) if seconds >= -1 else "<invalid>"  # a time to come


def duration(seconds: int) -> str:
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    return _two(days // 365, "y", days % 365, "d") if days < 8 * 365 else f"{days // 365}y"


def _two(large: int, unit: str, small: int, smaller: str) -> str:
    return f"{large}{unit}{small}{smaller}" if small else f"{large}{unit}"
