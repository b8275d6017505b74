"""`python -m fpsim` is the command line."""

from fpsim.cli import main

if __name__ == "__main__":
    main()
