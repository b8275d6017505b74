"""Tests of recordings of models."""
