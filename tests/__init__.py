"""Tests of fpsim: claims, checked bit by bit against an oracle that shares nothing with the package."""
