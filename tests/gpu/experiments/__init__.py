"""The experiments of fpsim.gpu without a GPU: the emulator is in its place."""
