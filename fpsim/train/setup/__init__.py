"""The parts of a run before its first step: settings, layers that follow recipes, and checks."""
