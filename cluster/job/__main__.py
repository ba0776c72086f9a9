"""The process of a batch script: ``python -m bigbatch.cluster.job``."""

import sys

from bigbatch.cluster.job.command import main

if __name__ == "__main__":
    sys.exit(main())
