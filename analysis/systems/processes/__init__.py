"""A comparison, bit by bit, of training on several processes by torch's DDP, ZeRO and FSDP with one process."""
