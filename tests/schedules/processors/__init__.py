"""Libraries on processors: what torch, oneDNN, MKL, OpenBLAS and Eigen gave, bit for bit."""
