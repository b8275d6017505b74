"""oneDNN's blocks of K in BF16 products by AMX: which segments of K it adds, by shape, threads and sizes of caches."""
