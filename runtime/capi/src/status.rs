//! Codes, the last error's text, and the wall no panic passes.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_char;
use std::fmt::{self, Write};
use std::mem;
use std::panic::{self, AssertUnwindSafe};

use kvtide_reload::LoadError;
use kvtide_rules::SloError;

/// What became of a call. Numbers are never given another meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// A pointer that must not be null is null.
    NullPointer = 1,
    /// An argument is out of its range.
    Argument = 2,
    /// The program's header is not this library's.
    Abi = 3,
    /// The file could not be read.
    Io = 4,
    /// The bytes are not a sound table.
    Table = 5,
    /// The table is sound, but made for another schema or action set.
    UnknownSchema = 6,
    /// The table decides heads that the node cannot act on.
    Profile = 7,
    /// Another thread is observing or deciding with this policy, or using this queue, cadence or reuse.
    Busy = 8,
    /// A bug in kvtide. The policy may go on being used.
    Internal = 9,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Null(&'static str),
    Unaligned(&'static str),
    Number { name: &'static str, found: u64, limit: u64 },
    NotUtf8(&'static str),
    Empty(&'static str),
    NobodyThere { seat: i64 },
    UnknownVisit { visit: u32 },
    Slo(SloError),
    FewerWaiting { waiting: u32, given: usize },
    EmptyHead(&'static str),
    Abi { found: u32, expected: u32 },
    Size { name: &'static str, found: u32, expected: usize },
    Load(LoadError),
    Busy,
}

impl Failure {
    fn status(&self) -> Status {
        match self {
            Failure::Null(_) => Status::NullPointer,
            Failure::Unaligned(_)
            | Failure::Number { .. }
            | Failure::NotUtf8(_)
            | Failure::Empty(_)
            | Failure::NobodyThere { .. }
            | Failure::UnknownVisit { .. }
            | Failure::Slo(_)
            | Failure::FewerWaiting { .. }
            | Failure::EmptyHead(_) => Status::Argument,
            Failure::Abi { .. } | Failure::Size { .. } => Status::Abi,
            Failure::Load(LoadError::Io { .. } | LoadError::NotAFile { .. }) => Status::Io,
            Failure::Load(LoadError::Format { error }) if error.is_unknown_meaning() => Status::UnknownSchema,
            Failure::Load(LoadError::Profile { .. }) => Status::Profile,
            Failure::Load(_) => Status::Table,
            Failure::Busy => Status::Busy,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Null(name) => write!(f, "{name} is null"),
            Failure::Unaligned(name) => write!(f, "{name} is not aligned"),
            Failure::Number { name, found, limit } => write!(f, "{name} is {found}, the limit is {limit}"),
            Failure::NotUtf8(name) => write!(f, "{name} is not UTF-8"),
            Failure::Empty(name) => write!(f, "{name} is empty"),
            Failure::NobodyThere { seat } => write!(f, "nobody has seat {seat}"),
            Failure::UnknownVisit { visit } => write!(f, "no request has visit {visit}"),
            Failure::Slo(error) => write!(f, "{error}"),
            Failure::FewerWaiting { waiting, given } => {
                write!(f, "snapshot.waiting is {waiting}, but {given} waiting requests are given")
            }
            Failure::EmptyHead(name) => write!(f, "mask allows no choice of head {name}"),
            Failure::Abi { found, expected } => {
                write!(f, "program was built for ABI version {found}, this library has {expected}")
            }
            Failure::Size { name, found, expected } => {
                write!(f, "{name}.struct_size is {found}, this library has {expected}")
            }
            Failure::Load(error) => write!(f, "{}: {error}", error.name()),
            Failure::Busy => write!(f, "another thread is using this policy, queue, cadence or reuse"),
        }
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Failure {
        Failure::Load(error)
    }
}

/// Longest text of an error, with its terminating zero.
const TEXT_BYTES: usize = 512;

/// A C string of bounded length; what does not fit is cut.
struct CText {
    bytes: [u8; TEXT_BYTES],
    len: usize,
}

impl CText {
    const EMPTY: CText = CText { bytes: [0; TEXT_BYTES], len: 0 };
}

impl Write for CText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = TEXT_BYTES - 1 - self.len;
        let mut end = text.len().min(room);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        for byte in text.bytes().take(end) {
            // A zero in a path would end the text early.
            self.bytes[self.len] = if byte == 0 { b'?' } else { byte };
            self.len += 1;
        }
        Ok(())
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CText> = const { RefCell::new(CText::EMPTY) };
}

/// The text of this thread's last failure.
pub(crate) fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|text| text.as_ptr().cast_const().cast::<c_char>()).unwrap_or(c"".as_ptr())
}

fn remember(failure: &dyn fmt::Display) {
    // At the end of a thread there may be no place left to remember anything.
    let _ = LAST_ERROR.try_with(|text| {
        if let Ok(mut text) = text.try_borrow_mut() {
            *text = CText::EMPTY;
            let _ = write!(text, "{failure}");
        }
    });
}

/// Runs what a C function does: a failure becomes its code and the last error, a panic becomes
/// [`Status::Internal`].
pub(crate) fn guarded(work: impl FnOnce() -> Result<(), Failure>) -> Status {
    // What a panic may leave half done: a mutex it poisons, which is taken all the same, and averages of the observer.
    match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(failure)) => {
            remember(&failure);
            failure.status()
        }
        Err(payload) => {
            remember(&"internal error");
            abandon(payload);
            Status::Internal
        }
    }
}

/// Leaks a panic's payload: dropping it could panic again.
fn abandon(payload: Box<dyn Any + Send>) {
    mem::forget(payload);
}
