"""Tests of the elementary functions of float32."""
