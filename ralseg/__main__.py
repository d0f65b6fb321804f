"""`python -m ralseg`."""

import sys

from ralseg.cli import main

if __name__ == "__main__":
    sys.exit(main())
