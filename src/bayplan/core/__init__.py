"""The pure core: values, the cluster in memory, and the engine that decides.

Nothing here reads a clock, opens a socket, logs, or awaits.
"""
