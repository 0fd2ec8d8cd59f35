"""The bodies that requests are made of: which fields they take, and how strictly."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from shoal.contract.checks import check_known


class Body(BaseModel):
    """A JSON object of a request: types are taken strictly, and unknown fields are refused.

    A field that clients send and that changes nothing is declared as `Ignored`, and no other is ignored.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def check_fields(cls, values: Any) -> Any:
        """Return the values; raise InvalidRequest for an unknown field, unless it is null."""
        if isinstance(values, dict):
            values = {name: value for name, value in values.items() if value is not None or name in cls.model_fields}
            check_known("field", values, cls.model_fields)
        return values
