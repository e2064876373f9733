//! Timings in a file: kept as they come, and gone on with.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::{DeviceAbout, MeasureError, Measured, MeasurementPlan, TimedDevice};
use crate::files;

/// Measurements after which the file is written again.
const KEEP_EVERY: usize = 10;
/// Largest file that is read, bytes.
const MAX_BYTES: u64 = 64 << 20;

/// Where a device's timings are kept, and those that were there already. The file has [`Measured`] as JSON.
#[derive(Debug)]
pub struct TimingsFile {
    path: Option<PathBuf>,
    before: Option<Measured>,
}

/// Why timings could not be taken, read or kept.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KeptError {
    /// A file that cannot be read, or has something else in it.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Timings of something else, which cannot be gone on with.
    #[error("{} has timings of {kept}, and this is {this}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// Model, device and block size there.
        kept: String,
        /// Model, device and block size here.
        this: String,
    },
    /// The device failed.
    #[error(transparent)]
    Measure(#[from] MeasureError),
}

impl KeptError {
    fn file(path: &Path, what: &str, why: impl std::fmt::Display) -> KeptError {
        KeptError::File { path: path.to_owned(), reason: format!("{what}: {why}") }
    }
}

impl Measured {
    /// Whether these are measurements of what `device` has on it, in blocks of `schedule`'s size, so that they can be
    /// completed there.
    pub fn is_of(&self, device: &dyn TimedDevice, schedule: &MeasurementPlan) -> bool {
        let about = device.about();
        (&self.about.name, &self.about.model, self.block_size) == (&about.name, &about.model, schedule.block_size)
    }

    /// As [`complete`](Self::complete), and `keep` is given what is there after every so many measurements and at the end,
    /// whatever that is: what was measured is not lost with the process.
    ///
    /// # Errors
    /// The first measurement that fails, after what is there was kept; or that it could not be kept.
    pub fn complete_keeping<E: From<MeasureError>>(
        &mut self,
        schedule: &MeasurementPlan,
        device: &mut dyn TimedDevice,
        every: usize,
        watch: &mut dyn FnMut(usize) -> ControlFlow<()>,
        keep: &mut dyn FnMut(&Measured) -> Result<(), E>,
    ) -> Result<ControlFlow<()>, E> {
        loop {
            let (before, mut is_stopped) = (self.len(), false);
            let mut until = |done: usize| {
                if done >= before + every.max(1) {
                    return ControlFlow::Break(());
                }
                let flow = watch(done);
                is_stopped = flow.is_break();
                flow
            };
            let ended = self.complete(schedule, device, &mut until);
            keep(self)?;
            let ended = ended?;
            if ended.is_continue() || is_stopped {
                return Ok(ended);
            }
        }
    }
}

impl Measured {
    /// Reads timings that were kept in a file.
    ///
    /// # Errors
    /// The file cannot be read, is longer than 64 MiB, or has no timings in it.
    pub fn read(path: &Path) -> Result<Measured, KeptError> {
        let mut text = String::new();
        let file = File::open(path).map_err(|error| KeptError::file(path, "cannot open", error))?;
        file.take(MAX_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(|error| KeptError::file(path, "cannot read", error))?;
        if text.len() as u64 > MAX_BYTES {
            let reason = format!("longer than {MAX_BYTES} bytes");
            return Err(KeptError::File { path: path.to_owned(), reason });
        }
        serde_json::from_str(&text).map_err(|error| KeptError::file(path, "no timings of a device", error))
    }

    /// Writes them down: whenever the process ends, the file is a whole one.
    fn keep(&self, path: &Path) -> Result<(), KeptError> {
        let cannot = |why: io::Error| KeptError::file(path, "cannot write", why);
        let json = serde_json::to_vec(self).map_err(|error| cannot(error.into()))?;
        files::replace(path, &json).map_err(cannot)
    }
}

impl TimingsFile {
    /// What `path` has, which may be nothing yet; without a path nothing is kept.
    ///
    /// # Errors
    /// The file is there and cannot be read, or has no timings in it.
    pub fn open(path: Option<&Path>) -> Result<TimingsFile, KeptError> {
        let before = path.filter(|path| path.exists()).map(Measured::read).transpose()?;
        Ok(TimingsFile { path: path.map(Path::to_owned), before })
    }

    /// Times on `device` what `schedule` says and is not kept yet, in its order. All there is is written down before the
    /// first measurement, so that a file that cannot be written is found out then, after every tenth, and at the end.
    /// `watch` is called before each measurement with the number of those done, and may break off.
    ///
    /// # Errors
    /// What is kept is of another model, device or block size; a measurement failed, after what is there was kept; or the
    /// file cannot be written.
    pub fn complete(
        self,
        schedule: &MeasurementPlan,
        device: &mut dyn TimedDevice,
        watch: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<(Measured, ControlFlow<()>), KeptError> {
        let TimingsFile { path, before } = self;
        let path = path.as_deref();
        let mut measured = match before {
            Some(before) if before.is_of(device, schedule) => before,
            Some(before) => return Err(other(path, &before, device, schedule)),
            None => Measured::begin(schedule, device)?,
        };
        let mut keep = |measured: &Measured| path.map_or(Ok(()), |path| measured.keep(path));
        keep(&measured)?;
        let ended = measured.complete_keeping(schedule, device, KEEP_EVERY, watch, &mut keep)?;
        Ok((measured, ended))
    }
}

fn other(path: Option<&Path>, kept: &Measured, device: &dyn TimedDevice, schedule: &MeasurementPlan) -> KeptError {
    let of =
        |about: &DeviceAbout, block_size: u32| format!("{} on {:?} in blocks of {block_size}", about.model, about.name);
    KeptError::Other {
        path: path.unwrap_or(Path::new("")).to_owned(),
        kept: of(&kept.about, kept.block_size),
        this: of(&device.about(), schedule.block_size),
    }
}
