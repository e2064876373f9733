//! What a program calls.
#![expect(clippy::missing_safety_doc, reason = "the rules for all functions stand at the head of the header")]

use std::ffi::c_char;
use std::sync::atomic::Ordering;

use kvtide_runtime::{ACTION_SET_HASH, Action, SCHEMA_HASH};

use crate::KVTIDE_ABI_VERSION;
use crate::choices::FallbackReason;
use crate::foreign;
use crate::policy::Policy;
use crate::status::{self, Failure, Status, guarded};
use crate::structs::{
    Controls, Counters, Mask, Observation, Options, RunningRequest, Snapshot, WaitingRequest, check_abi,
};

/// The library's version, such as "0.1.0". Static.
#[unsafe(no_mangle)]
pub extern "C" fn kvtide_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The KVTIDE_ABI_VERSION the library was built with. A program is refused unless its own is the same.
#[unsafe(no_mangle)]
pub extern "C" fn kvtide_abi_version() -> u32 {
    KVTIDE_ABI_VERSION
}

/// Hash of the meaning of an observation. Tables carry the one they were made for.
#[unsafe(no_mangle)]
pub extern "C" fn kvtide_schema_hash() -> u64 {
    SCHEMA_HASH
}

/// Hash of the meaning of an action. Tables carry the one they were made for.
#[unsafe(no_mangle)]
pub extern "C" fn kvtide_action_set_hash() -> u64 {
    ACTION_SET_HASH
}

/// What went wrong in the last call on this thread that failed; empty if none did. One line, at most 511 bytes. Valid
/// until the next call that fails on this thread, or the thread's end. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn kvtide_last_error() -> *const c_char {
    status::last_error()
}

/// Fills options with defaults. Pass sizeof(kvtide_options) and KVTIDE_ABI_VERSION; nothing is written unless both
/// are the library's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_options_default(options: *mut Options, struct_size: usize, abi_version: u32) -> Status {
    guarded(|| {
        check_abi(abi_version)?;
        let found = u32::try_from(struct_size).unwrap_or(u32::MAX);
        if struct_size != size_of::<Options>() {
            return Err(Failure::Size { name: "options", found, expected: size_of::<Options>() });
        }
        if options.is_null() {
            return Err(Failure::Null("options"));
        }
        // SAFETY: not null, and of the right size says the program; need not hold anything yet.
        unsafe { options.write_unaligned(Options::default_values()) };
        Ok(())
    })
}

/// Makes a policy without a table: it falls back until kvtide_policy_reload takes one. For a node that must start
/// whatever the state of its table.
///
/// *policy is the new policy, to be freed with kvtide_policy_free, or null if the call fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_policy_new(options: *const Options, policy: *mut *mut Policy) -> Status {
    guarded(|| {
        // SAFETY: both are as the header says.
        unsafe { open(options, policy, |_| Ok(())) }
    })
}

/// Opens the table in the file at path: read whole, validated, copied. The file is not needed afterwards.
///
/// Fails with KVTIDE_STATUS_IO, _TABLE, _UNKNOWN_SCHEMA or _PROFILE if the table cannot be used. *policy is then null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_policy_open(
    path: *const c_char,
    options: *const Options,
    policy: *mut *mut Policy,
) -> Status {
    guarded(|| {
        // SAFETY: all three are as the header says.
        unsafe { open(options, policy, |new| Ok(new.shared.load_file(foreign::path(path)?)?)) }
    })
}

/// Opens the table in len bytes, which are copied. Otherwise as kvtide_policy_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_policy_from_bytes(
    bytes: *const u8,
    len: usize,
    options: *const Options,
    policy: *mut *mut Policy,
) -> Status {
    guarded(|| {
        // SAFETY: all three are as the header says.
        unsafe { open(options, policy, |new| Ok(new.shared.load_bytes(foreign::array(bytes, len, "bytes")?)?)) }
    })
}

/// Frees a policy; null is none. Nobody may be using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_policy_free(policy: *mut Policy) {
    // SAFETY: null, or made by `open` with `Box::into_raw`, and nobody uses it any more, says the program.
    unsafe { foreign::free(policy) };
}

/// Replaces the table by the one in the file at path, if that is valid as a whole and the node can act on it.
/// Otherwise the table in use stays, the refusal is counted, and the status says why, as in kvtide_policy_open.
///
/// For another thread than the one that decides, which never waits for it and has the new table at its next decision.
/// Counters, averages and the memory of excursions go on. Write the file beside its place and rename it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_policy_reload(policy: *const Policy, path: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: null or a policy that lives; the path is null or a string.
        let (policy, path) = unsafe { (foreign::reference(policy, "policy")?, foreign::path(path)?) };
        Ok(policy.shared.load_file(path)?)
    })
}

/// Replaces the table by the one in len bytes, as kvtide_policy_reload.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_policy_reload_bytes(policy: *const Policy, bytes: *const u8, len: usize) -> Status {
    guarded(|| {
        // SAFETY: null or a policy that lives; the bytes are null or so many.
        let (policy, bytes) = unsafe { (foreign::reference(policy, "policy")?, foreign::array(bytes, len, "bytes")?) };
        Ok(policy.shared.load_bytes(bytes)?)
    })
}

/// Takes the table away: decisions fall back with KVTIDE_FALLBACK_NO_TABLE until another is taken. For another thread
/// than the one that decides, as kvtide_policy_reload.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_policy_withdraw(policy: *const Policy) -> Status {
    guarded(|| {
        // SAFETY: null or a policy that lives.
        unsafe { foreign::reference(policy, "policy")? }.shared.withdraw();
        Ok(())
    })
}

/// Folds what the scheduler knows into the policy's averages and writes the observation of this moment.
///
/// running are all running requests. waiting is the queue, front first; of a queue longer than 80 the first 16 and
/// after them the last 64 are enough, as long as snapshot->waiting counts all. Either may be null with a count of 0;
/// then what it would fill is taken from the snapshot. No allocation, no lock that is waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_policy_observe(
    policy: *const Policy,
    snapshot: *const Snapshot,
    running: *const RunningRequest,
    num_running: usize,
    waiting: *const WaitingRequest,
    num_waiting: usize,
    observation: *mut Observation,
) -> Status {
    guarded(|| {
        // SAFETY: each is null or as the header says: the structs begin with their size, the arrays are so long.
        let (policy, snapshot, running, waiting, out) = unsafe {
            (
                foreign::reference(policy, "policy")?,
                foreign::input(snapshot)?,
                foreign::array(running, num_running, "running")?,
                foreign::array(waiting, num_waiting, "waiting")?,
                foreign::output(observation)?,
            )
        };
        let counted = snapshot.counted(running, waiting)?;
        out.values = policy.deciding()?.observer.observe(&counted).values;
        out.taken_us = counted.now_us;
        Ok(())
    })
}

/// Decides from an observation, at the time now_us on the snapshot's clock. mask may be null: everything is allowed.
/// Every choice but a fallback watermark is allowed by the mask.
///
/// controls are safe to obey whatever the status is, unless that is because controls itself is null or of the wrong
/// size: a call that fails gets the fallback, or without a policy vLLM's defaults, with KVTIDE_FALLBACK_FAILED. No
/// allocation, no lock that is waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_policy_decide(
    policy: *const Policy,
    observation: *const Observation,
    now_us: u64,
    mask: *const Mask,
    controls: *mut Controls,
) -> Status {
    guarded(|| {
        // SAFETY: null, or a struct that begins with its size and that nobody else uses now.
        let out = unsafe { foreign::output(controls)? };
        out.fill(Action::ENGINE_DEFAULT.controls(), FallbackReason::Failed);
        // SAFETY: null or a policy that lives.
        let policy = unsafe { foreign::reference(policy, "policy")? };
        out.fill(policy.fallback, FallbackReason::Failed);
        // SAFETY: null or as the header says.
        let decided = unsafe { decide(policy, observation, now_us, mask, out) };
        if decided.is_err() {
            policy.failed.fetch_add(1, Ordering::Relaxed);
        }
        decided
    })
}

/// Writes what happened since the policy was opened. For any thread, but not for the one that decides: it may wait for
/// a reload that is just being taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_policy_counters(policy: *const Policy, counters: *mut Counters) -> Status {
    guarded(|| {
        // SAFETY: null or as the header says.
        let (policy, out) = unsafe { (foreign::reference(policy, "policy")?, foreign::output(counters)?) };
        *out = policy.counters(out.struct_size);
        Ok(())
    })
}

/// Makes a policy and loads it with load.
///
/// # Safety
/// options is null or begins with its size; policy is null or points to a pointer that may be written.
unsafe fn open(
    options: *const Options,
    policy: *mut *mut Policy,
    load: impl FnOnce(&Policy) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if policy.is_null() {
        return Err(Failure::Null("policy"));
    }
    if !policy.is_aligned() {
        return Err(Failure::Unaligned("policy"));
    }
    // SAFETY: not null, aligned, and the caller says it may be written.
    unsafe { policy.write(std::ptr::null_mut()) };
    // SAFETY: the caller says so.
    let new = Policy::new(unsafe { foreign::input(options)? })?;
    load(&new)?;
    // SAFETY: as above.
    unsafe { policy.write(Box::into_raw(Box::new(new))) };
    Ok(())
}

/// # Safety
/// observation is null or begins with its size; mask is null or points to a mask.
unsafe fn decide(
    policy: &Policy,
    observation: *const Observation,
    now_us: u64,
    mask: *const Mask,
    out: &mut Controls,
) -> Result<(), Failure> {
    // SAFETY: the caller says so.
    let observation = unsafe { foreign::input(observation)? };
    let mask = if mask.is_null() {
        kvtide_runtime::ActionMask::ALL
    } else {
        // SAFETY: not null; the caller says so.
        unsafe { foreign::reference(mask, "mask")? }.meaning()?
    };
    let age_us = now_us.saturating_sub(observation.taken_us);
    let seen = kvtide_runtime::Observation { values: observation.values };
    let mut deciding = policy.deciding()?;
    let decided = deciding.reader.decide(&seen, age_us, mask);
    policy.tell(deciding.reader.counters());
    out.fill(decided, FallbackReason::from(deciding.reader.last_fallback()));
    Ok(())
}
