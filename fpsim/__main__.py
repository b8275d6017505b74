"""`python -m fpsim` is the command line."""

from fpsim.cli.main import main

if __name__ == "__main__":
    main()
