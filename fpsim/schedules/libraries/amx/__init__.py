"""The segments into which oneDNN cuts K in products by AMX, by shape, number of threads and sizes of caches."""
