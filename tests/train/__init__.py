"""Tests of training through low precision."""
