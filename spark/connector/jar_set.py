"""Sets of jars in this environment: Delta's connector, and the client of object stores for lakes in a bucket.

`python -m spark.setup install` installs a set into `<environment>/share/waypost/jars/<pins>`. The folder is renamed
into place after every SHA-256 was checked, so an existing folder is complete. Nothing accesses a network at run time:
`paths` only looks for files. `--from DIR` takes the jars from a folder, for machines without a network.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark.connector import pins, repository
from spark.connector.repository import ConnectorMissing


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that are installed together or not at all.

    `title`     description for users.
    `jars`      jars to install.
    `source`    Scala class of Waypost, compiled against them at set-up into another jar.
    `requires`  further set that the class needs.
    """

    name: str
    title: str
    jars: tuple[pins.Jar, ...]
    source: Path | None = None
    requires: JarSet | None = None

    @property
    def command(self) -> str:
        """Command that installs this set."""
        return shlex.join([sys.executable, "-P", "-m", "spark.setup", "install", self.name])

    def folder(self) -> Path:
        """Return the folder of the jars with these pins, once installed."""
        return share_folder() / "jars" / self.pins()

    def pins(self) -> str:
        """Return a short name of the pins, which is the folder's name."""
        text = "\n".join(f"{jar.group}:{jar.artifact}:{jar.version}:{jar.sha256}" for jar in self.jars)
        if self.source is not None:
            text += self.source.read_text()
        return f"{self.name}-{self.jars[0].version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def paths(self) -> list[Path]:
        """Return the installed jars. Raises `ConnectorMissing` if set-up has not installed them."""
        paths = [self.folder() / jar.file_name for jar in self.jars]
        if self.source is not None:
            paths.append(self._compiled(self.folder()))
        if not all(path.is_file() for path in paths):
            raise ConnectorMissing(f"{self.title} is not installed in {sys.prefix}: run `{self.command}` once")
        return paths

    def paths_with_required(self) -> list[Path]:
        """Return its jars and those of the set that it requires. Raises `ConnectorMissing`."""
        return [*(self.requires.paths() if self.requires is not None else ()), *self.paths()]

    def install(self, source: Path | None = None) -> bool:
        """Install the jars, checked, into the environment; return False if they are complete already.

        `source`: a folder that holds the jars by their Maven names; without it they are resolved. Raises
        `ConnectorMissing` that names what failed and the next step; the environment is then as before.
        """
        target = self.folder()
        if target.is_dir() and not repository.find_wrong(self.jars, target):
            return False
        requires = self.requires.paths() if self.requires is not None else []
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
            fresh = Path(scratch) / "jars"
            fresh.mkdir()
            if source is not None:
                repository.copy(self.jars, source, fresh)
            else:
                repository.fetch(self.jars, fresh, Path(scratch), self.command)
            wrong = repository.find_wrong(self.jars, fresh)
            if wrong:
                raise ConnectorMissing(
                    f"jars missing or not what was pinned: {', '.join(wrong)}; nothing was installed. "
                    "Check the repository or mirror they came from"
                )
            if self.source is not None:
                repository.compile_scala(self.source, requires, self._compiled(fresh))
            if target.exists():
                shutil.rmtree(target)
            fresh.replace(target)
        return True

    def _compiled(self, folder: Path) -> Path:
        return folder / f"waypost-{self.name}.jar"


def share_folder() -> Path:
    """Return the environment's folder for things installed or made at set-up."""
    return Path(sys.prefix) / "share" / "waypost"


DELTA: Final = JarSet("delta", "the Delta connector", pins.DELTA)
S3: Final = JarSet(
    "s3",
    "Spark's client of object stores",
    pins.S3,
    source=Path(__file__).parent / "ConditionalLogStore.scala",
    requires=DELTA,
)
SETS: Final = {one.name: one for one in (DELTA, S3)}
