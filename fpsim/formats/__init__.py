"""Number formats, rounding modes, overflow policies and the other keywords of a cast: `fp.formats`."""

from __future__ import annotations

from fpsim.formats.named import *  # noqa: F403  # its __all__ is this package's
from fpsim.formats.named import __all__ as __all__
from fpsim.lazy import face

__getattr__, __dir__ = face(__name__, __all__)
