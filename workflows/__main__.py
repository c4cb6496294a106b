"""``python -m workflows`` is ``staircase``; torchrun starts its processes this way."""

from workflows.cli import main

if __name__ == "__main__":
    main()
