"""Makes `python -m fastmarl` run the `fastmarl` command."""

import sys

from fastmarl.cli import main

sys.exit(main())
