"""What precision costs: arrays in, frozen reports out."""
