"""`python -m fastmarl` is the `fastmarl` command."""

import sys

from fastmarl.cli import main

sys.exit(main())
