"""Effects of scales: underflow and overflow in a format, and policies of loss scaling."""
