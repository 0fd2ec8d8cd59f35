"""The bodies that requests are made of: which fields they take, and how strictly."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from shoal_api.validation import check_names


class Body(BaseModel):
    """A JSON body: types are taken strictly, unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


class OwnBody(Body):
    """A body of Shoal's own routes: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def check_fields(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values; raise InvalidRequest for an unknown field, with the name that is meant."""
        check_names("field", values, cls.model_fields)
        return values
