"""The libraries whose schedules are known, a file each: functions, what they refuse, and rows."""
