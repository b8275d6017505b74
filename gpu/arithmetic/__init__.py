"""Operations on codes on the GPU."""
