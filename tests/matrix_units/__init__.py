"""Tests of matrix instructions and chips as data."""
