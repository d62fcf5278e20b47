"""What every part of a contract has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """A frozen value; unknown fields, NaN and infinity are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, json_schema_serialization_defaults_required=True
    )


def plain(value: object) -> str:
    """A contract's value in words: fields that say nothing are left out."""
    if isinstance(value, BaseModel):
        shown = {name: getattr(value, name) for name in type(value).model_fields}
        return ", ".join(f"{name}={plain(item)}" for name, item in shown.items() if item not in ("", None, ()))
    if isinstance(value, tuple):
        return "[" + "; ".join(plain(item) for item in value) + "]"
    return repr(value)
