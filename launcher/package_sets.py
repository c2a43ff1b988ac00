"""Sets of packages, each with a lock file, and which of them a command needs."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from hashlib import sha256
from pathlib import Path


class PackageSet(Enum):
    """A set of packages; the value is its name. ABOUT describes it."""

    GATEWAY = "gateway"
    HUB = "hub"
    ANALYTICS = "analytics"
    IMAGES = "images"
    DOCS = "docs"
    DEVELOPMENT = "development"

    @property
    def lock(self) -> str:
        """File name of its lock, in the checkout."""
        return "requirements.lock" if self is PackageSet.DEVELOPMENT else f"requirements-{self.value}.lock"

    @property
    def compiles(self) -> bool:
        """Proton and our extension are compiled where they are installed; the docs import modules that load it."""
        return self in {PackageSet.GATEWAY, PackageSet.DOCS, PackageSet.DEVELOPMENT}

    @property
    def brings_proton(self) -> bool:
        """Proton, the AMQP engine, is in its lock."""
        return self in {PackageSet.GATEWAY, PackageSet.HUB, PackageSet.DEVELOPMENT}

    @property
    def runs_spark(self) -> bool:
        """Spark needs a Java runtime, and jars."""
        return self in {PackageSet.ANALYTICS, PackageSet.DEVELOPMENT}


BUILD_LOCK = "requirements-build.lock"
JRE_LOCK = "requirements-jre.lock"

ABOUT = {
    PackageSet.GATEWAY: "gateway: broker, store, bridge (150 MB)",
    PackageSet.HUB: "hub: lake and registry (400 MB)",
    PackageSet.ANALYTICS: "analytics: Spark and Java (1.2 GB)",
    PackageSet.IMAGES: "image tools (100 MB)",
    PackageSet.DOCS: "docs site: Sphinx (110 MB)",
    PackageSet.DEVELOPMENT: "development: everything, and the tools of the tests (2 GB)",
}
"""Contents and size with all dependencies, for people."""

GATEWAY_AND_HUB = (PackageSet.GATEWAY, PackageSet.HUB)
OF_COMMAND = {
    "hub": GATEWAY_AND_HUB,
    "gateway": GATEWAY_AND_HUB,
    "token": GATEWAY_AND_HUB,
    "config": GATEWAY_AND_HUB,
    "rollout": GATEWAY_AND_HUB,
    "alert": GATEWAY_AND_HUB,
    "artefact": GATEWAY_AND_HUB,
    "campaign": GATEWAY_AND_HUB,
    "tenant": GATEWAY_AND_HUB,
    "command": GATEWAY_AND_HUB,
    "prove": GATEWAY_AND_HUB,
    "lake": (PackageSet.ANALYTICS,),
    "report": (PackageSet.ANALYTICS,),
    # old names (edge/appliance/old_names.py)
    "fleet": GATEWAY_AND_HUB,
    "bridge prove": GATEWAY_AND_HUB,
    "analytics": (PackageSet.ANALYTICS,),
    "image": (PackageSet.IMAGES,),
    "flash": (PackageSet.IMAGES,),
    "balena": (PackageSet.IMAGES,),
    "demo": (PackageSet.GATEWAY, PackageSet.HUB, PackageSet.ANALYTICS),
    "hub cluster-demo": (PackageSet.DEVELOPMENT,),
    "docs": (PackageSet.DOCS,),
    "test": (PackageSet.DEVELOPMENT,),
    "bench": (PackageSet.DEVELOPMENT,),
}
"""Commands that need more than, or other than, the set of a gateway."""


def sets_of(words: Sequence[str]) -> tuple[PackageSet, ...]:
    """Return the sets that a command line needs, in the order of installation."""
    return OF_COMMAND.get(" ".join(words[:2])) or OF_COMMAND.get(" ".join(words[:1])) or (PackageSet.GATEWAY,)


def stamp_of(root: Path, package_set: PackageSet) -> str:
    """Return the identity of an installation of a set: the digest of its locks."""
    digest = sha256()
    for name in (BUILD_LOCK, package_set.lock):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()
