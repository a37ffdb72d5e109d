"""python -m kcore: the command kcore, where it is not on the path."""

import sys

from kcore.tools.main import main

sys.exit(main())
