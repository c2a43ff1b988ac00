"""Pack the program into one file, which is an image: ``python3 pack.py mqtt_device slots/slot0``."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

MODULES = ("boot_loader", "device", "firmware", "manifest", "spool", "update")


def pack(program: str, target: Path, folder: Path = Path(__file__).parent) -> None:
    """Write a zip file that Python runs. `program`: mqtt_device or amqp_device."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (program, *MODULES):
            archive.write(folder / f"{name}.py", f"{name}.py")
        archive.writestr("__main__.py", f"import sys\n\nimport {program}\n\nsys.exit({program}.main())\n")


if __name__ == "__main__":
    pack(sys.argv[1], Path(sys.argv[2]))
