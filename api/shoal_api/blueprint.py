"""Blueprints whose views get checked arguments."""

from typing import Any

from flask_openapi3.blueprint import APIBlueprint
from flask_openapi3.models.tag import Tag


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
        """Return a view that checks its arguments. All paths of `func` share one view."""
        if not hasattr(func, "view"):
            func.view = APIBlueprint.create_view_func(func, *arguments, **options)
        return func.view
