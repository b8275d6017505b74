"""Checks of a quantised checkpoint against its layout."""
