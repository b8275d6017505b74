"""Values to codes and back."""
