"""`python -m torchlift` is the same as the command `torchlift`."""

import sys

from torchlift.cli import main

if __name__ == "__main__":
    sys.exit(main())
