"""``python -m hybrid_gpu.cli``."""

from hybrid_gpu.cli import main

main()
