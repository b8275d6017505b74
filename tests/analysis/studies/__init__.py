"""Tests of studies of models."""
