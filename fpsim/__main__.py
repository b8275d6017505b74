"""`python -m fpsim` is the command line."""

from _fpsim_command import main

if __name__ == "__main__":
    main()
