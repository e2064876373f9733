//! What a release is described by that no engine has at hand, for a node in C: turns, how often and how lately a prefix was
//! asked for, who comes back, and whether LRU would have hit more.
#![expect(clippy::missing_safety_doc, reason = "the rules for all functions stand at the head of the header")]

use std::sync::Mutex;

use kvtide_rules as rules;
use kvtide_rules::{Micros, Shadow, Visit};
use kvtide_runtime as rt;

use crate::foreign::{self, Sized32};
use crate::policy::alone;
use crate::retention::{KVTIDE_UNKNOWN, Release};
use crate::rules::choice;
use crate::status::{Failure, Status, guarded};

/// A request that is admitted for the first time.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Visitor {
    /// sizeof(kvtide_visitor).
    pub struct_size: u32,
    /// Full blocks of its prompt that a cache can have, which never has the last token: (prompt tokens - 1) / tokens per block.
    pub asked_blocks: u32,
    /// How many of them were cached.
    pub hit_blocks: u32,
    /// Blocks of the pool that nobody held before it took any.
    pub free_blocks: u32,
    /// Any number that stands for its tenant.
    pub kind: u64,
    /// Now, on any clock that does not go backwards.
    pub now_us: u64,
    /// Cached blocks evicted since the pool was made.
    pub evicted: u64,
}

// SAFETY: `repr(C)`, `struct_size: u32` comes first, and all fields are integers.
unsafe impl Sized32 for Visitor {
    const NAME: &'static str = "visitor";
}

/// The memory of a node, of bounded size. For one thread at a time.
pub struct Reuse {
    known: Mutex<Known>,
}

struct Known {
    reuse: rules::Reuse,
    shadow: Shadow,
    /// By number; those of requests that have left are given again.
    visits: Vec<Option<Visit>>,
    vacant: Vec<u32>,
}

impl Known {
    fn visit(&self, visit: u32) -> Result<Visit, Failure> {
        self.visits.get(visit as usize).copied().flatten().ok_or(Failure::UnknownVisit { visit })
    }

    fn open(&mut self, visit: Visit) -> u32 {
        if let Some(number) = self.vacant.pop() {
            self.visits[number as usize] = Some(visit);
            return number;
        }
        self.visits.push(Some(visit));
        self.visits.len() as u32 - 1
    }
}

/// Makes the memory of a node with so many GPU blocks. *reuse is to be freed with kvtide_reuse_free, or null if the call fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_reuse_new(num_gpu_blocks: u32, reuse: *mut *mut Reuse) -> Status {
    guarded(|| {
        // SAFETY: null or may be written.
        unsafe { foreign::write(reuse, std::ptr::null_mut(), "reuse")? };
        let known = Known {
            reuse: rules::Reuse::new(num_gpu_blocks),
            shadow: Shadow::new(num_gpu_blocks),
            visits: Vec::new(),
            vacant: Vec::new(),
        };
        let new = Box::new(Reuse { known: Mutex::new(known) });
        // SAFETY: as above.
        unsafe { foreign::write(reuse, Box::into_raw(new), "reuse") }
    })
}

/// Frees a memory; null is none. Nobody may be using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_reuse_free(reuse: *mut Reuse) {
    // SAFETY: null, or made by `kvtide_reuse_new` and used no more.
    unsafe { foreign::free(reuse) };
}

/// A request is admitted for the first time. keys are those by which its asked_blocks are found, in their order: hashes of all
/// text up to the end of each; blocks behind the last key are like nobody else's. Writes to *visit the number by which it is
/// told of from now on, until kvtide_reuse_left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_reuse_admitted(
    reuse: *const Reuse,
    keys: *const u64,
    num_keys: usize,
    visitor: *const Visitor,
    visit: *mut u32,
) -> Status {
    guarded(|| {
        // SAFETY: each is null or as the header says.
        let (reuse, keys, visitor) = unsafe {
            (foreign::reference(reuse, "reuse")?, foreign::array(keys, num_keys, "keys")?, foreign::input(visitor)?)
        };
        let Visitor { asked_blocks, hit_blocks, free_blocks, kind, now_us, evicted, .. } = *visitor;
        let keys = keys.get(..asked_blocks as usize).unwrap_or(keys);
        let mut known = alone(&reuse.known)?;
        // SAFETY: null or may be written.
        unsafe { foreign::write(visit, u32::MAX, "visit")? };
        let new = known.reuse.admitted(keys, asked_blocks, hit_blocks, kind, Micros(now_us), evicted);
        known.shadow.admitted(keys, asked_blocks, hit_blocks, free_blocks);
        let number = known.open(new);
        // SAFETY: as above.
        unsafe { foreign::write(visit, number, "visit") }
    })
}

/// A request that was preempted is admitted again. keys are those of the full blocks it asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_reuse_resumed(
    reuse: *const Reuse,
    visit: u32,
    keys: *const u64,
    num_keys: usize,
    now_us: u64,
) -> Status {
    guarded(|| {
        // SAFETY: each is null or as the header says.
        let (reuse, keys) = unsafe { (foreign::reference(reuse, "reuse")?, foreign::array(keys, num_keys, "keys")?) };
        let mut known = alone(&reuse.known)?;
        let visit = known.visit(visit)?;
        known.reuse.resumed(&visit, Micros(now_us));
        known.shadow.held(keys);
        Ok(())
    })
}

/// A request gives its blocks back, finished or preempted; stop is a kvtide_stop. keys are those of all its full blocks, what it
/// generated included. Tell this before its parts are described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_reuse_released(
    reuse: *const Reuse,
    visit: u32,
    stop: u32,
    keys: *const u64,
    num_keys: usize,
    now_us: u64,
    evicted: u64,
) -> Status {
    guarded(|| {
        // SAFETY: each is null or as the header says.
        let (reuse, keys) = unsafe { (foreign::reference(reuse, "reuse")?, foreign::array(keys, num_keys, "keys")?) };
        let stop = choice(&rt::Stop::ALL, stop, "stop")?;
        let mut known = alone(&reuse.known)?;
        let visit = known.visit(visit)?;
        known.reuse.released(&visit, stop, Micros(now_us), evicted);
        known.shadow.released(keys, keys.len() as u32);
        Ok(())
    })
}

/// Fills in what is remembered for the release->part of a request that stops for release->stop, once evicted cached blocks
/// have been evicted: turn, asked, asked_evicted, kind_reuse, kind_return_us, last_return_us, held_evicted and
/// evicted_per_second. The other fields stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_reuse_describe(
    reuse: *const Reuse,
    visit: u32,
    evicted: u64,
    release: *mut Release,
) -> Status {
    guarded(|| {
        // SAFETY: each is null or as the header says.
        let (reuse, out) = unsafe { (foreign::reference(reuse, "reuse")?, foreign::output(release)?) };
        let mut described = rt::Release {
            part: choice(&[rt::Part::Head, rt::Part::Tail], out.part, "part")?,
            ..rt::Release::default()
        };
        let stop = choice(&rt::Stop::ALL, out.stop, "stop")?;
        let known = alone(&reuse.known)?;
        let visit = known.visit(visit)?;
        known.reuse.describe(&visit, stop, evicted, &mut described);
        *out = Release {
            turn: described.turn,
            asked: described.asked,
            asked_evicted: described.asked_evicted.unwrap_or(KVTIDE_UNKNOWN),
            kind_reuse: described.kind_reuse,
            kind_return_us: described.kind_return_us.unwrap_or(KVTIDE_UNKNOWN),
            last_return_us: described.last_return_us.unwrap_or(KVTIDE_UNKNOWN),
            held_evicted: described.held_evicted,
            evicted_per_second: described.evicted_per_second,
            ..*out
        };
        Ok(())
    })
}

/// A request has left for good; its number may be given again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_reuse_left(reuse: *const Reuse, visit: u32) -> Status {
    guarded(|| {
        // SAFETY: null or a memory that lives.
        let reuse = unsafe { foreign::reference(reuse, "reuse")? };
        let mut known = alone(&reuse.known)?;
        known.visit(visit)?;
        known.visits[visit as usize] = None;
        known.vacant.push(visit);
        Ok(())
    })
}

/// Writes whether the pool hits less than it would if the least recently used block went first, by more than may be lost:
/// what kvtide_retention_set_behind wants to know after every admission.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_reuse_is_behind(reuse: *const Reuse, is_behind: *mut u32) -> Status {
    guarded(|| {
        // SAFETY: null or a memory that lives.
        let reuse = unsafe { foreign::reference(reuse, "reuse")? };
        let behind = alone(&reuse.known)?.shadow.is_behind();
        // SAFETY: null or may be written.
        unsafe { foreign::write(is_behind, u32::from(behind), "is_behind") }
    })
}
