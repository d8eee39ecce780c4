"""JSON Schemas of `/faults`, by their names in /openapi.json."""

from __future__ import annotations

from emulator.openapi.schemas import COUNT, TEXT, Schema, list_of, object_of, or_null, ref

_FAULT: Schema = TEXT | {
    "minLength": 1,
    "maxLength": 1_000,
    "description": "One or several faults, as in the header `x-fault`.",
}
# The operations and the bounds are those of `emulator/middleware/faults/rules.py`.
_OPERATION: Schema = TEXT | {"description": "Only requests of this operation, such as `chat`."}
_ENDPOINT: Schema = TEXT | {"description": "Only requests to the endpoint with this id."}
_PROBABILITY: Schema = {
    "type": "number",
    "minimum": 0,
    "maximum": 1,
    "description": "How likely the rule is applied to a request that it concerns.",
}


def fault_schemas() -> dict[str, Schema]:
    """Return the schemas of the routes for faults."""
    times = {
        "type": "integer",
        "minimum": 1,
        "maximum": 1_000_000,
        "description": "How many requests the rule is applied to; all of them if unset.",
    }
    return {
        "NewFaultRule": object_of(
            {"fault": _FAULT},
            {
                "endpoint": or_null(_ENDPOINT),
                "operation": or_null(_OPERATION),
                "probability": {**_PROBABILITY, "default": 1},
                "times": or_null(times),
            },
        )
        | {"additionalProperties": False},
        "FaultRule": object_of(
            {
                "id": TEXT,
                "fault": _FAULT,
                "endpoint": or_null(_ENDPOINT),
                "operation": or_null(_OPERATION),
                "probability": _PROBABILITY,
                "remaining": or_null(COUNT),
                "applied": COUNT,
            }
        ),
        "FaultRules": object_of(
            {
                "rules": list_of(ref("FaultRule")),
                "faults": {
                    "type": "object",
                    "additionalProperties": TEXT,
                    "description": "What each fault does, by how it is written.",
                },
            }
        ),
        "DeletedFaultRules": object_of({"deleted": COUNT}),
    }
