"""Blueprints whose views get checked arguments."""

from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag

from shoal_api.request import json_request
from shoal_api.validation import checked

#: flask_openapi3 lists the models of a view's arguments. This is the index of the body's model.
_BODY = 5


class Blueprint(APIBlueprint):
    """The routes of one subject, with a `tag` and a shape of `errors`. In OpenAPI, operations are named after views."""

    def __init__(self, name: str, import_name: str, tag: str, errors: Any):
        protocol = name if ".protocols." in import_name else ""

        def operation_id(*, name: str, **_: str) -> str:
            first, *others = (name if name == protocol else f"{protocol}_{name}").strip("_").split("_")
            return first + "".join(map(str.capitalize, others))

        responses: dict[Any, Any] = {"4XX": errors, "5XX": errors}
        super().__init__(
            name, import_name, abp_tags=[Tag(name=tag)], abp_responses=responses, operation_id_callback=operation_id
        )
        self.errors = errors

    @staticmethod
    def create_view_func(func: Any, *arguments: Any, **options: Any) -> Any:
        """Return a view that checks its arguments. If the body is the only one, flask_openapi3 is bypassed."""
        body = arguments[_BODY]
        if list(filter(None, arguments)) != [body] or not iscoroutinefunction(func):
            return APIBlueprint.create_view_func(func, *arguments, **options)
        if not hasattr(func, "view"):

            @wraps(func)
            async def view() -> Any:
                return await func(body=checked(body, json_request().get_json()))

            func.view = view
        return func.view
