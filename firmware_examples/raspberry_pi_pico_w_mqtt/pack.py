"""Pack the program into one file, which is an image: ``python3 pack.py pump.img``.

``python3 pack.py slot0/`` copies its files into a folder. An image is a row of files: a line with name and size, and
the content. Settings (config.py) and the boot loader are not in it.
"""

import os
import shutil
import sys

FILES = ("firmware.py", "main.py", "manifest.py", "mqtt_client.py", "spool.py", "update.py")


def pack(target):
    """Write an image, or copy the files into a folder."""
    folder = os.path.dirname(os.path.abspath(__file__))
    paths = [os.path.join(folder, name) for name in FILES]
    if target.endswith("/"):
        os.makedirs(target, exist_ok=True)
        for path in paths:
            shutil.copy(path, target)
        return
    with open(target, "wb") as image:
        for path in paths:
            with open(path, "rb") as file:
                content = file.read()
            image.write(f"{os.path.basename(path)} {len(content)}\n".encode() + content)


if __name__ == "__main__":
    pack(sys.argv[1])
