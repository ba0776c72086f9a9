"""What each ``srun`` step of a job runs on its node: ``python -m bigbatch.cluster.node``."""

import os
import sys

from bigbatch.cluster.node.node_process import main

if __name__ == "__main__":
    # Logs and reports of this node are for its user alone, whatever umask the user has.
    os.umask(0o077)
    sys.exit(main())
