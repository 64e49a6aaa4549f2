"""AddedOptions: options that were added after files and keys had been written without them."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer


class AddedOptions(BaseModel):
    """Leaves the options in `added` out of everything written, as long as they have their default.

    A study finds its finished runs by a key made of all their options, so an option that changes nothing must not
    change the key. The default of such an option can never change: files without it mean that value.

    >>> class Options(AddedOptions):
    ...     added = frozenset({"new"})
    ...     old: int = 1
    ...     new: int = 0
    >>> Options().model_dump(), Options(new=2).model_dump()
    ({'old': 1}, {'old': 1, 'new': 2})
    """

    added: ClassVar[frozenset[str]] = frozenset()
    """A class names its own; those of its bases stay."""

    @model_serializer(mode="wrap")
    def _without_added_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialize(self)
        fields = type(self).model_fields
        unset = {name for name in named_in("added", type(self)) if getattr(self, name) == fields[name].default}
        return {name: value for name, value in written.items() if name not in unset}


def named_in(attribute: str, kind: type) -> frozenset[str]:
    """The names that a class and its bases list under an attribute.

    >>> class Base:
    ...     added = frozenset({"a"})
    >>> class Derived(Base):
    ...     added = frozenset({"b"})
    >>> sorted(named_in("added", Derived))
    ['a', 'b']
    """
    return frozenset().union(*(getattr(base, attribute, ()) for base in kind.__mro__))
