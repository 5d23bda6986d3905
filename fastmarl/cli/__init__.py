"""The `fastmarl` command, one module for each subcommand. Nothing else in the package prints."""

from fastmarl.cli.entry import main as main
