"""``python -m bigbatch …``: the same as the console command ``bigbatch``."""

import sys

from bigbatch.command import console

if __name__ == "__main__":
    sys.exit(console())
