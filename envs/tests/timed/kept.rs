//! Timings in a file: a run that was broken off goes on, and what cannot be gone on with is refused.

use std::fs;
use std::ops::ControlFlow;

use kvtide_envs::calibrate::{Measured, MeasurementPlan, TimingsFile, measure};
use kvtide_envs::deploy::EngineKind;
use tempfile::tempdir;

use super::synthetic::{self, Synthetic};

fn quiet() -> Synthetic {
    Synthetic { noise: 0.0, ..synthetic::all(1).remove(0) }
}

fn schedule() -> MeasurementPlan {
    MeasurementPlan::new(&quiet().deployment.engine(EngineKind::V1), 60, 3)
}

#[test]
fn a_run_that_was_broken_off_goes_on_from_its_file() {
    let (folder, schedule) = (tempdir().unwrap(), schedule());
    let path = folder.path().join("timings.json");
    for most in [0, 26, usize::MAX] {
        let mut until = |done| if done < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        let (measured, ended) =
            TimingsFile::open(Some(&path)).unwrap().complete(&schedule, &mut quiet(), &mut until).unwrap();
        assert_eq!((measured.len(), ended.is_break()), (most.clamp(1, schedule.len()), most < schedule.len()));
        assert_eq!(Measured::read(&path).unwrap(), measured);
    }
    assert_eq!(Measured::read(&path).unwrap(), measure(&schedule, &mut quiet(), &mut |_| {}).unwrap());
    // The one file, and nothing beside it.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    // Nothing is left to time, and without a file nothing is kept.
    let mut never = |done: usize| -> ControlFlow<()> { unreachable!("{done} are all") };
    assert!(
        TimingsFile::open(Some(&path)).unwrap().complete(&schedule, &mut quiet(), &mut never).unwrap().1.is_continue()
    );
    let mut stop = |_| ControlFlow::Break(());
    assert_eq!(TimingsFile::open(None).unwrap().complete(&schedule, &mut quiet(), &mut stop).unwrap().0.len(), 1);
}

#[test]
fn a_file_that_is_of_no_use_is_told() {
    let (folder, schedule) = (tempdir().unwrap(), schedule());
    let path = folder.path().join("timings.json");
    let on = &mut |_| ControlFlow::Continue(());
    let open = |text: &str| {
        fs::write(&path, text).unwrap();
        TimingsFile::open(Some(&path))
    };
    let told = open("[]").unwrap_err().to_string();
    assert!(told.starts_with(&format!("{}: no timings of a device: ", path.display())), "{told}");
    let missing = Measured::read(&folder.path().join("none.json")).unwrap_err().to_string();
    assert!(missing.contains("none.json: cannot open: "), "{missing}");

    let other = Measured { block_size: 8, ..Measured::begin(&schedule, &mut quiet()).unwrap() };
    let kept = open(&serde_json::to_string(&other).unwrap()).unwrap();
    let told = kept.complete(&schedule, &mut quiet(), on).unwrap_err().to_string();
    let name = quiet().name;
    let expected = format!(
        "{} has timings of llama-3-8b on {name:?} in blocks of 8, and this is llama-3-8b on {name:?} in blocks of 16",
        path.display()
    );
    assert_eq!(told, expected);

    // Found out before the first measurement, not after ten.
    let nowhere = folder.path().join("no/such/folder.json");
    let mut never = |done: usize| -> ControlFlow<()> { unreachable!("{done} are timed and cannot be kept") };
    let told = TimingsFile::open(Some(&nowhere)).unwrap().complete(&schedule, &mut quiet(), &mut never).unwrap_err();
    assert!(told.to_string().contains("folder.json: cannot write: "), "{told}");
}
