"""Arrays of low-precision codes with one scale per tile: encoding, decoding, recipes of scales, files."""
