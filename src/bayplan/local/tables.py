"""Objects as kubectl wants to print them: rows of a Table, or metadata alone."""

import re
from collections.abc import Mapping
from typing import Any

from bayplan.local.columns import COLUMNS
from bayplan.local.kinds import Column, Kind
from bayplan.local.other_columns import Cells, Columns
from bayplan.local.since import since
from bayplan.local.store import Json, Stored, encode

_TABLE = re.compile(r"application/json[^,]*;\s*as=Table\b")
_METADATA = re.compile(r"application/json[^,]*;\s*as=PartialObjectMetadata(List)?\b")
_INT64 = 2**63


def wanted(accept: str) -> bool:
    return _TABLE.match(accept) is not None


def metadata_wanted(accept: str) -> bool:
    return _METADATA.match(accept) is not None


def metadata_only(stored: Stored) -> Json:
    about = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    return {**about, "metadata": stored.value["metadata"]}


def metadata_list(items: list[Stored], head: Json) -> Json:
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": head,
        "items": [metadata_only(stored) for stored in items],
    }


def table(
    kind: Kind, items: list[Stored], head: Json, wall: float, params: Mapping[str, str]
) -> Json:
    columns, cells = _custom(kind) if kind.custom else COLUMNS.get(kind.kind, (_PLAIN, _plain))
    include = params.get("includeObject", "Metadata")
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": head,
        "columnDefinitions": [
            {
                "name": name,
                "type": sort,
                "format": "name" if name == "Name" else "",
                "description": "",
                "priority": priority,
            }
            for name, sort, priority in columns
        ],
        "rows": [
            {
                "cells": _cells(columns, cells, stored.value, wall),
                **({} if include == "None" else {"object": _included(stored, include)}),
            }
            for stored in items
        ],
    }


def _cells(columns: Columns, cells: Cells, value: Json, wall: float) -> list[Any]:
    """A row that cannot be made, because a field has the wrong type, fails alone."""
    try:
        return cells(value, wall)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        name = value["metadata"]["name"]
        return [name if column == "Name" else "<unknown>" for column, _, _ in columns]


def _included(stored: Stored, include: str) -> Json:
    return stored.value if include == "Object" else metadata_only(stored)


_PLAIN: Columns = (("Name", "string", 0), ("Created At", "date", 0))


def _plain(value: Json, wall: float) -> list[Any]:
    return [value["metadata"]["name"], value["metadata"]["creationTimestamp"]]


def _custom(kind: Kind) -> tuple[Columns, Cells]:
    """A custom resource's columns are those of its definition; without any, its age."""
    more = kind.columns or (Column("Age", "date", ("metadata", "creationTimestamp")),)
    columns = (("Name", "string", 0), *((c.name, c.type, c.priority) for c in more))

    def cells(value: Json, wall: float) -> list[Any]:
        return [value["metadata"]["name"], *(_cell(value, column, wall) for column in more)]

    return columns, cells


def _cell(value: Json, column: Column, wall: float) -> Any:
    """What has not the column's type is left out."""
    found: Any = value
    for part in column.path:
        found = found.get(part) if isinstance(found, dict) else None
    number = isinstance(found, int | float) and not isinstance(found, bool)
    match column.type:
        case "date":
            return since(found, wall) if isinstance(found, str) else None
        case "integer":
            return int(found) if number and abs(found) < _INT64 else None
        case "number":
            return found if number else None
        case "boolean":
            return found if isinstance(found, bool) else None
    return found if found is None or isinstance(found, str) else encode(found).decode()
