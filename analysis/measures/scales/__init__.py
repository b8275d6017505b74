"""Effects of scales: losses at both ends of a format, and policies of loss scaling."""
