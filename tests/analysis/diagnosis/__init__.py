"""Tests of diagnoses."""
