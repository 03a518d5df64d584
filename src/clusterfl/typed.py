"""The base of all settings: frozen, unknown keys refused, truth values taken only where they are meant."""

from __future__ import annotations

from typing import Any, ClassVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)


class Typed(BaseModel):
    """Settings. Plain pydantic would read true as 1, and YAML reads yes, no, on and off as truth values."""

    # An infinite epsilon stays one where settings are kept: it would be null, which is none.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")
    later: ClassVar[frozenset[str]] = frozenset()  # keys whose defaults are what was done before they were there

    @model_serializer(mode="wrap")
    def _leave_away(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `later` keys away where they have their defaults: digests stay those of before they were there."""
        found: dict[str, Any] = handler(self)
        fields = type(self).model_fields
        return {key: value for key, value in found.items() if key not in self.later or value != fields[key].default}

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[str(info.field_name)].annotation
        meant = annotation in (bool, Any) or bool in get_args(annotation)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, bool) and not meant:
                raise ValueError("it should be a number or a name; quote a name such as yes, no, on or off")
        return value


class Open(Typed):
    """Settings with a place for keys that are checked elsewhere."""

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="constants")
