"""Print what pyproject.toml names, one requirement a line: `build`, `run`, or the name of an extra or dependency group.

pip reads groups by itself only since 25.1.
"""

import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    meta = tomllib.load(file)
for group in sys.argv[1:]:
    if group == "build":
        names = meta["build-system"]["requires"]
    elif group == "run":
        names = meta["project"]["dependencies"]
    else:
        names = {**meta["project"]["optional-dependencies"], **meta["dependency-groups"]}[group]
    print("\n".join(names))
