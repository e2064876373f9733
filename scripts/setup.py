#!/usr/bin/env python3
"""Puts a CPU-only libtorch, and the CUDA runtime compiler, into third_party/libtorch.

`make setup` runs this; a second run finds nothing to do. The source is the wheels of PyTorch and
NVIDIA, fetched by pip and pinned by hash; nothing is installed into Python. Of the wheels only
what tch links and loads is unpacked, in their own layout, because libtorch_cpu.so finds the CUDA
libraries it was linked against through an RPATH relative to itself. Why the CUDA wheel at all: it
is the only x86-64 Linux build the package index has, and its CPU half runs without a GPU.

Everything happens in a folder beside the target and is renamed at the end, so that a failed or
interrupted run leaves what was there before.

Environment:
  LIBTORCH               a libtorch of your own: nothing is fetched
  LIBTORCH_USE_PYTORCH   the one in your Python: nothing is fetched
  KVTIDE_WHEELS          a folder with the wheels, for machines without a network

Exit codes: 0 done, 1 --check found something missing, 2 error, 130 interrupted.
"""

import sys

if sys.version_info < (3, 9):
    sys.exit("setup: Python 3.9 or newer is needed, this is " + sys.version.split()[0])

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Mapping, Optional

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "third_party" / "libtorch"
STAMP = "setup.json"
MIN_GLIBC = (2, 28)  # what the torch wheel promises to need: manylinux_2_28


@dataclass(frozen=True)
class Wheel:
    """A wheel, and what of it is unpacked: single files, and folders where the name ends in `/`."""

    file: str
    sha256: str
    size: int
    unpack: tuple[str, ...]

    @property
    def requirement(self) -> str:
        name, version = self.file.split("-")[:2]
        return f"{name.replace('_', '-')}=={version}"

    @property
    def abi_and_platform(self) -> tuple[str, str]:
        abi, platforms = self.file.removesuffix(".whl").split("-")[3:5]
        return abi, platforms.split(".")[0]

    def wants(self, member: str) -> bool:
        return any(member == u or (u.endswith("/") and member.startswith(u)) for u in self.unpack)


# To move to another version: tch's torch-sys names its torch (TORCH_VERSION in its build script);
# torch's METADATA names its CUDA packages; `pip hash` prints the hashes.
TORCH_VERSION = "2.11.0"
WHEELS = (
    Wheel(
        "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a",
        530_604_548,
        (
            "torch/include/",
            "torch/lib/libc10.so",
            "torch/lib/libgomp.so.1",
            "torch/lib/libtorch_cpu.so",
            "torch/lib/libtorch_global_deps.so",
            "torch-2.11.0.dist-info/licenses/",
        ),
    ),
    # libtorch_cpu.so of a CUDA build does not load without these two.
    Wheel(
        "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
        2_243_632,
        ("nvidia/cu13/lib/libcudart.so.13", "nvidia_cuda_runtime-13.0.96.dist-info/licenses/"),
    ),
    Wheel(
        "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl",
        "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
        10_715_597,
        ("nvidia/cu13/lib/libcupti.so.13", "nvidia_cuda_cupti-13.0.85.dist-info/licenses/"),
    ),
    # NVRTC: the tests compile the kernels with it, GPU or not. It has no RPATH: whoever loads it must
    # load libnvrtc-builtins first, or compiling fails with "failed to open libnvrtc-builtins.so.13.0".
    Wheel(
        "nvidia_cuda_nvrtc-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
        90_215_200,
        (
            "nvidia/cu13/lib/libnvrtc.so.13",
            "nvidia/cu13/lib/libnvrtc-builtins.so.13.0",
            "nvidia_cuda_nvrtc-13.0.88.dist-info/licenses/",
        ),
    ),
)

# Files that no wheel has. The wheel's own libtorch.so would pull in libtorch_cuda.so; tch links
# `-ltorch`, so it is given a linker script that means the CPU library.
WRITTEN = {
    "torch/lib/libtorch.so": "INPUT(-ltorch_cpu)\n",
    "torch/build-version": TORCH_VERSION + "\n",
}


# Said before anything is fetched: who asked for a CPU build wonders at names of CUDA.
WHY = (
    "for the CPU: none of this needs a GPU. The only x86-64 Linux build of PyTorch in the package index is "
    "made for CUDA: of it the CPU half is kept, which does not load without two small CUDA libraries "
    "(runtime, CUPTI). NVRTC, CUDA's compiler, is for the tests, which compile the kernels without running them"
)


class SetupError(Exception):
    """A failure with what to do about it; shown without a traceback."""


def main(argv: Optional[list[str]] = None) -> int:
    args = parse_args(argv)
    try:
        return run(args)
    except SetupError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("interrupted; nothing was changed")
        return 130


def parse_args(argv: Optional[list[str]]) -> argparse.Namespace:
    summary, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--force", action="store_true", help="fetch and unpack again")
    either.add_argument("--check", action="store_true", help="only say whether all is in place")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    own = users_own_libtorch(os.environ)
    if own:
        say(own)
        return 0
    missing = what_is_missing(WHEELS, TARGET)
    if args.check:
        say(f"{missing}; run `make setup`" if missing else f"{shown(TARGET)} is complete")
        return 1 if missing else 0
    if not missing and not args.force:
        return 0
    check_platform()
    with only_one(TARGET.parent) as waited:
        if waited and not what_is_missing(WHEELS, TARGET):
            return 0  # the run waited for has done it
        install(WHEELS, TARGET, os.environ.get("KVTIDE_WHEELS"))
    say(f"libtorch {TORCH_VERSION} (CPU) is in {shown(TARGET)}")
    warn_without_cxx()
    return 0


def users_own_libtorch(env: Mapping[str, str]) -> Optional[str]:
    """The sentence to say if the user brings a libtorch, which tch then prefers to ours."""
    if env.get("LIBTORCH_USE_PYTORCH"):
        return "LIBTORCH_USE_PYTORCH is set: the libtorch of your Python is used, nothing to do"
    own = env.get("LIBTORCH")
    if own is None:
        return None
    if not own:
        raise SetupError("LIBTORCH is set to nothing, which cargo would obey; unset it")
    if Path(own).resolve() == (TARGET / "torch").resolve():
        return None
    lib = Path(own, "lib")
    if not (lib / "libtorch_cpu.so").is_file():
        raise SetupError(
            f"LIBTORCH={own} has no lib/libtorch_cpu.so; correct it, or unset it to have "
            f"libtorch {TORCH_VERSION} fetched"
        )
    return f"LIBTORCH={own} is used, nothing to do (at run time it needs LD_LIBRARY_PATH={lib})"


# What is in place.


def what_is_missing(wheels: tuple[Wheel, ...], target: Path) -> Optional[str]:
    """Why `target` is not what this script would make, or None if it is."""
    try:
        stamp = json.loads((target / STAMP).read_text())
        pins, sizes = stamp["pins"], dict(stamp["sizes"])
    except FileNotFoundError:
        return f"{shown(target)} is not set up"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{shown(target / STAMP)} cannot be read"
    if pins != pins_digest(wheels):
        return f"{shown(target)} was made for other pins"
    for name, size in sizes.items():
        file = target / name
        if not file.is_file() or file.stat().st_size != size:
            return f"{shown(file)} is missing or damaged"
    return None


def pins_digest(wheels: tuple[Wheel, ...]) -> str:
    """Changes with anything that decides what is put into the target."""
    said = repr([(w.file, w.sha256, w.unpack) for w in wheels] + sorted(WRITTEN.items()))
    return hashlib.sha256(said.encode()).hexdigest()


def write_stamp(wheels: tuple[Wheel, ...], target: Path) -> None:
    """Records the files named one by one: headers by the thousand are not worth a stat each run."""
    named = [u for w in wheels for u in w.unpack if not u.endswith("/")] + list(WRITTEN)
    sizes = {name: (target / name).stat().st_size for name in named}
    stamp = {"pins": pins_digest(wheels), "wheels": [w.file for w in wheels], "sizes": sizes}
    (target / STAMP).write_text(json.dumps(stamp, indent=2) + "\n")


# Putting it in place.


def install(wheels: tuple[Wheel, ...], target: Path, folder: Optional[str]) -> None:
    """Fetches (or takes from `folder`), verifies and unpacks the wheels, then renames."""
    check_disk(target.parent, wheels, fetching=not folder)
    found = find_wheels(wheels, Path(folder)) if folder else {}
    if not folder:
        check_pip()
    say(WHY)
    with work_folder(target) as work:
        new, fetched = work / "new", work / "wheels"
        for number, wheel in enumerate(wheels, 1):
            count = f"{number}/{len(wheels)}"
            if not folder:
                say(f"[{count}] fetching {wheel.requirement}, {megabytes(wheel.size)}")
                pip_download(wheel, fetched, work)
            file = found.get(wheel) or fetched / wheel.file
            verify(wheel, file)
            say(f"[{count}] unpacking {wheel.file}")
            unpack(wheel, file, new)
            if not folder:
                file.unlink()  # so that the disk never holds more than one of them
        for name, text in WRITTEN.items():
            (new / name).write_text(text)
        write_stamp(wheels, new)
        swap(new, target, work / "old")


def find_wheels(wheels: tuple[Wheel, ...], folder: Path) -> dict[Wheel, Path]:
    found = {w: folder / w.file for w in wheels if (folder / w.file).is_file()}
    absent = [w for w in wheels if w not in found]
    if absent:
        lines = "".join("\n  " + w.file for w in absent)
        raise SetupError(
            f"KVTIDE_WHEELS={folder} lacks:{lines}\n"
            f"On a machine with a network:"
            + "".join("\n  python3 " + " ".join(pip_arguments(w, "FOLDER")) for w in absent)
        )
    return found


def pip_arguments(wheel: Wheel, destination: str) -> list[str]:
    """The wheel named exactly, whatever Python, platform and pip this machine has.

    One wheel a call, because a pip before 21.1 takes only one platform.
    """
    abi, platform_tag = wheel.abi_and_platform
    target = f"--implementation cp --python-version 3.11 --abi {abi} --platform {platform_tag}"
    # No cache: pip 23.0 (Debian 12) would hold the whole wheel in memory to fill it, and keep it.
    return [
        *("-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"),
        *target.split(),
        *("--dest", destination, wheel.requirement),
    ]


def pip_download(wheel: Wheel, destination: Path, work: Path) -> None:
    """Runs pip with its progress on our stderr; its complaints are shown, and read."""
    env = dict(
        os.environ,
        TMPDIR=str(work),  # pip keeps its half of the download here: one disk, one cleaning up
        PIP_NO_INPUT="1",
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        PIP_REQUIRE_VIRTUALENV="0",
    )
    command = [sys.executable, *pip_arguments(wheel, str(destination))]
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.PIPE
    )
    complaints = []
    try:
        for raw in process.stderr:
            line = raw.decode(errors="replace")
            complaints.append(line)
            sys.stderr.write("  pip: " + line)
        status = process.wait()
    except BaseException:
        # Ctrl-C reaches pip too, but a `kill` of ours alone does not; never leave it behind.
        process.terminate()
        process.wait()
        raise
    if status != 0:
        raise SetupError(f"pip could not fetch {wheel.requirement}: {advice(''.join(complaints))}")
    if not (destination / wheel.file).is_file():
        got = ", ".join(sorted(p.name for p in destination.iterdir())) or "nothing"
        raise SetupError(f"pip was to fetch {wheel.file} and fetched {got}")


def advice(complaints: str) -> str:
    """What to do after pip's complaints."""
    if "No space left on device" in complaints:
        return "the disk is full; make room and run `make setup` again"
    # pip says "No matching distribution" without a network too, after its retries.
    unreachable = ("Connection", "Temporary failure", "resolution", "Max retries", "timed out", "SSL")
    if any(word in complaints for word in unreachable):
        return (
            "the package index was not reached; check the network (and the proxy), run "
            "`make setup` again, or take the wheels from a folder with KVTIDE_WHEELS=FOLDER"
        )
    if "DO NOT MATCH THE HASHES" in complaints:
        return "what came is not what the index announced, or was cut short; run `make setup` again"
    if "No matching distribution" in complaints:
        return (
            "the package index pip is configured for does not have it; "
            "take the wheels from a folder with KVTIDE_WHEELS=FOLDER"
        )
    return "see pip's words above, then run `make setup` again"


def verify(wheel: Wheel, file: Path) -> None:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != wheel.sha256:
        raise SetupError(
            f"{file.name} is not the file that was pinned; nothing was changed\n"
            f"  expected sha256 {wheel.sha256} ({wheel.size} bytes)\n"
            f"  got      sha256 {digest.hexdigest()} ({file.stat().st_size} bytes)\n"
            "Fetch it again; if it stays so, the index (or a mirror) serves something else: "
            "do not use it"
        )


def unpack(wheel: Wheel, file: Path, target: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        members = [i for i in archive.infolist() if not i.is_dir() and wheel.wants(i.filename)]
        names = [i.filename for i in members]
        for wanted in wheel.unpack:
            if not any(name.startswith(wanted) for name in names):
                raise SetupError(f"{file.name} has no {wanted}")
        for info in members:
            path = Path(archive.extract(info, target))
            # The wheel's own dates, so that --force gives no build tool a reason to rebuild.
            date = time.mktime((*info.date_time, 0, 0, -1))
            os.utime(path, (date, date))


def swap(new: Path, target: Path, old: Path) -> None:
    """Puts `new` where `target` is; what was there is `old`, or back in place if that fails."""
    if not target.exists():
        new.rename(target)
        return
    try:
        target.rename(old)
        new.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise


@contextlib.contextmanager
def work_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target`, gone afterwards; left-overs of a killed run go first."""
    prefix = f".{target.name}-"
    for stale in target.parent.glob(prefix + "*.tmp"):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, suffix=".tmp", dir=target.parent))
    try:
        yield work
    except OSError as error:
        raise SetupError(f"{error}; free some disk or correct the permissions, then run again")
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[bool]:
    """Holds the lock of `folder`; gives whether another run had to be waited for."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".setup.lock").open("w")
    except OSError as error:
        raise SetupError(f"{error}; this folder must be writable")
    with lock:
        waited = False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another setup is running, waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
            waited = True
        yield waited


# What the machine must have.


def check_platform() -> None:
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        libc = ""  # musl, or no Linux at all
    name, _, version = libc.partition(" ")
    is_new_enough = name == "glibc" and tuple(map(int, version.split(".")[:2])) >= MIN_GLIBC
    if sys.platform == "linux" and platform.machine() == "x86_64" and is_new_enough:
        return
    raise SetupError(
        f"there are wheels only for x86-64 Linux with glibc {MIN_GLIBC[0]}.{MIN_GLIBC[1]} or newer, "
        f"this is {sys.platform} {platform.machine()} with {libc or 'another C library'}; "
        f"unpack a libtorch {TORCH_VERSION} yourself and set LIBTORCH to it"
    )


def check_pip() -> None:
    probe = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True)
    if probe.returncode != 0:
        raise SetupError(
            f"{sys.executable} has no pip; install it (on Debian: apt install python3-pip), "
            "choose another Python with `make PYTHON=… setup`, or take the wheels from a folder "
            "with KVTIDE_WHEELS=FOLDER"
        )


def check_disk(folder: Path, wheels: tuple[Wheel, ...], fetching: bool) -> None:
    """Needed: what is unpacked, and while fetching the largest wheel twice (pip moves by copying)."""
    unpacked = sum(w.size for w in wheels)  # the unpacked part is about as large as the wheels
    need = unpacked + (2 * max(w.size for w in wheels) if fetching else 0)
    free = shutil.disk_usage(folder).free
    if free < need:
        raise SetupError(
            f"{shown(folder)} needs {megabytes(need)} of free disk for a moment "
            f"({megabytes(unpacked)} stay), there are {megabytes(free)}"
        )


def warn_without_cxx() -> None:
    cxx = os.environ.get("CXX", "c++").split()[0]
    if not shutil.which(cxx):
        say(f"warning: no C++ compiler `{cxx}`; tch needs one (on Debian: apt install g++)")


# Talking.


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"


def interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    sys.exit(main())
