"""The part of a BayplanConfiguration that the agent reads: `devices`, the vendors' classes.

The rest of the file is the scheduler's, and checked there. A class of a known name replaces it.
"""

from pathlib import Path

import msgspec
import yaml

from bayplan.core.model.vendors import DeviceClass, Vendors


class BadConfig(ValueError):
    """A file that cannot be used: its name, and what is wrong with it."""


def load_vendors(path: str | Path) -> Vendors:
    try:
        content = yaml.safe_load(Path(path).read_bytes())
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadConfig(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise BadConfig(f"{path}: should be a mapping of fields")
    try:
        given = msgspec.convert(content.get("devices") or [], list[DeviceClass])
    except msgspec.ValidationError as error:
        raise BadConfig(f"{path}: devices: {error}") from None
    return Vendors.known_and(given)
