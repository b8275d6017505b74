"""What a run is made of before its first step: settings, layers that follow recipes, and what is refused."""
