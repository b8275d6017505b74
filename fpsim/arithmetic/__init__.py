"""Operations on codes, each rounded once, and the array class with operators."""
