"""A bitwise comparison of training on several processes by torch's DDP, ZeRO and FSDP with training on one process."""
