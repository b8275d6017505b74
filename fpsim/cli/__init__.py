"""The command line `fpsim`."""
