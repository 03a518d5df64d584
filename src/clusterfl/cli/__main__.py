"""``python -m clusterfl.cli`` is ``clusterfl``."""

import sys

from .program import main

sys.exit(main())
