"""The programs of a Kafka broker, brought by Maven once and kept in a folder between runs."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

VERSION = "4.3.1"
_MAVEN_LIMIT_S = 600

# Without the last, the broker would tell nobody why it does not start.
_POM = f"""\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>gasoline-es</groupId><artifactId>test-broker</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version></dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.4</version>
    </dependency>
  </dependencies>
</project>
"""


def cache() -> Path:
    """Return the folder that is kept between runs."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gasoline-es-tests"


def jars() -> Path | None:
    """Return the folder of the jars; None: it is not there yet."""
    folder = cache() / f"kafka-{VERSION}"
    return folder if folder.is_dir() else None


def bring_jars() -> Path:
    """Return the folder of the jars, which Maven fills if it is not there. Raises: RuntimeError, with what Maven said."""
    found = jars()
    if found is not None:
        return found
    root = cache()
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = jars()  # another process may have brought them meanwhile
        if found is not None:
            return found
        work = Path(tempfile.mkdtemp(prefix="kafka-", dir=root))
        try:
            (work / "pom.xml").write_text(_POM)
            command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={work}/libs"]
            done = subprocess.run(
                command, cwd=work, capture_output=True, text=True, check=False, timeout=_MAVEN_LIMIT_S
            )
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
            folder = root / f"kafka-{VERSION}"
            (work / "libs").rename(folder)  # whole, or not at all
            return folder
        finally:
            shutil.rmtree(work, ignore_errors=True)
