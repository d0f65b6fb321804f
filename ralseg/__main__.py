"""`python -m ralseg`."""

import sys

from ralseg.cli import main

sys.exit(main())
