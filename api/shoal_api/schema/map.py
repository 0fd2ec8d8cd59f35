"""The shapes of requests for the map of an index, and of the answers."""

import math
from base64 import b64decode
from typing import Annotated, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from shoal.contract.jobs import Job
from shoal.operations import Map
from shoal.operations.map_options import MAX_POINTS, MAX_ROW, MAX_ROWS, MapOptions
from shoal_api.schema.body import Body, Name
from shoal_api.schema.responses import described


class MapQuery(BaseModel):
    """The map to answer."""

    index: Name = Field("default", description="Name of the index")
    field: Name | None = Field(None, description="Field whose values are told of each point, as codes")
    max_points: int = Field(MAX_POINTS, ge=1, le=MAX_POINTS, description="Most points: a sample, if there are more")

    def job(self) -> Job:
        """Return the job that does it."""
        return Map(index=self.index, map=MapOptions(self.max_points, self.field))


class MapDocumentsBody(Body):
    """Points of a map."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"index_version": "20261121T030000Z-5d41c7", "map_rows": [2, 17]}}
    )
    index: Name = Field("default", description="Name of the index")
    index_version: Name = Field(description="Version of the index that the map is of")
    map_rows: Annotated[list[Annotated[int, Field(ge=0, le=MAX_ROW)]], Field(fail_fast=True)] = Field(
        min_length=1, max_length=MAX_ROWS, description="Rows of points, as the map has them"
    )

    def job(self) -> Job:
        """Return the job that does it."""
        options = MapOptions(map_rows=self.map_rows, index_version=self.index_version)
        return Map(index=self.index, map=options)


_Value = StrictStr | StrictBool | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)]


class Packed(BaseModel):
    """An array of numbers."""

    dtype: str = Field(description="`uint8`, `int16` or `uint32`")
    shape: list[StrictInt]
    data: str = Field(description="The numbers in base64, little-endian, row after row")

    def check(self, dtype: str, *shape: int) -> None:
        """Raise ValueError unless it has this type and shape, and as many bytes as they take."""
        if (self.dtype, self.shape) != (dtype, list(shape)):
            raise ValueError(f"an array is not {dtype} {shape}")
        if len(b64decode(self.data)) != np.dtype(dtype).itemsize * math.prod(shape):
            raise ValueError("an array has more or fewer bytes than its shape takes")


class MapValue(BaseModel):
    """A value of a field, and the number of points that have it."""

    value: _Value
    count: StrictInt


class MapField(BaseModel):
    """The values of a field, as codes of the points, and what each code stands for."""

    name: str
    kind: str
    codes: Packed = Field(description="A code for each point; 255 stands for no value")
    num_without: StrictInt = Field(description="Points without a value")
    values: list[MapValue] | None = Field(None, description="Of codes from 0: each `value`, and its `count`")
    num_others: StrictInt | None = Field(None, description="Points with another value, whose code is the next one")
    low: _Value | None = Field(None, description="Of numbers and dates: the value of code 0, and of lower ones")
    middle: _Value | None = Field(None, description="The value of code 127, if codes go by rank as values are skewed")
    high: _Value | None = Field(None, description="The value of code 254, and of higher ones")


class MapPoints(BaseModel):
    """The points of a map, in the order of the documents."""

    model_config = described(
        example={
            "index_version": "20261121T030000Z-5d41c7",
            "places_per_unit": 16_383,
            "rows": {"dtype": "uint32", "shape": [2], "data": "AgAAABEAAAA="},
            "places": {"dtype": "int16", "shape": [2, 2], "data": "5wMY/PQBDP4="},
            "field": None,
        }
    )
    index_version: str = Field(description="Version of the index that the map is of")
    places_per_unit: StrictInt = Field(
        gt=0, description="Divide places by this to compare them with the places of hits and queries"
    )
    rows: Packed = Field(description="uint32 `[points]`: by it, the document of a point is asked for")
    places: Packed = Field(description="int16 `[points, 2]`")
    field: MapField | None = Field(description="The field that was asked for")

    @model_validator(mode="after")
    def _check_arrays(self) -> Self:
        """Raise ValueError for arrays that are not of the same points."""
        num = len(b64decode(self.rows.data)) // np.dtype(np.uint32).itemsize
        self.rows.check("uint32", num)
        self.places.check("int16", num, 2)
        if self.field:
            self.field.codes.check("uint8", num)
        if num > MAX_POINTS:
            raise ValueError(f"it has {num} points")
        return self


class MapDocument(BaseModel):
    """A document at a point of a map, with its other fields beside these."""

    model_config = ConfigDict(extra="allow")
    id: str
    text: str
    map_row: StrictInt


class MapDocuments(BaseModel):
    """The documents at points of a map, in the order asked for, without those that were deleted since."""

    model_config = described(
        example={
            "index_version": "20261121T030000Z-5d41c7",
            "documents": [{"id": "2", "text": "Storms hit Europe", "map_row": 2}],
        }
    )
    index_version: str
    documents: list[MapDocument]
