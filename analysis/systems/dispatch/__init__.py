"""The formats that each chip multiplies in hardware, and the fallbacks of a recipe on chips that lack its formats."""
