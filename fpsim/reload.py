"""A decorator for classes that survive `importlib.reload`, so that objects created before it remain instances."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

Class = TypeVar("Class", bound=type)

_first: dict[tuple[str, str], type] = globals().get("_first", {})  # this module is reloaded as well
# Attributes that are not copied from one class to the other; __setattr__ of a frozen dataclass refers to its class.
BOUND_TO_CLASS = {"__dict__", "__weakref__", "__doc__", "__slots__", "__setattr__", "__delattr__"}


def reloadable(cls: Class) -> Class:
    """Keep a class when its module is reloaded: return the class first defined under this name, with the new methods.

    It is a decorator. `importlib.reload` runs a module again and would define its classes anew: then formats, units and
    recipes that other modules hold would be no instances of the new classes.

    Example:
      >>> from fpsim.reload import reloadable
      >>> def module(word):
      ...     @reloadable
      ...     class Greeting:
      ...         def say(self):
      ...             return word
      ...     return Greeting
      >>> hello = module("hello")()
      >>> isinstance(hello, module("good day")), hello.say()
      (True, 'good day')
    """
    kept = _first.setdefault((cls.__module__, cls.__qualname__), cls)
    if kept is not cls and not issubclass(cls, Enum):  # members of an Enum cannot be replaced
        for name, value in vars(cls).items():
            if name not in BOUND_TO_CLASS:
                setattr(kept, name, value)
    return kept  # type: ignore[return-value]
