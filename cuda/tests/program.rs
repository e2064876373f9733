//! `kvtide-device` as a process: what it says, and how it ends.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Output};

use kvtide_emulator::{MISSING_COMPILER, libraries};
use tempfile::tempdir;

/// The program with a driver from `folder`, or with whatever the machine has.
fn device(folder: Option<&Path>, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide-device"));
    if let Some(folder) = folder {
        command.env("LD_LIBRARY_PATH", folder);
    }
    command.args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn help_is_no_error_and_says_every_command() {
    for arguments in [&[][..], &["help"], &["--help"], &["-h"]] {
        let output = device(None, arguments);
        let text = stdout(&output);
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
        for command in ["info", "check", "speed", "calibrate", "compare", "all"] {
            assert!(text.contains(&format!("\n  {command} ")), "{arguments:?}: {text}");
        }
        assert!(!text.contains("part"), "{text}");
    }
}

#[test]
fn nobody_has_to_listen() {
    let run = |command: &mut Command| command.output().unwrap().status.code();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let program = || Command::new(env!("CARGO_BIN_EXE_kvtide-device"));
    for arguments in [&["chekc"][..], &["calibrate", "--env", "llama-3-8b@nothing"], &[], &["info"]] {
        let expected = run(program().args(arguments));
        assert_eq!(run(program().args(arguments).stderr(full())), expected, "{arguments:?}");
        assert_eq!(run(program().args(arguments).stderr(io::pipe().unwrap().1)), expected, "{arguments:?}");
        assert_eq!(run(program().args(arguments).stdout(io::pipe().unwrap().1)), expected, "{arguments:?}");
        assert_eq!(run(program().args(arguments).stdout(full())), Some(2), "{arguments:?}");
    }
}

#[test]
fn what_cannot_be_read_is_said_and_ends_with_2() {
    for (arguments, says) in [
        (&["chekc"][..], "'chekc'"),
        (&["check", "--seeds", "0"], "--seeds"),
        (&["check", "--seeds"], "--seeds"),
        (&["check", "--sed", "1"], "'--sed'"),
        (&["speed", "--device", "-1"], "-1"),
        (&["calibrate", "--points", "19"], "--points"),
        (&["calibrate", "--repeats", "1001"], "--repeats"),
        (&["compare", "--engine", "v2"], "v2"),
        (&["compare", "--workload", "chat:speed=1"], "chat:speed=1"),
        (&["compare", "--set", "num_gpu_blocks"], "num_gpu_blocks"),
        (&["all"], "all needs --out FOLDER"),
        (&["part", "kernels"], "part needs --out FILE"),
        (&["speed", "--env", "llama-3-8b@nothing"], "nothing"),
    ] {
        let output = device(None, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(stderr(&output).starts_with("error: ") && output.stdout.is_empty(), "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains(says), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn without_a_device_schedules_are_checked_and_the_rest_is_said() {
    let info = device(None, &["info"]);
    if info.status.success() {
        let _ = writeln!(io::stderr(), "skipped: no device: there is one");
        return;
    }
    assert_eq!((info.status.code(), stdout(&info).as_str()), (Some(1), "0 CUDA devices\n"));
    let check = device(None, &["check", "--schedules", "5"]);
    let text = stdout(&check);
    assert!(check.status.success() && text.contains("5 schedules on host memory"), "{check:?}");
    assert_eq!(text.matches("skipped: no CUDA device: there is no driver, or it knows none").count(), 2, "{text}");
    for command in ["speed", "calibrate", "compare"] {
        let output = device(None, &[command]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).starts_with("error: no CUDA device: "), "{output:?}");
    }
}

#[test]
fn a_report_has_every_part_of_the_device() {
    let libraries = match libraries(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/emulated")) {
        Ok(libraries) => libraries,
        Err(why) if why.starts_with(MISSING_COMPILER) => {
            let _ = writeln!(io::stderr(), "skipped: the emulated device: {why}");
            return;
        }
        Err(why) => panic!("{why}"),
    };
    let emulated = Some(libraries.folder());
    let info = device(emulated, &["info"]);
    assert!(stdout(&info).starts_with("1 CUDA devices\n0: kvtide emulated device, "), "{info:?}");
    // A model of eight billion weights does not fit the emulated device: its parts fail, each in its own process, and the others
    // are done.
    let folder = tempdir().unwrap();
    let out = folder.path().join("report");
    let arguments = ["all", "--seeds", "1", "--schedules", "5", "--out", &out.display().to_string()];
    let all = device(emulated, &arguments);
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    if report.contains("NVRTC") {
        let _ = writeln!(io::stderr(), "skipped: a report of the device: NVRTC is not there");
        return;
    }
    assert_eq!((all.status.code(), stdout(&all)), (Some(1), report.clone()));
    assert!(report.starts_with("# kvtide emulated device\n"), "{report}");
    assert!(report.contains("1 schedules on kvtide emulated device") && report.contains("ok, 1 seeds"), "{report}");
    assert_eq!(report.matches("FAILED: out of GPU memory: the weights of llama-3-8b").count(), 2, "{report}");
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(out.join("report.json")).unwrap()).unwrap();
    assert_eq!(json["device"], "kvtide emulated device");
    let mut left = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
    assert!(!left.any(|path| path.extension().is_some_and(|extension| extension == "part")));
}
