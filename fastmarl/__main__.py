"""Run the `fastmarl` command as `python -m fastmarl`."""

import sys

from fastmarl.cli import main

sys.exit(main())
