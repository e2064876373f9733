"""Packs a library that cargo has built into a wheel, as maturin would: `pack.py LIBRARY INFO OUT`.

INFO is the folder that `maturin pep517 write-dist-info` wrote. For tests, whose library is compiled with everything else that is
tested; what is released maturin builds by itself.
"""

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).parent / "lib"


def main(library, info, out):
    (info,) = Path(info).glob("*.dist-info")
    tag = next(line.split(": ")[1] for line in (info / "WHEEL").read_text().splitlines() if line.startswith("Tag: "))
    members = {"kvtide/_kvtide.abi3.so": Path(library)}
    for path in sorted(PACKAGE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            members[str(path.relative_to(PACKAGE))] = path
    for path in sorted(info.rglob("*")):
        if path.is_file():
            members[str(path.relative_to(info.parent))] = path
    Path(out).mkdir(parents=True, exist_ok=True)
    record = ""
    with zipfile.ZipFile(Path(out) / f"{info.stem}-{tag}.whl", "w") as wheel:
        for name, path in members.items():
            data = path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
            wheel.writestr(name, data)
        name = f"{info.name}/RECORD"
        wheel.writestr(name, f"{record}{name},,\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
