"""Tests of products that are split into narrow ones."""
