"""Compiled loops over arrays of codes: each reads the operands, computes one operation, and writes codes and flags."""
