"""HTTP for people and machines: health, metrics and what the running scheduler knows."""
