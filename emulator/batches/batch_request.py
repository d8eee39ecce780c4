"""The body of `POST /v1/batches`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from emulator.batches.batch import WINDOW
from emulator.batches.expiry import read_expiry
from emulator.batches.input_validation import ENDPOINTS
from handler.errors import InvalidRequest
from handler.sampling import describe_value, validate_model

_Key = Annotated[str, Field(max_length=64)]
_Value = Annotated[str, Field(max_length=512)]


class NewBatchInput(BaseModel):
    """The fields of a new batch.

    Strict; each description completes the sentence "… must be …" of the error naming the field.
    """

    model_config = ConfigDict(strict=True)

    input_file_id: str = Field(description="the id of an uploaded file")
    completion_window: Literal["24h"] = Field(description=WINDOW)
    metadata: dict[_Key, _Value] | None = Field(
        None,
        max_length=16,
        description="an object of up to 16 strings of up to 512 characters, "
        "their names up to 64 characters long",
    )


def read_new_batch(body: Mapping[str, Any]) -> tuple[NewBatchInput, str, int | None]:
    """Return what a body asks for: its fields, its endpoint, and how long its output is kept.

    Raises:
        InvalidRequest: a field is missing or wrong; the sentence names it.
    """
    given = validate_model(NewBatchInput, body)
    endpoint = body.get("endpoint")
    if endpoint not in ENDPOINTS:
        raise InvalidRequest(
            f"endpoint must be one of {', '.join(ENDPOINTS)}, got {describe_value(endpoint)}",
            "endpoint",
        )
    expires_s = read_expiry(body.get("output_expires_after"), "output_expires_after")
    return given, endpoint, expires_s
