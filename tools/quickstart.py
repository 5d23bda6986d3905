"""Run the first Python block of README.md in the current folder, with the installed fastmarl."""

import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).parents[1] / "README.md"


def main() -> int:
    block = re.search(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    if block is None:
        raise SystemExit(f"{README} has no Python block")
    script = pathlib.Path("quickstart.py")
    script.write_text(block.group(1))
    # -I ignores the clone and PYTHONPATH.
    return subprocess.run([sys.executable, "-I", script]).returncode


if __name__ == "__main__":
    sys.exit(main())
