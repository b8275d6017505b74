"""The libraries whose schedules are known, one file each: makers of schedules, and checks of calls."""
