"""Scalar step of one matrix instruction."""
