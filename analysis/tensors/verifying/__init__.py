"""Checks of a quantised checkpoint against its layout (fp.analysis.verify)."""
