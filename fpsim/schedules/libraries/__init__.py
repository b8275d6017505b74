"""The libraries whose schedules are known, one file each: functions, calls that are refused, and rows."""
