"""Rows as text for people. Pure: values in, text out."""

from collections.abc import Sequence

NUMBERS = frozenset("0123456789")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart; those that hold numbers only are set to the right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(cell[:1] in NUMBERS for cell in column[1:]) for column in columns]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def some(names: Sequence[str], most: int) -> str:
    """The first of them, and that there are more."""
    shown = list(names[:most])
    return ", ".join([*shown, "…"] if len(names) > most else shown)


def amount(resource: str, value: int) -> str:
    """An amount as the engine counts it (cpu in thousandths), as people write it."""
    if resource == "cpu":
        return f"{value / 1000:g}"
    if resource == "memory" or resource == "ephemeral-storage" or resource.startswith("hugepages-"):
        for unit, size in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20)):
            if abs(value) >= size:
                return f"{value / size:.4g}{unit}"
    return str(value)
