//! Where pointers from C become references.

use std::ffi::{CStr, c_char};
use std::path::Path;
use std::slice;

use crate::KVTIDE_MAX_REQUESTS;
use crate::status::{self, Failure};

/// A struct whose first field is its `struct_size: u32`.
///
/// # Safety
/// The type is `repr(C)`, begins with that field, and every bit pattern is a value of it.
pub(crate) unsafe trait Sized32 {
    const NAME: &'static str;
}

fn check<T>(pointer: *const T, name: &'static str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::Null(name));
    }
    if !pointer.is_aligned() {
        return Err(Failure::Unaligned(name));
    }
    Ok(())
}

fn check_size<T: Sized32>(pointer: *const T) -> Result<(), Failure> {
    check(pointer, T::NAME)?;
    // SAFETY: not null, aligned for a type that begins with a `u32`, and the caller's struct, of whichever version, is at
    // least that long.
    let found = unsafe { pointer.cast::<u32>().read() };
    if found as usize == size_of::<T>() {
        Ok(())
    } else {
        Err(Failure::Size { name: T::NAME, found, expected: size_of::<T>() })
    }
}

/// The struct a program passes in.
///
/// # Safety
/// `pointer` is null or points to a struct that begins with its size and stays as it is for `'a`.
pub(crate) unsafe fn input<'a, T: Sized32>(pointer: *const T) -> Result<&'a T, Failure> {
    check_size(pointer)?;
    // SAFETY: checked above to be there, aligned, and as long as `T`; any bits are a `T`.
    Ok(unsafe { &*pointer })
}

/// The struct a program wants filled.
///
/// # Safety
/// `pointer` is null or points to a struct that begins with its size and that nobody else uses during `'a`.
pub(crate) unsafe fn output<'a, T: Sized32>(pointer: *mut T) -> Result<&'a mut T, Failure> {
    check_size(pointer.cast_const())?;
    // SAFETY: checked above to be there, aligned, and as long as `T`; any bits are a `T`; not shared, says the caller.
    Ok(unsafe { &mut *pointer })
}

/// What an optional or opaque pointer points to.
///
/// # Safety
/// `pointer` is null or points to a `T` that lives, and is not written but through cells, for `'a`.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, name: &'static str) -> Result<&'a T, Failure> {
    check(pointer, name)?;
    // SAFETY: not null and aligned; the caller says it lives.
    Ok(unsafe { &*pointer })
}

/// An array; null is one of no elements, if `len` is 0.
///
/// # Safety
/// `pointer` is null or points to `len` elements, for which any bits are values, that stay as they are for `'a`.
pub(crate) unsafe fn array<'a, T>(pointer: *const T, len: usize, name: &'static str) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    check(pointer, name)?;
    if len > KVTIDE_MAX_REQUESTS {
        return Err(Failure::Number { name, found: len as u64, limit: KVTIDE_MAX_REQUESTS as u64 });
    }
    // SAFETY: not null, aligned, so many elements says the caller, and few enough that their bytes fit an `isize`.
    Ok(unsafe { slice::from_raw_parts(pointer, len) })
}

/// Writes what a program wants to know.
///
/// # Safety
/// `pointer` is null or points to a `T` that may be written and that nobody else uses now.
pub(crate) unsafe fn write<T>(pointer: *mut T, value: T, name: &'static str) -> Result<(), Failure> {
    check(pointer.cast_const(), name)?;
    // SAFETY: not null and aligned; the caller says it may be written. What was there is plain and needs no drop.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Frees what a handle stands for; null is nothing.
///
/// # Safety
/// `pointer` is null, or was made by `Box::into_raw` and is used no more.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    let _ = status::guarded(|| {
        if !pointer.is_null() {
            // SAFETY: the caller says so.
            drop(unsafe { Box::from_raw(pointer) });
        }
        Ok(())
    });
}

/// A text.
///
/// # Safety
/// `pointer` is null or points to a string that ends with a zero and stays as it is for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &'static str) -> Result<&'a str, Failure> {
    check(pointer, name)?;
    // SAFETY: not null; the caller says that it ends.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| Failure::NotUtf8(name))
}

/// A path: any bytes on Unix, UTF-8 elsewhere.
///
/// # Safety
/// `pointer` is null or points to a string that ends with a zero and stays as it is for `'a`.
pub(crate) unsafe fn path<'a>(pointer: *const c_char) -> Result<&'a Path, Failure> {
    check(pointer, "path")?;
    // SAFETY: not null; the caller says that it ends.
    let text = unsafe { CStr::from_ptr(pointer) };
    #[cfg(unix)]
    {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        Ok(Path::new(OsStr::from_bytes(text.to_bytes())))
    }
    #[cfg(not(unix))]
    {
        text.to_str().map(Path::new).map_err(|_| Failure::NotUtf8("path"))
    }
}
