import sys
from pathlib import Path

import clusterfl.engine  # noqa: F401  (before anything multiplies matrices)

sys.path.insert(0, str(Path(__file__).parent))  # tests share the small federations of federations.py
