"""Loops on this machine: compiled, cut into pieces, on several threads."""

from fpsim.runtime import forks as forks  # loaded with the first module here, before any thread can import or compile
