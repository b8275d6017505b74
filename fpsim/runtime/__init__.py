"""Running of kernels on this machine: compiling, splitting of arrays, threads, processor modes."""

from fpsim.runtime import forks as forks  # loaded with the first module here, before any thread can import or compile
