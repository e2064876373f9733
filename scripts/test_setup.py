#!/usr/bin/env python3
"""Tests of setup.py. No network: the wheels are a few bytes long and pip is a stand-in."""

import contextlib
import hashlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile
from pathlib import Path
from unittest import mock

import setup
from setup import SetupError, Wheel

DATE = (2026, 3, 23, 13, 40, 0)


def make_wheel(folder: Path, file: str, members: dict[str, str], unpack: tuple[str, ...]) -> Wheel:
    path = folder / file
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name, DATE), text)
    content = path.read_bytes()
    return Wheel(file, hashlib.sha256(content).hexdigest(), len(content), unpack)


class InTemporaryFolder(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.parent = self.root / "third_party"
        self.target = self.parent / "libtorch"
        self.parent.mkdir()


class Pins(unittest.TestCase):
    def test_requirements(self) -> None:
        self.assertEqual(
            [w.requirement for w in setup.WHEELS],
            [
                f"torch=={setup.TORCH_VERSION}",
                "nvidia-cuda-runtime==13.0.96",
                "nvidia-cuda-cupti==13.0.85",
                "nvidia-cuda-nvrtc==13.0.88",
            ],
        )

    def test_tags(self) -> None:
        self.assertEqual(
            [w.abi_and_platform for w in setup.WHEELS],
            [
                ("cp311", "manylinux_2_28_x86_64"),
                ("none", "manylinux2014_x86_64"),
                ("none", "manylinux_2_25_x86_64"),
                ("none", "manylinux2010_x86_64"),
            ],
        )

    def test_hashes_are_sha256(self) -> None:
        for wheel in setup.WHEELS:
            self.assertTrue(re.fullmatch("[0-9a-f]{64}", wheel.sha256), wheel.file)

    def test_no_cuda_half_of_torch_is_unpacked(self) -> None:
        torch = setup.WHEELS[0]
        self.assertTrue(torch.wants("torch/include/torch/csrc/api/include/torch/torch.h"))
        self.assertTrue(torch.wants("torch/lib/libtorch_cpu.so"))
        for unwanted in ("torch/lib/libtorch_cuda.so", "torch/lib/libtorch.so", "torch/__init__.py"):
            self.assertFalse(torch.wants(unwanted), unwanted)


class Install(InTemporaryFolder):
    """Everything from wheels in a folder to a finished target, in this process."""

    def setUp(self) -> None:
        super().setUp()
        self.folder = self.root / "wheels"
        self.folder.mkdir()
        torch = make_wheel(
            self.folder,
            "torch-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
            {
                "torch/include/a/b.h": "header",
                "torch/lib/libtorch_cpu.so": "library",
                "torch/lib/libtorch.so": "not this one",
                "torch/lib/libtorch_cuda.so": "nor this",
            },
            ("torch/include/", "torch/lib/libtorch_cpu.so"),
        )
        cudart = make_wheel(
            self.folder,
            "nvidia_cuda_runtime-2.0-py3-none-manylinux2014_x86_64.whl",
            {"nvidia/cu13/lib/libcudart.so.13": "cuda", "nvidia/cu13/include/cuda.h": "no"},
            ("nvidia/cu13/lib/libcudart.so.13",),
        )
        self.wheels = (torch, cudart)
        self.talk = self.enter(contextlib.redirect_stderr(io.StringIO()))

    def enter(self, context):
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    def install(self) -> None:
        setup.install(self.wheels, self.target, str(self.folder))

    def missing(self):
        return setup.what_is_missing(self.wheels, self.target)

    def assert_nothing_left_beside(self, *expected: str) -> None:
        self.assertEqual(sorted(p.name for p in self.parent.iterdir()), list(expected))

    def test_first_install(self) -> None:
        self.assertIn("is not set up", self.missing())
        self.install()

        files = {p.relative_to(self.target).as_posix() for p in self.target.rglob("*") if p.is_file()}
        self.assertEqual(
            files,
            {
                "torch/include/a/b.h",
                "torch/lib/libtorch_cpu.so",
                "torch/lib/libtorch.so",
                "torch/build-version",
                "nvidia/cu13/lib/libcudart.so.13",
                "setup.json",
            },
        )
        self.assertEqual((self.target / "torch/lib/libtorch.so").read_text(), "INPUT(-ltorch_cpu)\n")
        self.assertEqual((self.target / "torch/build-version").read_text(), setup.TORCH_VERSION + "\n")
        header = (self.target / "torch/include/a/b.h").stat()
        self.assertEqual(header.st_mtime, time.mktime((*DATE, 0, 0, -1)))
        self.assertIsNone(self.missing())
        self.assert_nothing_left_beside("libtorch")

    def test_installing_again_replaces_everything(self) -> None:
        self.install()
        (self.target / "torch/left-over").write_text("from an older version")
        self.install()
        self.assertFalse((self.target / "torch/left-over").exists())
        self.assertIsNone(self.missing())
        self.assert_nothing_left_beside("libtorch")

    def test_what_is_missing_names_the_reason(self) -> None:
        self.install()
        library = self.target / "torch/lib/libtorch_cpu.so"
        library.write_text("cut")
        self.assertIn("libtorch_cpu.so is missing or damaged", self.missing())
        library.unlink()
        self.assertIn("libtorch_cpu.so is missing or damaged", self.missing())
        self.assertIn("other pins", setup.what_is_missing(self.wheels[:1], self.target))
        for damaged in ("", "[]", "{}", "{"):
            (self.target / setup.STAMP).write_text(damaged)
            self.assertIn("cannot be read", self.missing(), damaged)

    def test_a_wrong_hash_changes_nothing(self) -> None:
        self.install()
        file = self.folder / self.wheels[1].file
        file.write_bytes(file.read_bytes() + b"!")
        with self.assertRaisesRegex(SetupError, "is not the file that was pinned") as caught:
            self.install()
        self.assertIn(self.wheels[1].sha256, str(caught.exception))
        self.assertIsNone(self.missing())
        self.assert_nothing_left_beside("libtorch")

    def test_an_absent_wheel_is_named_with_the_command_that_fetches_it(self) -> None:
        (self.folder / self.wheels[0].file).unlink()
        with self.assertRaises(SetupError) as caught:
            self.install()
        message = str(caught.exception)
        self.assertIn(f"lacks:\n  {self.wheels[0].file}\n", message)
        self.assertIn("pip download", message)
        self.assertIn("--platform manylinux_2_28_x86_64 --dest FOLDER torch==1.0", message)
        self.assertNotIn(self.wheels[1].requirement, message)
        self.assert_nothing_left_beside()

    def test_a_wheel_without_a_wanted_member(self) -> None:
        wheel = self.wheels[1]
        self.wheels = (Wheel(wheel.file, wheel.sha256, wheel.size, ("nvidia/cu14/lib/",)),)
        with self.assertRaisesRegex(SetupError, "has no nvidia/cu14/lib/"):
            self.install()
        self.assert_nothing_left_beside()

    def test_a_killed_run_is_cleaned_up_by_the_next(self) -> None:
        (self.parent / ".libtorch-killed.tmp" / "new").mkdir(parents=True)
        self.install()
        self.assert_nothing_left_beside("libtorch")

    def test_a_failing_rename_puts_the_old_one_back(self) -> None:
        self.install()
        with self.assertRaises(FileNotFoundError):
            setup.swap(self.root / "no such folder", self.target, self.root / "old")
        self.assertIsNone(self.missing())

    def test_too_little_disk(self) -> None:
        with mock.patch.object(shutil, "disk_usage", return_value=mock.Mock(free=0)):
            with self.assertRaisesRegex(SetupError, "of free disk"):
                self.install()
        self.assert_nothing_left_beside()


class UsersOwn(InTemporaryFolder):
    def test_nothing_set_or_ours(self) -> None:
        ours = str(setup.TARGET / "torch")
        for env in ({}, {"LIBTORCH": ours}):
            self.assertIsNone(setup.users_own_libtorch(env), env)

    def test_an_empty_value_would_win_over_the_cargo_configuration(self) -> None:
        with self.assertRaisesRegex(SetupError, "unset it"):
            setup.users_own_libtorch({"LIBTORCH": ""})

    def test_a_libtorch(self) -> None:
        (self.root / "lib").mkdir()
        env = {"LIBTORCH": str(self.root)}
        with self.assertRaisesRegex(SetupError, "has no lib/libtorch_cpu.so"):
            setup.users_own_libtorch(env)
        (self.root / "lib" / "libtorch_cpu.so").touch()
        self.assertIn("LD_LIBRARY_PATH=", setup.users_own_libtorch(env))

    def test_the_one_of_python(self) -> None:
        self.assertIn("nothing to do", setup.users_own_libtorch({"LIBTORCH_USE_PYTORCH": "1"}))


class Advice(unittest.TestCase):
    def test_by_what_pip_said(self) -> None:
        for said, then in (
            ("OSError: [Errno 28] No space left on device", "disk is full"),
            ("[Errno -3] Temporary failure in name resolution\nNo matching distribution", "not reached"),
            ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM", "cut short"),
            ("ERROR: No matching distribution found for torch==2.11.0", "does not have it"),
            ("Segmentation fault", "pip's words above"),
        ):
            self.assertIn(then, setup.advice(said), said)


class Platform(unittest.TestCase):
    def test_refusals(self) -> None:
        for system, machine, libc in (
            ("darwin", "x86_64", "glibc 2.36"),
            ("linux", "aarch64", "glibc 2.36"),
            ("linux", "x86_64", "glibc 2.27"),
            ("linux", "x86_64", None),
        ):
            with self.subTest(system=system, machine=machine, libc=libc):
                with mock.patch.multiple(setup.sys, platform=system), \
                        mock.patch.object(setup.platform, "machine", return_value=machine), \
                        mock.patch.object(setup.os, "confstr", return_value=libc), \
                        self.assertRaisesRegex(SetupError, "set LIBTORCH to it"):
                    setup.check_platform()


# Stands in for pip: says it is there, then does what $FAKE_PIP says.
FAKE_PIP = """
import os, signal, sys
if sys.argv[1:] == ["--version"]:
    sys.exit(1 if os.environ["FAKE_PIP"] == "absent" else 0)
destination = sys.argv[sys.argv.index("--dest") + 1]
if os.environ["FAKE_PIP"] == "hang":
    os.makedirs(destination)
    open(os.path.join(destination, "half"), "w").write("half of a wheel")
    print("started", os.getpid(), file=sys.stderr, flush=True)
    signal.pause()
if os.environ["FAKE_PIP"] == "altered":
    os.makedirs(destination)
    open(os.path.join(destination, os.environ["FAKE_FILE"]), "w").write("something else")
    sys.exit(0)
print("Connection refused", file=sys.stderr)
sys.exit(1)
"""


def supported() -> bool:
    with contextlib.suppress(SetupError):
        setup.check_platform()
        return shutil.disk_usage(setup.ROOT).free > 4e9
    return False


@unittest.skipUnless(supported(), "this platform or disk is one that setup.py refuses")
class Process(InTemporaryFolder):
    """The script as a process of its own in an empty checkout, with a stand-in for pip."""

    def setUp(self) -> None:
        super().setUp()
        (self.root / "scripts").mkdir()
        (self.root / "pip.py").write_text(FAKE_PIP)
        self.script = self.root / "scripts" / "setup.py"
        shutil.copy(setup.__file__, self.script)

    def start(self, pip: str, *arguments: str) -> subprocess.Popen:
        env = {k: v for k, v in os.environ.items() if k not in ("LIBTORCH", "KVTIDE_WHEELS")}
        env.update(FAKE_PIP=pip, FAKE_FILE=setup.WHEELS[0].file, PYTHONPATH=str(self.root))
        process = subprocess.Popen(
            [sys.executable, str(self.script), *arguments],
            env=env, stderr=subprocess.PIPE, text=True,
            # A shell that starts this in the background may have SIGINT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def outcome(self, process: subprocess.Popen) -> tuple[int, str]:
        talk = process.stderr.read()
        return process.wait(), talk

    def wait_for(self, process: subprocess.Popen, word: str) -> str:
        for line in process.stderr:
            if word in line:
                return line
        self.fail(f"ended without saying {word!r}")

    def assert_clean(self) -> None:
        self.assertEqual([p.name for p in self.parent.iterdir()], [".setup.lock"])

    def test_check_says_what_is_missing(self) -> None:
        status, talk = self.outcome(self.start("absent", "--check"))
        self.assertEqual(status, 1)
        self.assertEqual(talk, "setup: third_party/libtorch is not set up; run `make setup`\n")

    def test_no_pip(self) -> None:
        status, talk = self.outcome(self.start("absent"))
        self.assertEqual(status, 2)
        self.assertIn("has no pip; install it (on Debian: apt install python3-pip)", talk)
        self.assert_clean()

    def test_no_network(self) -> None:
        status, talk = self.outcome(self.start("fail"))
        self.assertEqual(status, 2)
        self.assertIn("pip could not fetch torch==2.11.0: the package index was not reached", talk)
        self.assertNotIn("Traceback", talk)
        self.assert_clean()

    def test_an_altered_wheel(self) -> None:
        status, talk = self.outcome(self.start("altered"))
        self.assertEqual(status, 2)
        self.assertIn("is not the file that was pinned; nothing was changed", talk)
        self.assert_clean()

    def test_interrupts(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                process = self.start("hang")
                pip = int(self.wait_for(process, "started").split()[-1])
                process.send_signal(number)
                status, talk = self.outcome(process)
                self.assertEqual((status, talk), (130, "setup: interrupted; nothing was changed\n"))
                self.assert_clean()
                with self.assertRaises(ProcessLookupError):
                    os.kill(pip, 0)

    def test_a_second_run_waits_for_the_first(self) -> None:
        first = self.start("hang")
        self.wait_for(first, "started")
        second = self.start("fail")
        self.wait_for(second, "another setup is running")
        first.send_signal(signal.SIGINT)
        self.assertEqual(self.outcome(first)[0], 130)
        self.assertEqual(self.outcome(second)[0], 2)
        self.assert_clean()


if __name__ == "__main__":
    unittest.main()
